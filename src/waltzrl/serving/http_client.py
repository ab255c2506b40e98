"""A small HTTP/1.1 client for one server: kept connections, bodies in parts, a limit on silence.

It does what the hot route needs and no more, on httptools, which reads the protocol: no
redirects, no cookies, no proxies, no compression. It takes a third of the time of a client that
does everything.
"""

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Self

from waltzrl.policies.address import server_address
from waltzrl.serving.http_connection import Connection

IDLE_SECONDS = 25.0
"""A connection that was idle for longer is not used again: servers close theirs after 30 or so."""


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
