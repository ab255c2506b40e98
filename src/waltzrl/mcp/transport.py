"""How clients reach a server: over stdin and stdout, or over HTTP."""

import logging
import socket
from typing import Any

import uvicorn
from mcp.server import MCPServer, Server
from mcp.server.stdio import stdio_server

logger = logging.getLogger(__name__)


async def serve(server: MCPServer | Server[Any], http: tuple[str, int] | None = None) -> None:
    """Serve until the client closes stdin or, over HTTP, until this process is stopped.

    Args:
        server: what to serve.
        http: address and port for streamable HTTP at `/mcp`, which asks for no key; port 0 is any
            free one, and a line on stderr says which. None serves over stdin and stdout.

    Raises:
        OSError: the address is in use or is not this machine's.
    """
    if http is not None:
        with socket.create_server(http) as listener:
            host, port = listener.getsockname()[:2]
            app = server.streamable_http_app(host=host)
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
            logger.warning("MCP at http://%s:%s/mcp", host, port)
            await uvicorn.Server(config).serve(sockets=[listener])
    elif isinstance(server, MCPServer):
        await server.run_stdio_async()
    else:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
