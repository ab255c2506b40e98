"""A small HTTP/1.1 client for one server: kept connections, bodies in parts, a limit on silence.

It does what the hot route needs and no more, on httptools, which reads the protocol: no
redirects, no cookies, no proxies, no compression. It takes a third of the time of a client that
does everything.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Self

import httptools

from waltzrl.policies.address import server_address

IDLE_SECONDS = 25.0
"""A connection that was idle for longer is not used again: servers close theirs after 30 or so."""
MOST_BUFFERED = 256 * 1024
"""Bytes that may wait to be taken before the server is made to wait."""


class Connection(asyncio.Protocol):
    """One connection: a request, its answer, and again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence_seconds: float) -> None:
        self.idle_since = 0.0
        self.open = False
        self._loop, self._silence = loop, silence_seconds
        self._transport: asyncio.Transport
        self._begin()

    def _begin(self) -> None:
        """Forget the last answer."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.heard = False
        """The server has said something since the request was sent."""
        self.headers_complete = False
        self.complete = False
        self._kept_alive = False
        self._parser = httptools.HttpResponseParser(self)
        self._parts: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """Whether the answer is complete, and nothing of it keeps the server waiting."""
        return self.open and self._kept_alive and not self._paused

    async def send(self, request: bytes) -> None:
        """Send a request, and wait until its answer's head has come; if none does, close."""
        self._begin()
        self._transport.write(request)
        try:
            while not self.headers_complete:
                await self._more()
        except BaseException:
            self.abort()
            raise

    async def part(self) -> bytes:
        """Return the next part of the body; nothing at its end."""
        while not self._parts and not self.complete:
            await self._more()
        if not self._parts:
            return b""
        part = self._parts.popleft()
        self._buffered -= len(part)
        if self._paused and self._buffered < MOST_BUFFERED:
            self._paused = False
            self._transport.resume_reading()
        return part

    def abort(self) -> None:
        self.open = False
        self._transport.abort()

    async def _more(self) -> None:
        """Wait until something has come, or has gone wrong; raise what went wrong before."""
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

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.open = True

    def data_received(self, data: bytes) -> None:
        self.heard = True
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
        whole = error is None and self._failure is None and self._ends_with_connection()
        self.complete = self.complete or whole
        self._fail(ConnectionError("the server closed the connection"))

    def _ends_with_connection(self) -> bool:
        lengths = {"content-length", "transfer-encoding"}
        return self.headers_complete and not lengths & self.headers.keys()

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self.complete:
            raise ConnectionError("the server said more than was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.headers_complete:  # what follows the body is no part of the head
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
            self._kept_alive = self._parser.should_keep_alive()
        else:  # 100 Continue and its like: the answer is still to come
            self.headers.clear()


class Response:
    """One answer; its body can be taken once."""

    def __init__(self, connection: Connection, give_back: Callable[[Connection], None]) -> None:
        """Begin when the head has come; `give_back` takes the connection when all is done."""
        self.status = connection.status
        self.headers = connection.headers
        """By lower-case name; of a repeated one the last."""
        self._connection = connection
        self._give_back = give_back

    def close(self) -> None:
        """Give the connection back; before the answer's end, it is closed."""
        self._give_back(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def part(self) -> bytes:
        """Return the next part of the body as it comes; nothing at its end.

        Raises:
            ConnectionError: it broke off.
            TimeoutError: the server was silent for too long.
        """
        return await self._connection.part()


class HttpClient:
    """Requests to one server; connections are made as needed, and kept."""

    def __init__(
        self, url: str, *, silence_seconds: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """Describe the server; nothing is opened yet.

        Args:
            url: `http://host:port/base` or https; the base is put before every path.
            silence_seconds: longest wait for a connection, or for the next byte of an answer.
            clock: seconds that never run backwards.

        Raises:
            InputError: the URL is none of a server.
        """
        parts = server_address(url)
        secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._tls = ssl.create_default_context() if secure else None
        self._base = parts.path.rstrip("/")
        self._named = f"Host: {parts.netloc.rpartition('@')[2]}\r\n"
        self._silence = silence_seconds
        self._clock = clock
        self._idle: list[Connection] = []

    async def ask(self, method: str, path: str, headers: str, body: bytes = b"") -> Response:
        """Send a request and return its answer, which must be closed.

        A kept connection on which the server hangs up before it says anything is replaced once.

        Args:
            method: GET or POST.
            path: begins with a slash.
            headers: lines that end in CRLF; `Host` and `Content-Length` are put before them.
            body: of the request.

        Raises:
            OSError: the server cannot be reached, or the connection broke.
            TimeoutError: the server was silent for too long.
        """
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._named}"
        request = f"{head}Content-Length: {len(body)}\r\n{headers}\r\n".encode("latin-1") + body
        return Response(await self._sent(request), self._take_back)

    def close(self) -> None:
        """Close all connections that are not in use."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _take_back(self, connection: Connection) -> None:
        if connection.reusable:
            connection.idle_since = self._clock()
            self._idle.append(connection)
        else:
            connection.abort()

    async def _sent(self, request: bytes) -> Connection:
        """Send a request on a kept connection, or on a new one, and wait for the answer's head."""
        kept = self._kept()
        if kept is not None:
            try:
                await kept.send(request)
            except ConnectionError:
                if kept.heard:
                    raise
            else:
                return kept
        connection = await self._connect()
        await connection.send(request)
        return connection

    def _kept(self) -> "Connection | None":
        """Take the connection that was used last, and close those that were idle for too long."""
        oldest = self._clock() - IDLE_SECONDS
        while self._idle:
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
            raise TimeoutError(f"{self._silence:g} s") from None
        return connection
