"""What the gateway's APIs share: the protocol that they satisfy, events, errors, token counts."""

from collections.abc import Sequence
from typing import Protocol

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall, total_usage
from waltzrl.serving.exchange import Answer, Api, ChatRequest, Json


class StreamWriter(Protocol):
    """Writes one stream: numbers its events and tracks what is open. Returns bytes to send."""

    def open(self) -> bytes:
        """Return what precedes all text: role chunk, `message_start` ..."""
        ...

    def keepalive(self) -> bytes:
        """Return something that clients ignore, to send while a reply is held back."""
        ...

    def text(self, choice: int, delta: str) -> bytes:
        """Return the next text of a choice; an empty string opens nothing."""
        ...

    def calls(self, choice: int, calls: Sequence[ToolCall]) -> bytes:
        """Return whole tool calls of a choice; at most once a choice, after its text."""
        ...

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Return the vendor event `waltz.retract`: what follows character `start` is replaced."""
        ...

    def finish(self, choice: int, answer: Answer) -> bytes:
        """Return the end of a choice."""
        ...

    def close(self, answers: Sequence[Answer]) -> bytes:
        """Return the end of the stream, with token counts where the API has them."""
        ...

    def error(self, error: RequestError) -> bytes:
        """Return an error in the middle of the stream, and the stream's end."""
        ...


class WireFormat(Protocol):
    """One API."""

    api: Api

    def read(self, raw: bytes, request_id: str) -> ChatRequest:
        """Read a request.

        Args:
            raw: the body as it came.
            request_id: becomes the prompt's id and the reply's.

        Raises:
            RequestError: 400, saying which field is wrong and what is needed.
        """
        ...

    def write(self, chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """Return the body of a reply that is not streamed, one answer a choice."""
        ...

    def writer(self, chat: ChatRequest) -> StreamWriter:
        """Return the writer of this request's stream."""
        ...

    def error(self, error: RequestError, request_id: str = "") -> bytes:
        """Return the body of an error; `request_id` where the API repeats it there."""
        ...


COMMENT = b": keepalive\n\n"
"""Says nothing; keeps idle timers of clients and proxies from firing."""
DONE = b"data: [DONE]\n\n"
"""The end of a stream of chat chunks."""


def event(data: bytes, name: str = "") -> bytes:
    """Spell an event whose data is one line, as JSON is."""
    if name:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
    return b"data: %b\n\n" % data


TYPES = {
    "invalid_request": ("invalid_request_error", None),
    "authentication": ("invalid_request_error", "invalid_api_key"),
    "permission": ("invalid_request_error", "permission_denied"),
    "not_found": ("invalid_request_error", "not_found"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "rate_limit": ("requests", "rate_limit_exceeded"),
}
"""Kind -> type and code; all other kinds are a `server_error` whose code is the kind."""


def error_object(error: RequestError) -> dict[str, Json]:
    """Return what stands under `error`."""
    kind, code = TYPES.get(error.kind, ("server_error", error.kind))
    return {"message": str(error), "type": kind, "param": error.param, "code": code}


def total_tokens(answers: Sequence[Answer]) -> tuple[int, int]:
    """Return the tokens read and written for all answers, their drafts included.

    The APIs have no word for an unknown count: it is 0 there.
    """
    usage = total_usage(answer.reply for answer in answers)
    return (0, 0) if usage is None else (usage.input_tokens, usage.output_tokens)


def chat_usage(answers: Sequence[Answer]) -> dict[str, int]:
    """Return the counts as chat completions spell them."""
    read, written = total_tokens(answers)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
