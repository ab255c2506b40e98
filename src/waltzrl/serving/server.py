"""Runs the application on uvicorn: drains before stopping, and watches for disconnects."""

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType, TracebackType
from typing import Self, TypeAlias

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from waltzrl.errors import InputError, RequestError
from waltzrl.serving.access import Admission, Event, KeyRing, Receive, Send

Application: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]

DRAIN_SECONDS = 30.0
"""Requests in progress have this long to finish after the signal to stop."""

LONGEST_HEAD = 64 * 1024
"""Bytes of a request's headers, or of chunk headers and trailers; a connection that sends more
is closed."""

GRACE_SECONDS = 0.25
"""Requests that take less are not watched for a disconnect."""
BODY_SECONDS = 30.0
"""Longest time for a request's body to arrive: the request occupies a place meanwhile."""

log = logging.getLogger(__name__)


async def run(app: Application, admission: Admission, listener: socket.socket) -> None:
    """Serve until the process is told to stop, then finish the requests in progress.

    Args:
        app: an ASGI application.
        admission: counts the requests in progress.
        listener: the socket that `listen` returned.
    """
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
    gc.freeze()  # later collections skip what is loaded by now, which makes their pauses shorter
    await _Draining(config, admission).serve([listener])


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket, so that a failure is reported before anything is loaded.

    Raises:
        InputError: the port is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)  # early clients wait in the backlog until the gateway is loaded
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host"
        ) from error
    return listener


def check_bind(host: str, ring: KeyRing, *, open_to_all: bool) -> None:
    """Refuse to listen on the network without API keys, unless the operator allows it.

    Raises:
        InputError: `host` is not loopback, there are no keys and `open_to_all` is False.
    """
    if ring.is_open and not open_to_all and not _is_loopback(host):
        raise InputError(
            f"without API keys the gateway listens on loopback only, not on {host}; make one "
            "with `waltzrl keys add NAME --file keys.toml` and pass --keys keys.toml, or --open"
        )


class DisconnectWatcher:
    """Cancels the task that entered it when its client disconnects.

    A request that is answered within `GRACE_SECONDS` costs one timer and no task.
    """

    def __init__(self, receive: Receive, *, body_seconds: float = BODY_SECONDS) -> None:
        """Watch the connection that `receive` belongs to.

        Args:
            receive: returns the connection's next ASGI event.
            body_seconds: longest wait for the body, inside `read`.
        """
        self._receive = receive
        self._body_seconds = body_seconds
        self._reading = self._grace_over = self._late = self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._worker = asyncio.current_task(self._loop)
        self._timer = self._loop.call_later(GRACE_SECONDS, self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Suppress the cancellation when the client has disconnected.

        Raises:
            RequestError: 408, the body did not arrive in time.
        """
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._late and kind is asyncio.CancelledError:
            raise RequestError(
                408,
                "invalid_request",
                f"the request's body did not arrive within {self._body_seconds:g} s; send it again",
            ) from None
        return self._gone and kind is asyncio.CancelledError

    async def read(self, body: Awaitable[bytes]) -> bytes:
        """Return the body. It consumes the events itself, so the watcher starts only after it."""
        self._reading = True
        raw = await body
        self._reading = False
        if self._grace_over:
            self._timer.cancel()
            self._watch_soon()
        return raw

    def _start(self) -> None:
        """Start watching; while the body is being read, only its time limit is watched."""
        self._grace_over = True
        if self._reading:
            self._timer = self._loop.call_later(self._body_seconds, self._give_up)
        else:
            self._watch_soon()

    def _watch_soon(self) -> None:
        self._watcher = self._loop.create_task(self._watch())

    def _give_up(self) -> None:
        self._late = True
        self._cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._cancel()

    def _cancel(self) -> None:
        if self._worker is not None:
            self._worker.cancel()


class _Gathered:
    """A transport that sends all writes of one turn of the event loop by one system call.

    uvicorn writes the head and the body of a response separately, and a stream's events one by
    one; each write would be a system call and often a packet of its own.
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
    """uvicorn's protocol with gathered writes, and a limit on headers, which precede any key."""

    _unread = 0
    """Bytes received since the last complete head or the last part of a body."""

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
    def __init__(self, config: uvicorn.Config, admission: Admission) -> None:
        super().__init__(config)
        self._admission = admission

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop. uvicorn would raise the signal again, before the audit log is closed."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if unfinished := await self._admission.drain(DRAIN_SECONDS):
            log.warning("%d requests were cancelled after %g s", unfinished, DRAIN_SECONDS)
        await super().shutdown(sockets)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
