"""`waltzrl` as an MCP server in a process of its own, as clients start it."""

import asyncio
import os
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import StdioServerParameters

SUPPORT = Path(__file__).parent
GREETING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
"""The first line that a client writes to stdin."""

ENVIRONMENT = {
    name: os.environ[name] for name in ("PYTHONPATH", "NO_PROXY", "PATH") if name in os.environ
}


def stdio_command(*arguments):
    """Return what starts `waltzrl ARGUMENTS` and talks over its stdin and stdout."""
    return StdioServerParameters(
        command=sys.executable, args=["-m", "waltzrl", *map(str, arguments)], env=ENVIRONMENT
    )


@asynccontextmanager
async def http_process(*arguments, host="127.0.0.1"):
    """Run `waltzrl ARGUMENTS --http HOST:0`, and yield the URL that it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "waltzrl", *map(str, arguments), "--http", f"{host}:0"),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        line = (await process.stderr.readline()).decode()
        yield re.search(rf"http://{re.escape(host)}:\d+/mcp", line)[0]
    finally:
        process.terminate()
        await process.communicate()
