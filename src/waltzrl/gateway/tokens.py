"""`POST /v1/messages/count_tokens`: the upstream's count, or else an estimate."""

import msgspec

from waltzrl.errors import RequestError
from waltzrl.gateway.chat_reader import UNREADABLE
from waltzrl.gateway.exchange import ChatRequest, Upstream, UpstreamRequest
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.wire import MESSAGES
from waltzrl.gateway.wire.fields import read_body
from waltzrl.gateway.wire.format import estimate_input

ABSENT = (404, 405, 501)
"""The statuses of a server without this endpoint."""


class Count(msgspec.Struct, frozen=True):
    """The tokens of a request."""

    input_tokens: int


def read_count(raw: bytes, request_id: str, caller: Caller) -> ChatRequest:
    """Read a request, which is that of a message but need not say how long the reply may be.

    Raises:
        RequestError: 400, naming the field.
    """
    body = {"max_tokens": 1} | read_body(raw)
    return MESSAGES.read(msgspec.json.encode(body), request_id, caller)


async def upstream_count(upstream: Upstream, request: UpstreamRequest) -> Count | None:
    """Return the count of the upstream, or None if it does not count.

    Raises:
        RequestError: it refused or failed.
    """
    try:
        response = await upstream.forward(request)
        count = msgspec.json.decode(response.body, type=Count)
    except UNREADABLE:
        return None
    except RequestError as error:
        if error.status in ABSENT:
            return None
        raise
    return count if count.input_tokens > 0 else None  # every request has a token


def estimated_count(chat: ChatRequest) -> Count:
    return Count(estimate_input(chat))
