"""Runs the application on uvicorn: accepts, drains before stopping, watches for disconnects."""

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Self, TypeAlias

import uvicorn

from waltzrl.errors import InputError, RequestError
from waltzrl.serving.access import AccessControl, Event, KeyRing, Receive, Send
from waltzrl.serving.connection import ClientConnection
from waltzrl.telemetry.logs import fields

Application: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]

DRAIN_SECONDS = 30.0
"""Requests in progress have this long to finish after the signal to stop."""

GRACE_SECONDS = 0.25
"""Requests that take less are not watched for a disconnect."""
ACCEPT_PAUSE_SECONDS = 1.0
"""Before the next try when no connection can be accepted, as when there are too many open files."""

log = logging.getLogger(__name__)


async def run(
    app: Application,
    access: AccessControl,
    listener: socket.socket,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve until the process is told to stop, then finish the requests in progress.

    Args:
        app: an ASGI application.
        access: counts the requests in progress; its limits hold for connections too.
        listener: the socket that `listen` returned.
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
    asyncio.get_running_loop().set_exception_handler(_log_exception)
    gc.collect()
    gc.freeze()  # later collections skip what is loaded by now, which makes their pauses shorter
    await _Server(config, access, tls).serve([listener])


def open_tls(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Read the files of a TLS server.

    Args:
        cert: certificate chain in PEM, the server's own certificate first.
        key: its private key in PEM, without a password.
        client_ca: certificates in PEM; clients must show one that these have signed. None asks
            clients for none.

    Raises:
        InputError: a file cannot be read, or the key is not the certificate's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    for path in filter(None, (cert, key, client_ca)):
        try:
            path.open("rb").close()  # the errors of ssl do not name the file
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; TLS needs this file") from error
    try:
        context.load_cert_chain(cert, key, _no_password)
    except ssl.SSLError as error:
        why = "is not the key of" if error.reason == "KEY_VALUES_MISMATCH" else "cannot serve with"
        raise InputError(
            f"{key} {why} {cert} ({error.reason}); TLS needs a certificate chain and its private "
            "key, both in PEM"
        ) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise InputError(f"{client_ca}: not certificates in PEM ({error.reason})") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> NoReturn:
    raise InputError("the private key of TLS has a password; write it without one")


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log what no task handled; asyncio's own line would quote the exception's message."""
    error = context.get("exception")
    log.error(
        "%s", context["message"], exc_info=error if isinstance(error, BaseException) else None
    )


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


class _Server(uvicorn.Server):
    """uvicorn's server with its own accepting and draining."""

    def __init__(
        self, config: uvicorn.Config, access: AccessControl, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(config)
        self._access = access
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections from the one listening socket."""
        assert sockets is not None
        self._loop = asyncio.get_running_loop()
        (self._listener,) = sockets
        self._listener.setblocking(False)
        self.servers = []
        self._loop.add_reader(self._listener, self._accept)
        self.started = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop. uvicorn would raise the signal again, before the audit log is closed."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("the gateway shuts down", extra=fields(active=self._access.admission.active))
        if unfinished := await self._access.admission.drain(DRAIN_SECONDS):
            log.warning("%d requests were cancelled after %g s", unfinished, DRAIN_SECONDS)
        self._loop.remove_reader(self._listener)
        for handshake in self._handshakes:
            handshake.cancel()
        await super().shutdown(sockets)

    def _accept(self) -> None:
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

    def _accept_again(self) -> None:
        if not self.should_exit:
            self._loop.add_reader(self._listener, self._accept)

    async def _connect(self, client: socket.socket) -> None:
        limit = self._access.limits.max_head_seconds if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                self._connection, client, ssl=self._tls, ssl_handshake_timeout=limit
            )
        except OSError:
            client.close()  # the client went away, or speaks no TLS

    def _connection(self) -> ClientConnection:
        return ClientConnection(self.config, self.server_state, self._access.limits)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
