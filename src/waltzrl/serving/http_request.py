"""One HTTP request at work: what came, who sent it, and how to answer."""

from collections.abc import Sequence
from typing import TypeAlias

from waltzrl.errors import RequestError
from waltzrl.serving.auth import RequestHeaders
from waltzrl.serving.disconnect import Receive, Send
from waltzrl.serving.keys import Caller
from waltzrl.serving.wire.format import WireFormat

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")


class HttpRequest:
    """One HTTP request at work."""

    def __init__(
        self, dialect: WireFormat, head: RequestHeaders, receive: Receive, send: Send
    ) -> None:
        """Begin; `caller` and `body` are known once the door has let it in."""
        self.dialect = dialect
        self.head = head
        self.receive = receive
        self.caller: Caller
        self.body = b""
        self.asked = False
        """The gateway knows of it, and its ledger counts what fails."""
        self._begun = False
        self._send = send

    @property
    def may_learn(self) -> bool | None:
        """Whether the agents may learn from it: no when client or key says no, else as one says."""
        said = (self.head.may_learn, self.caller.may_learn)
        return False if False in said else True in said or None

    async def reply(self, body: bytes, headers: Headers = (JSON,), status: int = 200) -> None:
        """Send a whole reply."""
        size = (b"content-length", str(len(body)).encode())
        await self.begin((*headers, size), status)
        await self.more(body, last=True)

    async def begin(self, headers: Headers, status: int = 200) -> None:
        """Send the status and headers."""
        self._begun = True
        named = (b"x-request-id", self.head.id.encode())
        await self._send(
            {"type": "http.response.start", "status": status, "headers": (*headers, named)}
        )

    async def more(self, body: bytes, *, last: bool = False) -> None:
        """Send some of the body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def refuse(self, problem: RequestError) -> None:
        """Send an error as the API spells it; a reply that has begun is broken off instead."""
        if self._begun:
            return
        headers = [JSON]
        if problem.retry_after_seconds is not None:
            seconds = max(1, round(problem.retry_after_seconds))
            headers.append((b"retry-after", str(seconds).encode()))
        body = self.dialect.problem(problem, self.head.id)
        await self.reply(body, headers, problem.status)
