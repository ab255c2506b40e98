"""OpenAI's chat completions, whole or as a stream that is read only as far as needed."""

import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence

import msgspec

from waltzrl.policies.sse import EventDecoder
from waltzrl.records import Message, ToolCall
from waltzrl.telemetry.files import Json as Json

DONE = "[DONE]"


class CompletionMessage(msgspec.Struct):
    content: str | None = None


class TokenCandidate(msgspec.Struct):
    token: str = ""
    logprob: float = 0.0


class TokenLogprobs(TokenCandidate):
    top_logprobs: list[TokenCandidate] | None = None


class CompletionLogprobs(msgspec.Struct):
    content: list[TokenLogprobs] | None = None


class CompletionChoice(msgspec.Struct):
    message: CompletionMessage
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None

    @property
    def tokens(self) -> Iterator[tuple[str, list[tuple[str, float]]]]:
        """Yield each token and the candidates for its place with their probabilities."""
        content = self.logprobs.content if self.logprobs is not None else None
        for chosen in content or ():
            candidates = {
                chosen.token: chosen,
                **{top.token: top for top in chosen.top_logprobs or ()},
            }
            yield (
                chosen.token,
                [(token, math.exp(top.logprob)) for token, top in candidates.items()],
            )


class CompletionUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatCompletion(msgspec.Struct):
    choices: list[CompletionChoice]
    model: str = ""
    system_fingerprint: str | None = None
    usage: CompletionUsage | None = None
    """Also None if the stream was closed before its last chunk, which has the counts."""
    waltzrl: msgspec.Raw = msgspec.Raw()
    """The extension of a waltzrl gateway; empty from other servers."""


class TextLogprobs(msgspec.Struct):
    """The log-probabilities of a text completion: [T] tokens and the candidates for each place."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None

    @property
    def as_chat(self) -> CompletionLogprobs:
        tops = self.top_logprobs or [None] * len(self.tokens)
        return CompletionLogprobs(
            content=[
                TokenLogprobs(
                    token=token,
                    logprob=0.0 if logprob is None else logprob,
                    top_logprobs=[TokenCandidate(*one) for one in (top or {}).items()],
                )
                for token, logprob, top in zip(self.tokens, self.token_logprobs, tops, strict=True)
            ]
        )


class TextChoice(msgspec.Struct):
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None


class TextCompletion(msgspec.Struct):
    """The answer of `/completions`."""

    choices: list[TextChoice]
    model: str = ""
    system_fingerprint: str | None = None
    usage: CompletionUsage | None = None

    @property
    def as_chat(self) -> ChatCompletion:
        """The same as a chat completion."""
        choices = [
            CompletionChoice(
                message=CompletionMessage(content=choice.text),
                finish_reason=choice.finish_reason,
                logprobs=None if choice.logprobs is None else choice.logprobs.as_chat,
            )
            for choice in self.choices
        ]
        return ChatCompletion(
            choices=choices,
            model=self.model,
            system_fingerprint=self.system_fingerprint,
            usage=self.usage,
        )


class ServerError(msgspec.Struct):
    message: str


class _Delta(msgspec.Struct):
    delta: CompletionMessage = msgspec.field(default_factory=CompletionMessage)
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Delta] = []
    model: str = ""
    usage: CompletionUsage | None = None
    error: ServerError | None = None


def with_system_text(messages: Sequence[Json], text: str) -> list[Json]:
    """Append a text to the system message that a request begins with, or begin it with one.

    Most chat templates accept one system message, at the beginning.
    """
    first = messages[0]
    if not (isinstance(first, dict) and first.get("role") in ("system", "developer")):
        return [{"role": "system", "content": text}, *messages]
    content = first.get("content")
    if isinstance(content, list):
        return [{**first, "content": [*content, {"type": "text", "text": text}]}, *messages[1:]]
    above = f"{content}\n\n" if content else ""
    return [{**first, "content": f"{above}{text}"}, *messages[1:]]


def chat_message(message: Message) -> dict[str, Json]:
    """Return a turn in the format of a chat-completions request, without empty fields."""
    turn: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.images:
        images: list[Json] = [
            {"type": "image_url", "image_url": {"url": url}} for url in message.images
        ]
        turn["content"] = [{"type": "text", "text": message.content}, *images]
    turn |= calls_fields(message.calls)
    if message.role == "tool":
        turn["tool_call_id"] = message.call_id
    return turn


def calls_fields(calls: Sequence[ToolCall]) -> dict[str, Json]:
    """Return the fields of an assistant's message that hold these calls; none without calls."""
    fields: dict[str, Json] = {}
    if listed := [_call(call) for call in calls if call.kind != "function_call"]:
        fields["tool_calls"] = [*listed]
    for call in calls:
        if call.kind == "function_call":  # a message has one
            fields["function_call"] = {"name": call.name, "arguments": call.arguments}
    return fields


def _call(call: ToolCall) -> dict[str, Json]:
    if call.kind == "custom":
        custom: Json = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function: Json = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


async def streamed(parts: AsyncIterable[bytes], enough: Callable[[str], bool]) -> ChatCompletion:
    """Read a streamed completion until it ends, or until its text is enough.

    Args:
        parts: the body in pieces of any size.
        enough: called with the text so far.

    Raises:
        EOFError: the stream is incomplete, or the server reports an error in it.
        msgspec.DecodeError: an event is not a chunk of a chat completion.
    """
    text, model, finish, usage = "", "", None, None
    tokens: list[TokenLogprobs] = []
    async for data in _events(parts):
        if data == DONE:
            finish = finish or "stop"
            break
        chunk = msgspec.json.decode(data, type=_Chunk)
        if chunk.error is not None:
            raise EOFError(chunk.error.message)
        usage, model = chunk.usage or usage, chunk.model or model
        for choice in chunk.choices[:1]:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            if choice.logprobs is not None:
                tokens += choice.logprobs.content or ()
        if enough(text):
            finish = "stop"
            break
    if finish is None:
        raise EOFError("the stream ended before the reply did")
    message = CompletionMessage(content=text)
    logprobs = CompletionLogprobs(content=tokens)
    choices = [CompletionChoice(message=message, finish_reason=finish, logprobs=logprobs)]
    return ChatCompletion(choices=choices, model=model, usage=usage)


async def _events(parts: AsyncIterable[bytes]) -> AsyncIterator[str]:
    """Yield the data of each event."""
    decoder = EventDecoder()
    async for part in parts:
        for event in decoder.feed(part):
            yield event.data
