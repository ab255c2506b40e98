"""Reads what the servers of models say about their failures, in an error or in an answer of 200."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from waltzrl.policies.server_json import encode_json, mend_json, read_json
from waltzrl.policies.sse import EventDecoder

NO_MESSAGE = "no message"
RETRY_AFTER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
LONGEST_WAIT = 999_999.0
"""The seconds to wait, at most about 11 days."""
STATUSES = {
    400: "badrequest invalidargument invalidparameter invalidrequest contextlengthexceeded",
    401: "authentication invalidapikey unauthenticated unauthorized",
    403: "forbidden permission permissiondenied",
    404: "modelnotfound notfound",
    408: "requesttimeout",
    413: "requesttoolarge",
    429: "insufficientquota ratelimit ratelimited ratelimitexceeded resourceexhausted"
    " toomanyrequests",
    500: "api internal internalserver server",
    503: "overloaded serviceunavailable unavailable",
    504: "deadlineexceeded timeout",
}
"""The statuses -> the words that servers use for them as a code or a type, without separators."""
MESSAGES = (
    *("message", "Message", "error_message", "errorMessage", "msg", "error_msg", "status_msg"),
    "detail",
)
"""The keys under which servers say why they fail."""
CODES = ("code", "status", "status_code", "error_code", "type")
"""The keys under which they have a status or a code."""
STATUS_OF = {word: status for status, words in STATUSES.items() for word in words.split()}


def read_wait(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the headers of an answer ask to wait; None if they do not say.

    Azure's servers also write it in milliseconds, some of them only so.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if RETRY_AFTER.fullmatch(headers.get(name, "")):
            return float(headers[name]) / 1000
    return read_retry_after(headers.get("retry-after", ""))


def read_retry_after(text: str) -> float | None:
    """Read `Retry-After`, a number of seconds or a date; None if it is neither."""
    if RETRY_AFTER.fullmatch(text):
        return float(text)
    try:
        seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        return min(max(0.0, seconds), LONGEST_WAIT)
    except (ValueError, TypeError, OverflowError):  # also a date without a zone
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFault:
    """What a server says about a failure."""

    message: str
    labels: Mapping[str, str]
    """The values of its `type`, `code` and `param` that it gives."""
    status: int | None = None
    """The HTTP status that it names or means; None if it does neither."""
    retry_after_seconds: float | None = None


class ReportedError(Exception):
    """A failure that a server reports in an answer whose status is 200."""

    def __init__(self, fault: ServerFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def read_fault(answer: bytes) -> ServerFault:
    """Read the body of an error, which may be the event of a stream."""
    events = EventDecoder().feed(answer + b"\n\n")
    for text in [answer, *[event.data.encode() for event in events]]:
        with suppress(ValueError, RecursionError):
            return _read_server_fault(mend_json(read_json(text)))
    return ServerFault(message=answer.decode("utf-8", "replace").strip() or NO_MESSAGE, labels={})


def check_reported(body: object, event: str = "") -> None:
    """Check that an answer with status 200, or an event of a stream, reports no failure.

    Args:
        body: the answer, decoded.
        event: the name of the event.

    Raises:
        ReportedError: it reports one.
    """
    if isinstance(body, list) and len(body) == 1:  # Google wraps its errors so
        body = body[0]
    if not isinstance(body, dict):
        return
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    # OpenRouter reports a failure of the model within the choice.
    if isinstance(first, dict) and says_something(first.get("error")):
        raise ReportedError(_read_server_fault(mend_json({"error": first["error"]})))
    if (
        says_something(body.get("error"))
        # A name of an event; the `object` of older versions of vLLM; the `type` of Anthropic.
        or "error" in (event, body.get("object"), body.get("type"))
        or (choices is None and _is_bare_error(body))
    ):
        raise ReportedError(_read_server_fault(mend_json(body)))


def says_something(error: object) -> bool:
    """Return whether the value of `error` is one: many servers send an empty one with success."""
    return any(map(says_something, error.values())) if isinstance(error, dict) else bool(error)


def _is_bare_error(body: Mapping[str, object]) -> bool:
    """Return whether an object without choices is an error without the key `error`."""
    if body.get("detail") or _minimax_error(body) is not None:
        return True
    codes = [body[key] for key in ("code", "status_code", "error_code") if body.get(key)]
    fails = (
        body.get("success") is False
        or _find_status(body) is not None
        or not str((codes or [200])[0]).startswith("2")
    )
    has_message = any(isinstance(body.get(key), str) for key in MESSAGES)
    return fails and (has_message or bool(body.get("errors")))


def _minimax_error(body: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the error in an answer of MiniMax, which has the code 0 with success."""
    state = body.get("base_resp")
    return state if isinstance(state, dict) and state.get("status_code") else None


