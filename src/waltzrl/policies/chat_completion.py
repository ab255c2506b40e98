"""Chat completions as a server spells them: whole, or as a stream that is read as far as needed."""

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TypeAlias

import msgspec

from waltzrl.policies.sse import EventDecoder
from waltzrl.records import Message

DONE = "[DONE]"
Json: TypeAlias = "str | float | bool | list[Json] | dict[str, Json] | None"


class CompletionMessage(msgspec.Struct):
    content: str | None = None


class CompletionChoice(msgspec.Struct):
    message: CompletionMessage
    finish_reason: str | None = None


class CompletionUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatCompletion(msgspec.Struct):
    choices: list[CompletionChoice]
    model: str = ""
    usage: CompletionUsage | None = None
    """None as well when the stream was left before its end, where the count stands."""
    waltzrl: msgspec.Raw = msgspec.Raw()
    """What a gateway of ours adds when it is asked to; empty from others."""


class ServerError(msgspec.Struct):
    message: str


class _Part(msgspec.Struct):
    delta: CompletionMessage = msgspec.field(default_factory=CompletionMessage)
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Part] = []
    model: str = ""
    usage: CompletionUsage | None = None
    error: ServerError | None = None


def chat_message(message: Message) -> dict[str, Json]:
    """Return a turn as a chat-completions request spells it, without empty fields."""
    turn: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    if message.role == "tool":
        turn["tool_call_id"] = message.call_id
    return turn


async def streamed(parts: AsyncIterable[bytes], enough: Callable[[str], bool]) -> ChatCompletion:
    """Gather a streamed completion until it ends, or until its text is enough.

    Args:
        parts: the body, cut anywhere.
        enough: asked with the text so far.

    Raises:
        EOFError: the stream ended before the reply did, or the server reports an error in it.
        msgspec.DecodeError: an event is no chunk of a chat completion.
    """
    text, model, finish, usage = "", "", None, None
    async for data in _events(parts):
        if data == DONE:
            finish = finish or "stop"
            break
        chunk = msgspec.json.decode(data, type=_Chunk)
        if chunk.error is not None:
            raise EOFError(chunk.error.message)
        usage, model = chunk.usage or usage, chunk.model or model
        for part in chunk.choices[:1]:
            text += part.delta.content or ""
            finish = part.finish_reason or finish
        if enough(text):
            finish = "stop"
            break
    if finish is None:
        raise EOFError("the stream ended before the reply did")
    choice = CompletionChoice(message=CompletionMessage(content=text), finish_reason=finish)
    return ChatCompletion(choices=[choice], model=model, usage=usage)


async def _events(parts: AsyncIterable[bytes]) -> AsyncIterator[str]:
    """Yield the data of each event."""
    decoder = EventDecoder()
    async for part in parts:
        for event in decoder.feed(part):
            yield event.data
