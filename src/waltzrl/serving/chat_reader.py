"""Reads the replies of a chat-completions server, whole or streamed."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeGuard, get_args

import msgspec

from waltzrl.errors import RequestError
from waltzrl.records import Reply, ToolCall, Usage
from waltzrl.serving.exchange import (
    Finish,
    ReplyDetails,
    TokenLogprob,
    UpstreamDelta,
    UpstreamReply,
)

FINISHES: Mapping[object, Finish] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised for bytes that are not JSON, or are JSON of the wrong shape."""


def read_completion(answer: bytes, milliseconds: float) -> UpstreamReply:
    """Read a chat completion, and keep its bytes when every field in them was read.

    The bytes go to the client unchanged only if the review covered all text in them. A field that
    the gateway does not know could carry text that nobody reviewed, so such a reply is written
    anew from the fields that were read.

    Args:
        answer: the body of the upstream's response.
        milliseconds: wall time of the request.

    Raises:
        RequestError: 502, it is not a chat completion.
    """
    # The strict decoder fails on any unknown field; most replies pass it, and are decoded once.
    try:
        return _completion(WHOLE.decode(answer), milliseconds, answer)
    except msgspec.ValidationError:
        pass
    except UNREADABLE as error:
        raise _unreadable() from error
    try:
        return _completion(LENIENT.decode(answer), milliseconds, None)
    except UNREADABLE as error:
        raise _unreadable() from error


def _completion(
    completion: "_Whole | _Lenient", milliseconds: float, answer: bytes | None
) -> UpstreamReply:
    if not completion.choices:
        raise _unreadable()
    choice = completion.choices[0]
    message = choice.message
    finish = FINISHES.get(choice.finish_reason, "stop")
    reply = Reply(
        text=message.content or message.refusal or "",
        reasoning=message.reasoning or message.reasoning_content or "",
        calls=tuple([_call(call) for call in message.tool_calls or ()]),
        finish="length" if finish == "length" else "stop",
        usage=_usage(completion.usage, completion.model),
        milliseconds=milliseconds,
    )
    details = _details(completion, _logprobs(choice))
    reasoning, other = message.reasoning, message.reasoning_content
    twice = (message.content and message.refusal) or (reasoning and other and reasoning != other)
    unread = twice or len(completion.choices) > 1
    if answer and (unread or not spells(details.logprobs, reply.text) or repeats_a_key(answer)):
        answer = None
    return UpstreamReply(reply=reply, finish=finish, raw=answer, details=details)


def spells(tokens: Sequence[TokenLogprob] | None, text: str) -> bool:
    """Return whether the tokens, if any are known, spell `text` and nothing else.

    They may end with a token that has a special meaning.
    """
    if tokens is None:
        return True
    written = [t.token.encode() if t.bytes is None else bytes(t.bytes) for t in tokens]
    if tokens and SPECIAL_TOKEN.fullmatch(tokens[-1].token):
        written.pop()
    return b"".join(written) == text.encode() and all(map(_is_consistent, tokens))


SPECIAL_TOKEN = re.compile(r"<[\w|/]{1,32}>")
"""A token with a special meaning, such as `<|im_end|>`."""


def _is_consistent(token: TokenLogprob) -> bool:
    """Return whether the token's name says no more than its bytes."""
    if token.bytes is None:
        return True
    try:
        return bytes(token.bytes).decode() == token.token
    except UnicodeDecodeError:  # a part of a character; its name is an escape or a placeholder
        return len(token.token) <= len("\\xff") * len(token.bytes)


def _details(
    completion: "_Whole | _Lenient | _Chunk", logprobs: Sequence[TokenLogprob] | None
) -> ReplyDetails:
    created, usage = completion.created, completion.usage
    fingerprint, tier = completion.system_fingerprint, completion.service_tier
    return ReplyDetails(
        created=int(created) if isinstance(created, int | float) else None,
        system_fingerprint=fingerprint if _is_name(fingerprint) else None,
        service_tier=tier if _is_name(tier) else None,
        logprobs=None if logprobs is None else tuple(logprobs),
        usage={} if usage is None else _usage_details(usage),
    )


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def _logprobs(choice: "_WholeChoice | _LenientChoice | _Choice") -> list[TokenLogprob] | None:
    """Return the log-probabilities of a choice; None without any, or if they are malformed."""
    logprobs = choice.logprobs
    if isinstance(logprobs, msgspec.Raw):
        try:
            logprobs = LOGPROBS.decode(logprobs or b"null")
        except UNREADABLE:
            return None
    return None if logprobs is None else logprobs.content