def _read_server_fault(body: object) -> ServerFault:
    """Read an error.

    OpenAI and Anthropic have it below `error`, Cloudflare has a list in `errors`, older versions of
    vLLM have it at the top; FastAPI has `detail` only.
    """
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    outer = body if isinstance(body, dict) else {}
    error = outer.get("error") or outer.get("errors") or _minimax_error(outer) or body
    if isinstance(error, list) and error and isinstance(error[0], dict):
        error = error[0]
    if isinstance(error, dict) and isinstance(error.get("error"), dict):  # of another server
        error = error["error"]
    if not isinstance(error, dict):
        return ServerFault(message=_write_text(error), labels={}, status=_find_status(outer))
    messages = [_write_text(error[key]) for key in MESSAGES if error.get(key)][:1]
    messages += filter(None, [_read_providers_words(error)])
    return ServerFault(
        message=": ".join(dict.fromkeys(messages)) or NO_MESSAGE,
        labels={
            name: _write_text(error[name]) for name in ("type", "code", "param") if error.get(name)
        },
        status=_find_status(error) or _find_status(outer),
        retry_after_seconds=_find_retry_after(outer, error),
    )


def _read_providers_words(error: Mapping[str, object]) -> str:
    """Return what the server behind OpenRouter said, which itself says only that there is an error.

    They may be a text, or an error as that server wrote it.
    """
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if not raw:
        return ""
    fault = read_fault(raw.encode()) if isinstance(raw, str) else _read_server_fault(raw)
    return fault.message


def _find_status(error: Mapping[str, object]) -> int | None:
    """Return the status that an error names as a number, or means by a word."""
    values = [error.get(key) for key in CODES]
    # A number goes first, wherever it stands: Google sends one beside a word of its own.
    for value in values:
        if isinstance(value, int | float | str) and re.fullmatch(r"[45]\d\d(\.0)?", str(value)):
            return int(float(value))
    for value in values:
        word = re.sub(r"[^a-z]", "", str(value).lower()).removesuffix("error")
        if word in STATUS_OF:
            return STATUS_OF[word]
    return None


def _find_retry_after(*errors: Mapping[str, object]) -> float | None:
    """Return how long the client is asked to wait."""
    for name, value in (pair for error in errors for pair in _yield_fields(error)):
        seconds = str(value).removesuffix("s")  # Google's servers write a unit
        is_wait = name in ("retryafter", "retryafterseconds", "retrydelay")
        if is_wait and RETRY_AFTER.fullmatch(seconds):
            return float(seconds)
    return None


def _yield_fields(error: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the fields of an error, those of its `metadata`, `headers` and `details` too."""
    for key, value in error.items():
        if key in ("metadata", "headers", "details"):
            for part in value if isinstance(value, list) else [value]:
                yield from _yield_fields(part) if isinstance(part, dict) else ()
        yield re.sub(r"[^a-z]", "", key.lower()), value


def _write_text(value: object) -> str:
    return value if isinstance(value, str) else encode_json(value)
