"""Reading what a chat-completions server says, at once or as a stream."""

from collections.abc import Iterator, Mapping

import msgspec

from waltzrl.errors import RequestError
from waltzrl.records import Reply, ToolCall
from waltzrl.serving.exchange import Completion, Delta, Finish, Json

FINISHES: Mapping[object, Finish] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}
TOP_KEYS = frozenset(
    ["id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"]
)
CHOICE_KEYS = frozenset(["index", "message", "logprobs", "finish_reason", "stop_reason"])
MESSAGE_KEYS = frozenset(["role", "content", "tool_calls", "refusal"])
"""What is read, or carries no words of its own; a reply with more is not passed on as bytes."""


def read_completion(answer: bytes, milliseconds: float) -> Completion:
    """Read a chat completion; its bytes are kept when nothing in them escaped the reading.

    Raises:
        RequestError: it is not a chat completion.
    """
    try:
        found = msgspec.json.decode(answer)
        choice = found["choices"][0]
        message = choice["message"]
        calls = tuple(_call(one) for one in message.get("tool_calls") or ())
        words = message.get("content") or message.get("refusal") or ""
        usage = found.get("usage") or {}
        finish = FINISHES.get(choice.get("finish_reason"), "stop")
        reply = Reply(
            text=_string(words),
            calls=calls,
            finish="length" if finish == "length" else "stop",
            prompt_tokens=_count(usage.get("prompt_tokens")),
            reply_tokens=_count(usage.get("completion_tokens")),
            milliseconds=milliseconds,
        )
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise RequestError(
            502, "upstream", "the upstream's reply is not a chat completion"
        ) from error
    whole = (
        len(found["choices"]) == 1
        and found.keys() <= TOP_KEYS
        and choice.keys() <= CHOICE_KEYS
        and {key for key, value in message.items() if value} <= MESSAGE_KEYS
        and not (message.get("content") and message.get("refusal"))
    )
    return Completion(reply=reply, finish=finish, raw=answer if whole else None)


class StreamReader:
    """Reads the events of one stream; calls come out whole, with the last delta."""

    def __init__(self) -> None:
        self.ended = False
        """The server said that its reply is complete."""
        self._calls: dict[int, ToolCall] = {}

    def read(self, data: str) -> Iterator[Delta]:
        """Yield what an event says.

        Raises:
            RequestError: it is not a chunk of a chat completion, or the server reports an error.
        """
        if data.strip() == "[DONE]":
            self.ended = True
            return
        try:
            chunk = CHUNKS.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RequestError(502, "upstream", "the upstream's stream cannot be read") from error
        if chunk.error is not None:
            raise RequestError(
                502, "upstream", f"the upstream failed: {server_message(data.encode())}"
            )
        if chunk.usage is not None:
            yield Delta(
                prompt_tokens=chunk.usage.prompt_tokens, reply_tokens=chunk.usage.completion_tokens
            )
        for choice in chunk.choices[:1]:
            yield from self._choice(choice)

    def _choice(self, choice: "_Choice") -> Iterator[Delta]:
        if choice.delta is not None:
            for part in choice.delta.tool_calls or ():
                self._gather(part)
            if words := choice.delta.content or choice.delta.refusal:
                yield Delta(text=words)
        if choice.finish_reason:
            self.ended = True
            finish = FINISHES.get(choice.finish_reason, "stop")
            yield Delta(calls=tuple(self._calls.values()), finish=finish)

    def _gather(self, part: "_CallPart") -> None:
        before = self._calls.get(part.index, ToolCall(id="", name="", arguments=""))
        said = part.function or _Function()
        self._calls[part.index] = ToolCall(
            id=part.id or before.id,
            name=said.name or before.name,
            arguments=before.arguments + (said.arguments or ""),
        )


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallPart(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Words(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPart] | None = None


class _Choice(msgspec.Struct):
    delta: _Words | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw | None = None


CHUNKS = msgspec.json.Decoder(_Chunk)


def server_message(answer: bytes) -> str:
    """Return the server's own words about its failure, shortened."""
    try:
        found = msgspec.json.decode(answer)
        error = found["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:300]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return answer[:200].decode("utf-8", "replace").strip() or "no message"


def _call(found: Mapping[str, Json]) -> ToolCall:
    function = found["function"]
    assert isinstance(function, dict)
    return ToolCall(
        id=_string(found.get("id") or ""),
        name=_string(function["name"]),
        arguments=_string(function.get("arguments") or ""),
    )


def _string(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _count(value: Json) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
