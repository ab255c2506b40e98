"""An MCP server whose result of a call is none, and that prints lines that are no JSON."""

import json
import sys

TOOL = {"name": "broken", "inputSchema": {"type": "object"}}
RESULTS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "broken", "version": "1"},
    },
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"content": "secret words"},
}

for line in sys.stdin:
    request = json.loads(line)
    sys.stdout.write("secret words and no JSON\n")
    if "id" in request:
        answer = {"jsonrpc": "2.0", "id": request["id"]}
        if (result := RESULTS.get(request["method"])) is not None:
            answer["result"] = result
        else:
            answer["error"] = {"code": -32601, "message": "no such method"}
        sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
