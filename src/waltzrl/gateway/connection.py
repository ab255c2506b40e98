"""A client's connection: uvicorn's protocol, with bounds on what precedes any API key."""

import asyncio
import re

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from waltzrl.gateway.limits import Limits

LONGEST_HEAD = 64 * 1024
"""The most bytes of a request's headers, or of chunk headers and trailers; a connection that sends
more is closed.
"""
CHUNKED = b"transfer-encoding: chunked\r\n"
UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
"""The beginning of the header that offers another protocol."""


class ClientConnection(HttpToolsProtocol):
    """uvicorn's protocol with gathered writes, and with limits on sizes and times.

    A request that arrives in one piece costs no timer.
    """

    _unread = 0
    """The bytes received since the last complete head or the last part of a body."""
    _in_head = True
    _arrives = True
    """True if a request is expected, or has not arrived completely."""
    _arrival: asyncio.TimerHandle | None = None
    _unsent: asyncio.TimerHandle | None = None

    def __init__(self, config: Config, state: ServerState, limits: Limits) -> None:
        """Serve one connection of a server."""
        super().__init__(config, state, {})
        self.timeout_keep_alive = limits.max_idle_seconds  # type: ignore[assignment]
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        gathered = _Gathered(transport, self._limits.max_send_seconds)
        super().connection_made(gathered)  # type: ignore[arg-type]
        self._watch_arrival()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_arrival()
        # The timer of `pause_writing` must not outlive the connection.
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        if self._in_head or not self._arrives:
            data = _decline_upgrade(data)
        super().data_received(data)
        # A head or a part that was parsed has set it to 0, so all of it is one unfinished head.
        if self._unread > LONGEST_HEAD:
            self.transport.abort()
        elif self._arrives and self._arrival is None:
            # The first bytes of a further request on a kept connection.
            self._watch_arrival()

    def on_message_begin(self) -> None:
        self._in_head = self._arrives = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._unread = 0
        self._in_head = False
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.transport = _Unchunked(self.transport)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        self._arrives = False
        self._end_arrival()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Give the client some time to read what the transport holds."""
        super().pause_writing()
        self._unsent = self.loop.call_later(self._limits.max_send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unsent is not None:
            self._unsent.cancel()
            self._unsent = None
        super().resume_writing()

    def _watch_arrival(self) -> None:
        self._arrival = self.loop.call_later(self._limits.max_head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        """Close the connection, unless only the body is missing: `DisconnectWatcher` answers that.

        The body's own deadline here is for requests that were answered without it.
        """
        if self._in_head:
            self.transport.abort()
        else:
            self._arrival = self.loop.call_later(
                self._limits.max_body_seconds, self.transport.abort
            )

    def _end_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None


def _decline_upgrade(data: bytes) -> bytes:
    """Rename the header `Upgrade` in a request's head: the parser would take no body after it.

    Java's client offers HTTP/2 with every request, and a server may ignore that.
    """
    end = data.find(b"\r\n\r\n")
    end = len(data) if end < 0 else end
    if UPGRADE.search(data, 0, end) is None:
        return data
    return UPGRADE.sub(b"\r\nx-upgrade", data[:end]) + data[end:]


class _Gathered:
    """A transport that sends all writes of one turn of the event loop by one system call.

    uvicorn writes the head and the body of a response separately, and a stream's events one by
    one; each write would be a system call and often a packet of its own.
    """

    def __init__(self, transport: asyncio.Transport, close_seconds: float) -> None:
        """Send through `transport`, and wait so long for the client when closing."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._close_seconds = close_seconds
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()
        # The transport closes when this is sent, which a client that reads nothing prevents.
        if self._transport.get_write_buffer_size():
            self._loop.call_later(self._close_seconds, self._transport.abort)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()


class _Unchunked:
    """A transport for a client of HTTP/1.0, which knows no chunks: the body ends with it.

    uvicorn writes a head, and then either the body as it is or a chunk at a time.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._in_head, self._in_chunks = True, False

    def write(self, data: bytes) -> None:
        if self._in_head:
            head = data.replace(CHUNKED, b"")
            self._in_head, self._in_chunks = False, head != data
            data = head
        elif self._in_chunks:
            size, _, rest = data.partition(b"\r\n")
            data = rest[: int(size or b"0", 16)]
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)
