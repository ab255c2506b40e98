"""One connection of the HTTP client: a request, its answer, and again."""

import asyncio
from collections import deque

import httptools

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