def _usage_details(usage: "_Usage") -> Mapping[str, Mapping[str, int]]:
    parts = {
        "prompt_tokens_details": usage.prompt_tokens_details,
        "completion_tokens_details": usage.completion_tokens_details,
    }
    return {name: _counts(part) for name, part in parts.items() if isinstance(part, dict)}


def _counts(part: Mapping[object, object]) -> dict[str, int]:
    return {
        name: count for name in COUNTED if isinstance(count := part.get(name), int) and count >= 0
    }


CountedName = Literal[
    "cached_tokens",
    "audio_tokens",
    "text_tokens",
    "image_tokens",
    "reasoning_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
]
"""A part of a token count that is passed on; any other name could be text."""
COUNTED: tuple[CountedName, ...] = get_args(CountedName)


def repeats_a_key(answer: bytes) -> bool:
    """Return whether an object has a key twice: a client may read the value that we did not."""
    # Most replies have no key twice, in whichever objects, and none with an escape in its name.
    keys = KEY.findall(answer)
    if len(set(keys)) == len(keys) == len(KEY_END.findall(answer)):
        return False
    try:
        UNIQUE_KEYS.decode(answer.decode())
    except ValueError:
        return True
    return False


def _require_unique_keys(pairs: Sequence[tuple[str, object]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError


KEY = re.compile(rb'"([^"\\]{0,64}+)"[ \t\r\n]*+:')  # `+`: without going back, which is slow
KEY_END = re.compile(rb'"[ \t\r\n]*+:')
"""The end of every key, and perhaps of a quotation within a string."""
UNIQUE_KEYS = json.JSONDecoder(object_pairs_hook=_require_unique_keys)


def _unreadable() -> RequestError:
    return RequestError(502, "upstream", "the upstream's reply is not a chat completion")


class StreamReader:
    """Reads the events of one stream; tool calls are returned whole, with the last delta."""

    def __init__(self) -> None:
        self.ended = False
        """The server has reported that its reply is complete."""
        self._calls: dict[int, ToolCall] = {}
        self._chunk = _Chunk()
        """The last chunk with token counts, or else the first."""
        self._logprobs: list[TokenLogprob] = []

    @property
    def details(self) -> ReplyDetails:
        """What the server has said so far about its reply."""
        return _details(self._chunk, self._logprobs or None)

    @property
    def begun(self) -> tuple[ToolCall, ...]:
        """The tool calls as far as they have been read."""
        return tuple(self._calls.values())

    def read(self, data: str) -> Iterator[UpstreamDelta]:
        """Yield the deltas of an event.

        Raises:
            RequestError: 502, it is not a chunk of a chat completion, or it reports an error.
        """
        if data.strip() == "[DONE]":
            if not self.ended:  # some servers never send a `finish_reason`
                yield self._end("tool_calls" if self._calls else "stop")
            return
        try:
            chunk = CHUNKS.decode(data)
        except UNREADABLE as error:
            raise RequestError(
                502, "upstream", "the upstream's stream has an event that is not a completion chunk"
            ) from error
        if bytes(chunk.error) not in {b"", b"null"}:
            raise RequestError(502, "upstream", "the upstream failed while generating its reply")
        if self._chunk.created is None or chunk.usage is not None:
            self._chunk = chunk
        if chunk.usage is not None:
            yield UpstreamDelta(usage=_usage(chunk.usage, chunk.model))
        for choice in chunk.choices[:1]:
            yield from self._choice(choice)

    def _choice(self, choice: "_Choice") -> Iterator[UpstreamDelta]:
        self._logprobs += _logprobs(choice) or ()
        if choice.delta is not None:
            for part in choice.delta.tool_calls or ():
                self._add_to_call(part)
            text = choice.delta.content or choice.delta.refusal or ""
            reasoning = choice.delta.reasoning or choice.delta.reasoning_content or ""
            if text or reasoning:
                yield UpstreamDelta(text=text, reasoning=reasoning)
        if choice.finish_reason and not self.ended:
            yield self._end(FINISHES.get(choice.finish_reason, "stop"))

    def _end(self, finish: Finish) -> UpstreamDelta:
        self.ended = True
        return UpstreamDelta(calls=tuple(self._calls.values()), finish=finish)

    def _add_to_call(self, part: "_CallPart") -> None:
        call = self._calls.get(part.index, ToolCall(id="", name="", arguments=""))
        function = part.function or _Function()
        self._calls[part.index] = ToolCall(
            id=part.id or call.id,
            name=function.name or call.name,
            arguments=call.arguments + (function.arguments or ""),
        )


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallPart(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: object = None
    completion_tokens_details: object = None


Counts = Mapping[CountedName, int | None] | None


class _WholeUsage(_Usage, forbid_unknown_fields=True):
    prompt_tokens_details: Counts = None
    completion_tokens_details: Counts = None
    total_tokens: int | None = None


def _usage(usage: _Usage | None, model: object) -> Usage | None:
    """Return the server's token counts, with its id of the model."""
    if usage is None:
        return None
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        model=model if isinstance(model, str) else "",
    )


Empty = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=0)] | None


