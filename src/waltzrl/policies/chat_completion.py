"""OpenAI's chat completions, whole or as a stream that is read only as far as needed."""

import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from waltzrl.foundation.files import Json as Json
from waltzrl.policies.server_faults import check_reported
from waltzrl.policies.server_json import (
    TextJoiner,
    mend_json,
    read_count,
    read_json,
    tidy_completion,
)
from waltzrl.policies.sse import EventDecoder, ServerSentEvent, says_nothing
from waltzrl.records import Message, ToolCall, Usage

DONE = "[DONE]"
Read = TypeVar("Read")


class CompletionMessage(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    """What models of OpenAI say in the place of a content when they refuse."""

    @property
    def text(self) -> str:
        return self.content or self.refusal or ""


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
            # The chosen token may be among the likeliest too, and must count once.
            candidates = {
                chosen.token: chosen,
                **{top.token: top for top in chosen.top_logprobs or ()},
            }
            yield (
                chosen.token,
                [(token, math.exp(top.logprob)) for token, top in candidates.items()],
            )


class CompletionUsage(msgspec.Struct):
    prompt_tokens: object = None
    completion_tokens: object = None

    def as_usage(self, model: str) -> Usage | None:
        """Return the counts; None if one is unknown."""
        read, generated = read_count(self.prompt_tokens), read_count(self.completion_tokens)
        if read is None or generated is None or read == generated == 0:  # it has not counted
            return None
        return Usage(input_tokens=read, output_tokens=generated, model=model)


class ChatCompletion(msgspec.Struct):
    choices: list[CompletionChoice]
    model: str = ""
    system_fingerprint: str | None = None
    usage: CompletionUsage | None = None
    """The token counts; also None if the stream was closed before its last chunk, which has them.
    """
    error: object = None
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
    text: str = ""
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


class _Delta(msgspec.Struct):
    delta: CompletionMessage | None = None
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Delta] = []
    model: str = ""
    usage: CompletionUsage | None = None


COMPLETIONS = msgspec.json.Decoder(ChatCompletion)


def read_chat_completion(answer: bytes) -> ChatCompletion:
    """Read the answer of `/chat/completions`.

    Raises:
        ReportedError: it is the report of a failure.
        ValueError: it is something else; or `RecursionError`.
    """
    try:
        completion = COMPLETIONS.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        completion = None
    if (
        completion is not None
        and completion.choices
        and completion.error is None
        # Counts may have other names.
        and (completion.usage is None or completion.usage.prompt_tokens is not None)
    ):
        return completion
    body = read_json(answer)
    check_reported(body)
    return _read_tidied(body, ChatCompletion)


def read_text_completion(answer: bytes) -> ChatCompletion:
    """Read the answer of `/completions`.

    Raises:
        ReportedError: it is the report of a failure.
        ValueError: it is something else; or `RecursionError`.
    """
    body = read_json(answer)
    check_reported(body)
    return msgspec.convert(mend_json(body), TextCompletion).as_chat


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
    if listed := [_write_call_fields(call) for call in calls if call.kind != "function_call"]:
        fields["tool_calls"] = [*listed]
    for call in calls:
        if call.kind == "function_call":  # a message has one
            fields["function_call"] = {"name": call.name, "arguments": call.arguments}
    return fields


def _write_call_fields(call: ToolCall) -> dict[str, Json]:
    if call.kind == "custom":
        custom: Json = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function: Json = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


async def read_streamed_completion(
    parts: AsyncIterable[bytes], enough: Callable[[str], bool]
) -> ChatCompletion:
    """Read a streamed completion until it ends, or until its text is enough.

    Args:
        parts: the body in pieces of any size.
        enough: called with the text so far.

    Raises:
        EOFError: the stream is incomplete.
        ReportedError: the server reports a failure in it.
        ValueError: an event is not a chunk of a chat completion; or `RecursionError`.
    """
    text, model, finish, usage = "", "", None, None
    joiner, tokens = TextJoiner(), list[TokenLogprobs]()
    async for event in _decode_events(parts):
        data = event.data.strip()
        if data == DONE:
            # Some servers end a stream without a reason to finish.
            finish = finish or "stop"
            break
        if says_nothing(event):
            continue
        body = read_json(data)
        check_reported(body, event.name)
        chunk = _read_tidied(body, _Chunk)
        usage, model = chunk.usage or usage, chunk.model or model
        for choice in chunk.choices[:1]:
            text += joiner.add(choice.delta.text if choice.delta else "")
            finish = choice.finish_reason or finish
            if choice.logprobs is not None:
                tokens += choice.logprobs.content or ()
        if enough(text):
            finish = "stop"
            break
    if finish is None:
        raise EOFError("the stream ended before the reply did")
    message = CompletionMessage(content=text + joiner.end())
    logprobs = CompletionLogprobs(content=tokens)
    choices = [CompletionChoice(message=message, finish_reason=finish, logprobs=logprobs)]
    return ChatCompletion(choices=choices, model=model, usage=usage)


async def _decode_events(parts: AsyncIterable[bytes]) -> AsyncIterator[ServerSentEvent]:
    decoder = EventDecoder()
    async for part in parts:
        for event in decoder.feed(part):
            yield event


def _read_tidied(body: object, kind: type[Read]) -> Read:
    """Read what has another form than usual; malformed log-probabilities count as absent."""
    fields = tidy_completion(body)
    if "waltzrl" in fields:
        fields["waltzrl"] = msgspec.Raw(msgspec.json.encode(fields["waltzrl"]))
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        choices = fields["choices"]
        assert isinstance(choices, list), "it is tidy"
        for choice in choices:
            choice.pop("logprobs", None)
        return msgspec.convert(fields, kind)
