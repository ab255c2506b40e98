"""How clients reach a server: over stdin and stdout, or over HTTP."""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from mcp.server import MCPServer, Server
from mcp.server.stdio import stdio_server

logger = logging.getLogger("waltzrl.mcp")


async def serve(server: MCPServer | Server[Any], http: tuple[str, int] | None = None) -> None:
    """Serve until SIGINT or SIGTERM, or until the client closes stdin.

    Args:
        server: what to serve.
        http: address and port for streamable HTTP at `/mcp`, which asks for no key; port 0 is any
            free one, and a line on stderr says which. None serves over stdin and stdout.

    Raises:
        OSError: the address is in use or is not this machine's.
    """
    if http is not None:
        family = socket.AF_INET6 if ":" in http[0] else socket.AF_INET
        with socket.create_server(http, family=family) as listener:
            host, port = listener.getsockname()[:2]
            app = server.streamable_http_app(host=host)
            shown = f"[{host}]" if ":" in host else host
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
            logger.warning("MCP at http://%s:%s/mcp", shown, port)
            await uvicorn.Server(config).serve(sockets=[listener])
        return
    with _signals_end_stdin():
        if isinstance(server, MCPServer):
            await server.run_stdio_async()
        else:
            async with stdio_server() as (incoming, outgoing):
                await server.run(incoming, outgoing, server.create_initialization_options())


@contextmanager
def _signals_end_stdin() -> Iterator[None]:
    """Let SIGINT and SIGTERM end stdin, as a client does that closes it.

    The SDK reads stdin in a thread that nothing but its end stops; so it reads a socket to which
    another thread copies stdin. A second signal has its usual effect.
    """
    stdin, (reader, writer) = os.dup(0), socket.socketpair()
    with reader:
        # The SDK opens descriptor 0, which is the socket from here on.
        os.dup2(reader.fileno(), 0)

    def copy() -> None:
        with suppress(OSError):
            while data := os.read(stdin, 65536):
                writer.sendall(data)
            writer.shutdown(socket.SHUT_WR)

    loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        with suppress(OSError):  # the client closed stdin before
            writer.shutdown(socket.SHUT_WR)

    for number in signals:
        loop.add_signal_handler(number, end)
    # A daemon, because it may wait for stdin for ever.
    threading.Thread(target=copy, daemon=True).start()
    try:
        yield
    finally:
        end()
