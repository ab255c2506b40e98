"""An MCP server that prints lines that are no JSON, and answers as its argument says.

The argument is JSON: from a method, or `tools/call NAME`, to the member `result` or `error` of the
answer, or to null for no answer. Without one, the result of a call is invalid.
"""

import json
import sys

GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}, "resources": {}},
    "serverInfo": {"name": "broken", "version": "1"},
}
ANSWERS = {
    "initialize": {"result": GREETING},
    "tools/list": {"result": {"tools": [{"name": "broken", "inputSchema": {"type": "object"}}]}},
    "tools/call broken": {"result": {"content": "secret words"}},
    "resources/list": {"result": {"resources": []}},
}
MISSING = {"error": {"code": -32601, "message": "no such method"}}

answers = ANSWERS | json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")
for line in sys.stdin:
    request = json.loads(line)
    method = request["method"]
    if method == "tools/call":
        method += f" {request['params']['name']}"
    sys.stdout.write("secret words and no JSON\n")
    answer = answers.get(method, MISSING)
    if "id" in request and answer is not None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}) + "\n")
    sys.stdout.flush()