class _Logprobs(msgspec.Struct, forbid_unknown_fields=True):
    content: list[TokenLogprob] | None = None
    refusal: Empty = None


LOGPROBS = msgspec.json.Decoder(_Logprobs | None)


class _LenientMessage(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_CallPart] | None = None


class _LenientChoice(msgspec.Struct):
    message: _LenientMessage
    finish_reason: str | None = None
    logprobs: msgspec.Raw = msgspec.Raw()


class _Lenient(msgspec.Struct):
    """The fields that the gateway reads. The bytes may contain other text: do not pass them on."""

    choices: list[_LenientChoice]
    model: object = None
    created: object = None
    usage: _Usage | None = None
    system_fingerprint: object = None
    service_tier: object = None


LONGEST_NAME = 200
"""A longer one could be text that nobody reviewed."""
Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
Word = Annotated[str, msgspec.Meta(pattern=r"^\w{0,32}$")]
"""A value that the format prescribes, such as `tool_calls`."""


class _WholeFunction(_Function, forbid_unknown_fields=True):
    pass


class _WholeCall(msgspec.Struct, forbid_unknown_fields=True):
    id: str | None = None
    type: Word | None = None
    index: int = 0
    function: _WholeFunction | None = None


class _WholeMessage(msgspec.Struct, forbid_unknown_fields=True):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_WholeCall] | None = None
    role: Word | None = None
    annotations: Empty = None
    audio: None = None
    function_call: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _WholeChoice(msgspec.Struct, forbid_unknown_fields=True):
    message: _WholeMessage
    index: int = 0
    finish_reason: Word | None = None
    stop_reason: int | Name | None = None
    logprobs: _Logprobs | None = None
    token_ids: None = None


class _Whole(msgspec.Struct, forbid_unknown_fields=True):
    """All fields that a completion may have, and no others: its bytes hold no unread text."""

    choices: list[_WholeChoice]
    id: Name | None = None
    object: Name | None = None
    created: int | float | None = None
    model: Name | None = None
    usage: _WholeUsage | None = None
    system_fingerprint: Name | None = None
    service_tier: Name | None = None
    prompt_logprobs: None = None
    prompt_token_ids: None = None
    kv_transfer_params: None = None


WHOLE = msgspec.json.Decoder(_Whole)
LENIENT = msgspec.json.Decoder(_Lenient)


class _Words(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_CallPart] | None = None


class _Choice(msgspec.Struct):
    delta: _Words | None = None
    finish_reason: str | None = None
    logprobs: msgspec.Raw = msgspec.Raw()


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    model: object = None
    created: object = None
    usage: _Usage | None = None
    system_fingerprint: object = None
    service_tier: object = None
    error: msgspec.Raw = msgspec.Raw()


CHUNKS = msgspec.json.Decoder(_Chunk)


def _call(call: _CallPart | _WholeCall) -> ToolCall:
    function = call.function or _Function()
    return ToolCall(id=call.id or "", name=function.name or "", arguments=function.arguments or "")
