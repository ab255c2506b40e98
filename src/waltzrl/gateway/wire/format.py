"""What the gateway's APIs share: their protocols, server-sent events, errors, token counts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import Answer, ChatRequest, Json, total_counts
from waltzrl.gateway.keys import ANONYMOUS, Caller
from waltzrl.gateway.wire.fields import read_object
from waltzrl.records import ToolCall, estimate_usage, total_usage


class StreamWriter(Protocol):
    """Writes one stream. Each method returns bytes to send, and may update the stream's state."""

    def open(self) -> bytes:
        """Return what precedes all text: role chunk, `message_start` ..."""
        ...

    def keepalive(self) -> bytes:
        """Return bytes that clients ignore, to keep the connection open during a silence."""
        ...

    def reasoning(self, choice: int, delta: str) -> bytes:
        """Return the next reasoning of a choice, which usually precedes its text."""
        ...

    def text(self, choice: int, delta: str) -> bytes:
        """Return the next text of a choice; an empty one starts no message."""
        ...

    def refusal(self, choice: int, text: str) -> bytes:
        """Return a refusal, in its own field where the API has one."""
        ...

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Return the event `waltz.retract`: `replacement` replaces the text from `start` on."""
        ...

    def finish(self, choice: int, answer: Answer) -> bytes:
        """Return the end of a choice, after its text: tool calls, log-probabilities, the reason."""
        ...

    def close(self, answers: Sequence[Answer]) -> bytes:
        """Return the end of the stream, with token counts where the API has them."""
        ...

    def error(self, error: RequestError, request_id: str = "") -> bytes:
        """Return an error event that names the request, and the end of the stream."""
        ...


class WireFormat(Protocol):
    """One API."""

    def read(self, raw: bytes, request_id: str, caller: Caller = ANONYMOUS) -> ChatRequest:
        """Read a request.

        Args:
            raw: the body of the request.
            request_id: becomes part of the ids of the prompt and the reply.
            caller: who sent it; says what it may send, and whose its system turns are.

        Raises:
            RequestError: 400, naming the invalid field and what we need.
        """
        ...

    def write(self, chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """Return the body of a reply that is not streamed, with one answer per choice."""
        ...

    def writer(self, chat: ChatRequest) -> StreamWriter:
        """Return the writer of this request's stream."""
        ...

    def error(self, error: RequestError, request_id: str = "") -> bytes:
        """Return the body of an error, which names the request."""
        ...


COMMENT = b": keepalive\n\n"
"""A comment, which keeps the idle timers of clients and proxies from firing."""
DONE = b"data: [DONE]\n\n"
"""The end of a stream of chat chunks."""


LINE_ENDS = {
    "\x85".encode(): b"\\u0085",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}
"""The characters of a text at which many clients end a line of a stream, unlike the standard -> how
JSON escapes them."""


def escape_line_ends(data: bytes) -> bytes:
    """Return JSON, or an event of it, as one line for clients that split texts as Python does."""
    if not data.isascii():
        for character, escape in LINE_ENDS.items():
            data = data.replace(character, escape)
    return data


def encode_event(data: bytes, name: str = "") -> bytes:
    """Return a server-sent event; `data` must be encoded JSON."""
    data = escape_line_ends(data)
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
"""The type and the code of each kind; all other kinds are a `server_error` whose code is the kind.
"""


def error_object(error: RequestError) -> dict[str, Json]:
    """Return the value of `error` in an error's body."""
    kind, code = TYPES.get(error.kind, ("server_error", error.kind))
    return {
        "message": str(error),
        "type": error.error_type or kind,
        "param": error.param,
        "code": error.code or code,
    }


def encode_error(error: RequestError, request_id: str = "") -> bytes:
    """Return the body of an error in OpenAI's APIs, and beside it the id of the request."""
    named: dict[str, Json] = {"request_id": request_id} if request_id else {}
    return msgspec.json.encode({"error": error_object(error), **named})


def encode_comments(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return headers as comments of a stream of events, which clients skip."""
    return b"".join([b": %b: %b\n\n" % header for header in headers])


def total_tokens(answers: Sequence[Answer]) -> tuple[int, int]:
    """Return the tokens read and generated for all answers, drafts included.

    The APIs cannot express an unknown count, so it is 0.
    """
    usage = total_usage(answer.reply for answer in answers)
    return (0, 0) if usage is None else (usage.input_tokens, usage.output_tokens)


def chat_usage(answers: Sequence[Answer]) -> dict[str, Json]:
    """Return the token counts in the format of chat completions."""
    read, generated = total_tokens(answers)
    return {
        "prompt_tokens": read,
        "completion_tokens": generated,
        "total_tokens": read + generated,
        **{name: {**part} for name, part in _total_token_details(answers).items()},
    }


def arguments_of(call: ToolCall) -> str:
    """Return the arguments of a call; an empty object if the model wrote none."""
    return "{}" if call.arguments.strip() in ("", "null") else call.arguments


def count_of(answers: Sequence[Answer], part: str, key: str) -> int:
    """Return one of the parts of the token counts, such as `cached_tokens`; 0 when unknown."""
    return _total_token_details(answers).get(part, {}).get(key, 0)


def _total_token_details(answers: Sequence[Answer]) -> Mapping[str, Mapping[str, int]]:
    return total_counts([answer.details.usage for answer in answers])


def estimate_input(chat: ChatRequest) -> int:
    """Estimate the tokens of all turns and tools by their characters; images count for nothing."""
    turns = "".join(message.full_text for message in chat.prompt.messages)
    tools = msgspec.json.encode(chat.body["tools"]).decode() if "tools" in chat.body else ""
    return estimate_usage(turns + tools, "", chat.model).input_tokens


def call_input(call: ToolCall) -> Json:
    """Return the arguments as the object that some APIs require.

    If the model generated no valid object, its text is returned under `unreadable`, so that the
    tool refuses it and the model sees why. The free text of a custom tool is its `input`.
    """
    if call.kind == "custom":
        return {"input": call.arguments}
    try:
        return read_object(arguments_of(call).encode())
    except RequestError:
        return {"unreadable": call.arguments}
