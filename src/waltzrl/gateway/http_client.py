"""A small HTTP/1.1 client for one server: pooled connections, bodies in parts, a read timeout.

It parses with httptools and has only what the gateway needs: no redirects, cookies, proxies or
compression. For one connection that posts 450 bytes and reads 600, on uvloop and loopback, it takes
24 us of CPU time per request and aiohttp's client 107 to 122 us. A request takes the whole gateway
about 260 us (`make bench-gateway`, 16 connections), so a second client is worth its code.
"""

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Self

import httptools

from waltzrl import __version__
from waltzrl.policies.remote import server_address

IDLE_SECONDS = 25.0
"""A connection idle for longer is not reused: many servers close theirs after 30 s."""
MOST_BUFFERED = 256 * 1024
"""The most bytes of a body that may wait to be read; beyond that, reading from the socket pauses.
"""
BOTH_LENGTHS = {"content-length", "transfer-encoding"}
"""The headers of a response whose end is ambiguous: its connection is not used again."""


class Connection(asyncio.Protocol):
    """One connection, which sends requests and parses responses, one after the other.

    As a context manager it is the response that it reads, whose body can be read once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, silence_seconds: float) -> None:
        self.idle_since = 0.0
        self.open = False
        self.give_back: Callable[[Connection], None] = Connection.abort
        """Called with it when its response is closed."""
        self._loop, self._silence = loop, silence_seconds
        self._transport: asyncio.Transport
        self._begin()

    def _begin(self) -> None:
        """Clear the state of the last response."""
        self.status = 0
        self.headers: dict[str, str] = {}
        """The headers by lower-case name; the last value of a repeated one."""
        self.received = False
        """True if the server has sent something since the request."""
        self.headers_complete = False
        self.complete = False
        self._kept_alive = False
        self._parser = httptools.HttpResponseParser(self)
        # Some servers send a length beside chunks, which counts for nothing (RFC 9112, 6.3).
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True)
        self._parts: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """Whether the response is complete, and the connection can take another request."""
        # While reading is paused, nothing of the next response would arrive.
        return self.open and self._kept_alive and not self._paused

    async def send(self, request: bytes) -> None:
        """Send a request and wait for the head of its response; close on any failure."""
        self._begin()
        self._transport.write(request)
        try:
            while not self.headers_complete:
                await self._wait()
        except BaseException:
            # After a cancellation, too: its response would be taken for that to the next request.
            self.abort()
            raise

    async def read_part(self) -> bytes:
        """Return what has arrived of the body, at least one byte of it, or b"" at its end.

        Raises:
            ConnectionError: the connection broke.
            TimeoutError: the server sent nothing for too long.
        """
        while not self._parts and not self.complete:
            await self._wait()
        arrived = b"".join(self._parts)
        self._parts.clear()
        self._buffered = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return arrived

    def close(self) -> None:
        """Return to the pool, which ends the connection if the response was not complete."""
        self.give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def abort(self) -> None:
        self.open = False
        self._transport.abort()

    async def _wait(self) -> None:
        """Wait for data or a failure; raise a failure that has already happened."""
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        alarm = self._loop.call_later(self._silence, self._give_up)
        try:
            await self._waiter
        finally:
            alarm.cancel()
            self._waiter = None

    def _give_up(self) -> None:
        self._fail(TimeoutError(f"{self._silence:g} s"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: Exception) -> None:
        self.open = False
        self._failure = self._failure or failure
        self._wake()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.open = True

    def data_received(self, data: bytes) -> None:
        self.received = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"not HTTP: {error}"))
            self._transport.abort()
            return
        if not self._paused and self._buffered > MOST_BUFFERED:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        # Without these headers, the end of the connection is the end of the body (RFC 9112, 6.3).
        sized = not self.headers.keys().isdisjoint(BOTH_LENGTHS)
        clean = error is None and self._failure is None
        self.complete = self.complete or (clean and self.headers_complete and not sized)
        self._fail(ConnectionError("the server closed the connection"))

    # Called by httptools.

    def on_message_begin(self) -> None:
        # What follows a response would be taken for the answer to the next request.
        if self.complete:
            raise ConnectionError("the server sent a second response to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.headers_complete:  # trailers after a chunked body come here, too
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.headers_complete = self.status >= 200

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        if self.headers_complete:
            self.complete = True
            ambiguous = self.headers.keys() >= BOTH_LENGTHS
            self._kept_alive = self._parser.should_keep_alive() and not ambiguous
        else:  # an interim response such as 100 Continue: the final one follows
            self.headers.clear()


class HttpClient:
    """Sends requests to one server, over a pool of connections that grows as needed."""

    def __init__(
        self, url: str, *, silence_seconds: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """Set up; the first request opens the first connection.

        Args:
            url: `http://host:port/base` or https; the base precedes every path.
            silence_seconds: longest wait for a connection, or for the next bytes of a response.
            clock: monotonic seconds.

        Raises:
            InputError: the URL is invalid.
        """
        parts = server_address(url)
        secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._tls = ssl.create_default_context() if secure else None
        self._base = parts.path.rstrip("/")
        # Many firewalls refuse a request that does not say what sends it.
        host = parts.netloc.rpartition("@")[2]
        self._own_headers = f"Host: {host}\r\nUser-Agent: waltzrl/{__version__}\r\n"
        self._silence = silence_seconds
        self._clock = clock
        self._idle: list[Connection] = []

    async def request(
        self, method: str, path: str, headers: str, body: bytes = b"", *, repeatable: bool = True
    ) -> Connection:
        """Send a request and return its response, which must be closed.

        If the server closes a pooled connection before it sends anything, the request is sent once
        more on a new connection: the server had timed the idle connection out. A request that must
        not be repeated has a new connection at once, because the server may have read it.

        Args:
            method: GET or POST.
            path: begins with a slash.
            headers: lines that end in CRLF; `Host`, `User-Agent` and `Content-Length` are added.
            body: of the request.
            repeatable: the server may get it twice.

        Raises:
            OSError: the server is unreachable, or the connection broke.
            TimeoutError: the server sent nothing for too long.
        """
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._own_headers}"
        request = f"{head}Content-Length: {len(body)}\r\n{headers}\r\n".encode("latin-1") + body
        if not repeatable:
            # Not kept: nothing would take connections from the pool where all requests are such.
            return await self._send(request, None)
        response = await self._send(request, self._take_idle())
        response.give_back = self._take_back
        return response

    def close(self) -> None:
        """Close all idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _take_back(self, connection: Connection) -> None:
        if connection.reusable:
            connection.idle_since = self._clock()
            self._idle.append(connection)
        else:
            connection.abort()

    async def _send(self, request: bytes, idle: Connection | None) -> Connection:
        """Send a request on an idle or a new connection, and wait for the head of the response."""
        if idle is not None:
            try:
                await idle.send(request)
            except ConnectionError:
                if idle.received:  # the server has begun to process the request
                    raise
            else:
                return idle
        connection = await self._connect()
        await connection.send(request)
        return connection

    def _take_idle(self) -> Connection | None:
        """Take the connection that was used last, and close those idle for too long."""
        oldest = self._clock() - IDLE_SECONDS
        while self._idle:
            # The one used last, so that those that are not needed grow old and are closed.
            connection = self._idle.pop()
            if connection.open and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._silence):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self._silence), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            # The message to the client quotes it, as that of `_give_up`.
            raise TimeoutError(f"{self._silence:g} s") from None
        return connection
