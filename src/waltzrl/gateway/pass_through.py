"""Other paths below `/v1`, answered by the upstream without a review, if the operator allows it.

What answers with a model's reply must not pass here, under whatever spelling: a path has to be in
plain letters, and no word of it may be one of those that such paths have.
"""

import re
from contextlib import suppress

import msgspec

from waltzrl.errors import RequestError
from waltzrl.gateway.access import Event
from waltzrl.gateway.chat_reader import UNREADABLE
from waltzrl.gateway.exchange import UpstreamRequest, UpstreamResponse

PREFIX = "/v1"
PATH = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
"""A path without encoded characters, empty segments and a slash at the end."""
QUERY = re.compile(r"[A-Za-z0-9._~%&=,:+\[\]-]*")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# Not `\b`, for which an underscore is a letter.
REPLIES = re.compile(
    r"(?<![a-z0-9])(assistants?|batch(es)?|chat|complet(e|ions?)|convers(ations?|e)|deployments?"
    r"|engines?|(stream)?generate(content)?|infer(ence)?|infill|invo(cations?|ke)|messages?"
    r"|predict(ions?)?|realtime|responses?|runs?|summarize|threads?)(?![a-z0-9])",
    re.IGNORECASE,
)
"""The words in paths of model servers that answer with a model's reply."""
REPLY_OBJECTS = frozenset(
    (
        "chat.completion",
        "completion",
        "edit",
        "text_completion",
        "response",
        "message",
        "thread.message",
    )
)
"""The names that a reply gives itself in `object` or `type`."""


def make_passed_on_request(scope: Event, body: bytes, bearer: str | None) -> UpstreamRequest:
    """Return the request for the upstream.

    Raises:
        RequestError: 403, the path may lead to replies; 405, the method is unusual.
    """
    path, method = scope["path"].removeprefix(PREFIX), scope["method"]
    query = scope.get("query_string", b"").decode("latin-1")
    if not (_is_harmless_path(path) and QUERY.fullmatch(query)):
        raise RequestError(
            403,
            "permission",
            "this path is not passed on: it may answer with a reply that nobody has reviewed; use "
            "the gateway's own routes",
        )
    if method not in METHODS:
        raise RequestError(405, "invalid_request", f"{method} is not passed on")
    headers = dict(scope["headers"])
    return UpstreamRequest(
        path=f"{path}?{query}" if query else path,
        body=body,
        bearer=bearer,
        method=method,
        content_type=headers.get(b"content-type", b"application/json").decode("latin-1"),
        model=_read_asked_model(body),
        repeatable=method == "GET",
    )


def describe_pass_through(path: str) -> str:
    """Say what `pass_through` would do with a path that the gateway does not answer."""
    if not path.startswith(f"{PREFIX}/"):
        return ""
    if _is_harmless_path(path.removeprefix(PREFIX)):
        return (
            "; with pass_through = true in the gateway's recipe the upstream answers it, and "
            "neither what is sent nor what comes back is reviewed or audited"
        )
    return (
        "; pass_through = true does not open it either, because its replies would reach the client "
        "without a review: send each request to /v1/chat/completions"
    )


def check_no_reply(response: UpstreamResponse) -> None:
    """Refuse a response that is a reply after all, or a stream, which could be one.

    Raises:
        RequestError: 403.
    """
    answer = _Body()
    with suppress(*UNREADABLE):
        answer = msgspec.json.decode(response.body, type=_Body)
    is_stream = "event-stream" in response.content_type.lower()
    if (
        is_stream
        or answer.choices is not None
        or {str(answer.kind), str(answer.type)} & REPLY_OBJECTS
    ):
        raise RequestError(
            403, "permission", "the upstream answered with a reply or a stream; it is not passed on"
        )


def _is_harmless_path(path: str) -> bool:
    return PATH.fullmatch(path) is not None and REPLIES.search(path) is None


class _Body(msgspec.Struct):
    kind: object = msgspec.field(default="", name="object")
    type: object = ""
    choices: object = None


class _Asked(msgspec.Struct):
    model: str = ""


def _read_asked_model(body: bytes) -> str:
    """Return the model that a request names; empty if it is not JSON, or names none."""
    try:
        return msgspec.json.decode(body, type=_Asked).model
    except UNREADABLE:
        return ""
