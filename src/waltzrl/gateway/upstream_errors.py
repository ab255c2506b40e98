"""What the client is told when the upstream refuses or fails."""

from collections.abc import Mapping

from waltzrl.collaboration import Reviewer
from waltzrl.errors import RequestError, WaltzError
from waltzrl.gateway.http_client import Connection
from waltzrl.policies.server_faults import NO_MESSAGE, ServerFault, read_fault, read_wait
from waltzrl.policies.system_first import LATE_SYSTEM
from waltzrl.records import Prompt, Reply

PASSED_ON = {400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 415, 422, 429, 451, 498}
"""The statuses that the client gets as they are. Other failures become 502, except 501 and 503."""
DOWN = {502, 503, 504, *range(520, 525), 529, 530}
"""The statuses of a proxy whose server is away, Cloudflare's among them, or of a server that cannot
serve now, which some call 529."""
KINDS = {
    401: "authentication",
    403: "permission",
    404: "not_found",
    408: "upstream_timeout",
    413: "too_large",
    429: "rate_limit",
}
LONGEST_MESSAGE = 300
LONGEST_LABEL = 100
"""The most characters of a code, a type or a parameter."""
HIDDEN = "[key]"
"""The mark that stands for the gateway's key in a message."""
MASKS, KEY_EDGE = ("***", "...", "\u2026", "\u2022\u2022"), 4
"""The marks that servers write for the middle of a key, and how many characters of its ends they
show.
"""


class UpstreamError(RequestError):
    """A request that the upstream refused or failed to answer."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        is_down: bool = False,
        labels: Mapping[str, str] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Describe the failure.

        Args:
            status: as in `RequestError`, and so are `kind`, `message` and `retry_after_seconds`.
            is_down: the upstream cannot be reached, or says that it cannot serve.
            labels: the upstream's own type, code and parameter.
        """
        labels = labels or {}
        param = labels.get("param")
        super().__init__(
            status, kind, message, param=param, retry_after_seconds=retry_after_seconds
        )
        self.code, self.error_type = labels.get("code"), labels.get("type")
        self.is_down = is_down
        self.refusal = ""
        """The upstream's words if it refuses a request for what is in it. They are not told."""
        self.unreviewed = ""
        """The upstream's words, if they may quote the reply that was being generated: they are
        told only after a review."""

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed soon."""
        return self.is_down or (self.status == 429 and self.retry_after_seconds is not None)


class BreakerOpenError(UpstreamError):
    """No request was sent, because the last ones failed."""

    def __init__(self, open_seconds: float) -> None:
        super().__init__(
            503,
            "upstream",
            "the upstream could not be reached several times; no request is sent for now",
            is_down=True,
            retry_after_seconds=open_seconds,
        )

    @property
    def is_transient(self) -> bool:
        return False


async def add_reason(failure: RequestError, prompt: Prompt, reviewer: Reviewer) -> None:
    """Add the upstream's own words, which nobody has reviewed yet, if they pass the review."""
    if not isinstance(failure, UpstreamError) or not failure.unreviewed:
        return
    try:
        feedback = await reviewer.review(prompt, Reply(text=failure.unreviewed))
    except WaltzError:
        return
    if feedback.well_formed and not feedback.unsafe:
        failure.args = (f"{failure}: {failure.unreviewed}",)
    failure.unreviewed = ""


def connection_error(error: OSError) -> UpstreamError:
    """Return the error for a connection that failed or timed out."""
    if isinstance(error, TimeoutError):
        return UpstreamError(504, "upstream_timeout", f"the upstream sent nothing for {error}")
    message = f"the connection to the upstream failed: {error}"
    return UpstreamError(502, "upstream", message, is_down=True)


def status_error(response: Connection, answer: bytes, api_key: str | None) -> UpstreamError:
    """Return the error for a response that is not a success.

    The upstream's message, type, code and parameter are kept when the client can do something
    about them. A failure of the server itself may quote the reply that was being generated, which
    nobody has reviewed, so of it only the status is told.

    Args:
        response: its status and headers.
        answer: its body.
        api_key: the gateway's key for the upstream, which no message may contain.
    """
    return _make_upstream_error(response.status, read_fault(answer), response, api_key)


def reported_error(fault: ServerFault, response: Connection, api_key: str | None) -> UpstreamError:
    """Return the error for a failure that is reported in an answer with status 200.

    It is the error of an answer with the status that the report names or means. Without one, or
    with that of a failure of the server itself, the upstream's words await a review.

    Args:
        fault: the report.
        response: its headers.
        api_key: as in `status_error`.
    """
    if fault.status is not None:
        error = _make_upstream_error(fault.status, fault, response, api_key)
    else:
        message = "the upstream failed while generating its reply"
        error = UpstreamError(502, "upstream", message)
    if fault.status not in PASSED_ON and fault.message != NO_MESSAGE:
        error.unreviewed = _hide_api_key(fault.message, api_key, LONGEST_MESSAGE)
    return error


def _make_upstream_error(
    answered: int, fault: ServerFault, response: Connection, api_key: str | None
) -> UpstreamError:
    """Return the error of an answer with this status."""
    status = answered if answered in PASSED_ON or answered in (501, 503) else 502
    kind = KINDS.get(status, "invalid_request" if status < 500 else "upstream")
    retry_after = read_wait(response.headers)
    is_passed_on = answered in PASSED_ON
    message = f": {_hide_api_key(fault.message, api_key, LONGEST_MESSAGE)}" if is_passed_on else ""
    labels = fault.labels if is_passed_on else {}
    error = UpstreamError(
        status,
        kind,
        f"the upstream answered {answered}{message}",
        is_down=answered in DOWN,
        labels={
            name: _hide_api_key(label, api_key, LONGEST_LABEL) for name, label in labels.items()
        },
        retry_after_seconds=fault.retry_after_seconds if retry_after is None else retry_after,
    )
    # llama.cpp and Ollama answer 500 to what a model's template refuses.
    words = fault.message[:LONGEST_MESSAGE]
    if answered in (400, 422) or (answered == 500 and LATE_SYSTEM.search(words)):
        error.refusal = words
    return error


def _hide_api_key(text: str, api_key: str | None, longest: int) -> str:
    """Shorten a text of the upstream; hide the gateway's key, whole or with a masked middle."""
    if not api_key:
        return text[:longest]
    ends = (api_key[:KEY_EDGE], api_key[-KEY_EDGE:])
    # Hidden before the text is cut, or a part of the key could remain.
    words = text.replace(api_key, HIDDEN)[:longest].split(" ")
    return " ".join(
        HIDDEN if any(mask in word for mask in MASKS) and any(end in word for end in ends) else word
        for word in words
    )
