"""Runs the application on uvicorn: accepts, drains before stopping, watches for disconnects."""

import asyncio
import ctypes
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self, TypeAlias

import uvicorn

from waltzrl.errors import RequestError
from waltzrl.gateway.access import AccessControl, Event, Receive, Send
from waltzrl.gateway.connection import ClientConnection

Application: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]

DRAIN_SECONDS = 30.0
"""The time that requests in progress have to finish after the signal to stop."""

GRACE_SECONDS = 0.25
"""The time below which a request is not watched for a disconnect."""
RETIRE_SECONDS = 600.0
"""The time for which a retiring process serves its open connections."""
YIELD_SECONDS = 0.002
"""The time for which a worker leaves a new connection to workers that have fewer."""
YOUNG_OBJECTS = 10_000
"""The number of objects made and kept before the next collection. A request leaves no cycles, and
with Python's 700 collections in vain would take 5 % of its time.
"""
ACCEPT_PAUSE_SECONDS = 1.0
"""The pause before the next try when no connection can be accepted, as when there are too many open
files.
"""

log = logging.getLogger(__name__)


class DisconnectWatcher:
    """Cancels the task that entered it when its client disconnects.

    A request that is answered within `GRACE_SECONDS` costs one timer and no task.
    """

    def __init__(self, receive: Receive, body_seconds: float) -> None:
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
            left = max(0.0, self._body_seconds - GRACE_SECONDS)
            self._timer = self._loop.call_later(left, self._give_up)
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


class Server(uvicorn.Server):
    """uvicorn's server with its own accepting, draining and leaving."""

    def __init__(
        self, app: Application, access: AccessControl, tls: ssl.SSLContext | None = None
    ) -> None:
        """Serve an application; `run` does all the work.

        Args:
            app: an ASGI application.
            access: counts the requests in progress; its limits hold for connections too.
            tls: the context that `open_tls` returned; None serves HTTP without TLS.
        """
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
            log_config=None,  # its lines are formatted as ours
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)
        self._access = access
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self._retiring_until: float | None = None

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve until told to stop, then finish the requests in progress.

        Args:
            listener: the socket that `open_listener` returned; other processes may accept from it,
                too.
        """
        asyncio.get_running_loop().set_exception_handler(_log_exception)
        gc.collect()
        gc.freeze()  # later collections skip what is loaded by now, which shortens their pauses
        gc.set_threshold(YOUNG_OBJECTS)
        _trim_memory()
        await self.serve([listener])

    def stop(self) -> None:
        """Admit no more requests, and finish those in progress."""
        self.should_exit = True

    def retire(self) -> None:
        """Leave to another process: accept no connection, serve those that are open to their end.

        Every answer asks its client to close the connection, so that no request is on its way when
        this process closes it.
        """
        self._stop_accepting()
        self._ask_to_close()
        self._retiring_until = self._loop.time() + RETIRE_SECONDS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections from the one listening socket."""
        assert sockets is not None, "`serve_on` gives one"
        self._loop = asyncio.get_running_loop()
        (self._listener,) = sockets
        self._listener.setblocking(False)
        # uvicorn closes the servers in this list; there are none, because we accept ourselves.
        self.servers = []
        self._accepting = True
        self._accept_again()
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        # Connections end without a call to this class; uvicorn calls this every 0.1 s.
        self._publish()
        if self._retiring_until is not None:
            left = self.server_state.connections or self._handshakes
            if not left or self._loop.time() > self._retiring_until:
                self.stop()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop. uvicorn would raise the signal again, before the audit log is closed."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.stop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._retiring_until is None:
            self._ask_to_close()  # a client that is refused now tries another gateway
        if unfinished := await self._access.admission.drain(DRAIN_SECONDS):
            log.warning("%d requests were cancelled after %g s", unfinished, DRAIN_SECONDS)
        self._stop_accepting()
        for handshake in self._handshakes:
            handshake.cancel()
        await super().shutdown(sockets)

    def _ask_to_close(self) -> None:
        """Let every further answer ask its client to close the connection."""
        # uvicorn makes the second of the first, but only once a second.
        self.config.encoded_headers.append((b"connection", b"close"))
        self.server_state.default_headers = [
            *self.server_state.default_headers,
            (b"connection", b"close"),
        ]

    def _accept(self) -> None:
        """Accept a connection, unless a worker with fewer connections may do it in a moment."""
        if self._access.load.others_have_fewer_connections:
            self._loop.remove_reader(self._listener)
            self._loop.call_later(YIELD_SECONDS, self._accept_now)
        else:
            self._accept_one()

    def _accept_now(self) -> None:
        if self._accepting:
            self._accept_again()
            self._accept_one()

    def _accept_one(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            log.error("cannot accept a connection: %s", error.strerror)  # noqa: TRY400 - one line
            self._loop.remove_reader(self._listener)
            self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again)
            return
        client.setblocking(False)
        task = self._loop.create_task(self._connect(client))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        self._publish()

    def _accept_again(self) -> None:
        if self._accepting:
            self._loop.add_reader(self._listener, self._accept)

    def _stop_accepting(self) -> None:
        self._accepting = False
        self._loop.remove_reader(self._listener)
        self._access.load.set_connections(None)

    def _publish(self) -> None:
        if self._accepting:
            count = len(self.server_state.connections) + len(self._handshakes)
            self._access.load.set_connections(count)

    async def _connect(self, client: socket.socket) -> None:
        # asyncio takes this limit only together with TLS.
        limit = self._access.limits.max_head_seconds if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: ClientConnection(self.config, self.server_state, self._access.limits),
                client,
                ssl=self._tls,
                ssl_handshake_timeout=limit,
            )
        except OSError:
            client.close()  # the client went away, or speaks no TLS


def _trim_memory() -> None:
    """Return what loading has freed to the system: compiling the rules leaves about 7 MB."""
    with suppress(OSError, AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log what no task handled; asyncio's own line would quote the exception's message."""
    error = context.get("exception")
    log.error(
        "%s", context["message"], exc_info=error if isinstance(error, BaseException) else None
    )
