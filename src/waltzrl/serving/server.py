"""Runs the application: uvicorn on uvloop, which drains before it stops."""

import asyncio
import gc
import logging
import signal
import socket
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from waltzrl.errors import InputError
from waltzrl.serving.app import App

DRAIN_SECONDS = 30.0
"""What is under way may take so long after the signal to stop."""

LONGEST_HEAD = 64 * 1024
"""Bytes of a request's headers, or of what it puts around its body; a connection that sends more
is dropped."""

log = logging.getLogger(__name__)


async def run(app: App, listener: socket.socket) -> None:
    """Serve until the process is told to stop, then finish what is under way."""
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,  # longer than load balancers keep an idle connection
        timeout_graceful_shutdown=5,
    )
    gc.collect()
    gc.freeze()  # what was loaded stays: no pause of a later collection goes through it again
    await _Draining(config, app).serve([listener])


def listen(host: str, port: int) -> socket.socket:
    """Take a port, so that a failure is told before anything is loaded.

    Raises:
        InputError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)  # who comes before all is loaded waits, and is not refused
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host"
        ) from error
    return listener


class _Gathered:
    """A transport that sends what is written in one turn of the loop by one system call.

    uvicorn writes a reply's head and its body apart, and a stream's events one by one.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._call_soon = asyncio.get_running_loop().call_soon
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with gathered writes and with a limit on what comes before any key."""

    _unread = 0
    """Bytes since the last of which it is known that they end a head, or are of a body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Gathered(transport))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > LONGEST_HEAD:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()


class _Draining(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; uvicorn would raise the signal again, before the audit log is closed."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if left := await self._app.access.admission.drain(DRAIN_SECONDS):
            log.warning("%d requests were cut off after %g s", left, DRAIN_SECONDS)
        await super().shutdown(sockets)
