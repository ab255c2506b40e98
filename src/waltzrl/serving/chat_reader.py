"""Reads the replies of a chat-completions server, whole or streamed."""

from collections.abc import Iterator, Mapping, Sequence
from math import floor, isfinite
from typing import Annotated, Literal, TypeGuard, get_args

import msgspec

from waltzrl.errors import RequestError
from waltzrl.policies.server_faults import check_reported
from waltzrl.policies.server_json import (
    TextJoiner,
    read_count,
    read_json,
    tidied,
)
from waltzrl.policies.sse import ServerSentEvent
from waltzrl.policies.tool_calls import CallAssembler, with_ids
from waltzrl.records import Reply, ToolCall, Usage
from waltzrl.serving.endings import finish_of, is_reason, stop_sequence_of
from waltzrl.serving.exchange import (
    ReplyDetails,
    TokenLogprob,
    UpstreamDelta,
    UpstreamReply,
)
from waltzrl.serving.verbatim import repeats_a_key, spells

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
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
        ReportedError: it is the report of a failure.
        RequestError: 502, it is not a chat completion.
    """
    # The strict decoder fails on any unknown field; most replies pass it, and are decoded once.
    try:
        whole = WHOLE.decode(answer)
    except UNREADABLE:
        whole = None
    if whole is not None:
        return _completion(whole, milliseconds, answer)
    try:
        body = read_json(answer)
        check_reported(body)
        completion = msgspec.convert(tidied(body), _Lenient)
    except UNREADABLE as error:
        raise _unreadable() from error
    return _completion(completion, milliseconds, None)


def _completion(
    completion: "_Whole | _Lenient", milliseconds: float, answer: bytes | None
) -> UpstreamReply:
    if not completion.choices:
        raise _unreadable()
    choice = completion.choices[0]
    message = choice.message
    written = tuple([_call(call) for call in message.tool_calls or ()])
    calls = with_ids(written)
    finish = finish_of(choice.finish_reason, calls)
    reply = Reply(
        text=message.content or message.refusal or "",
        reasoning=message.reasoning or message.reasoning_content or "",
        calls=calls,
        finish="length" if finish == "length" else "stop",
        usage=_usage(completion.usage, completion.model),
        milliseconds=milliseconds,
    )
    details = _details(
        completion, _logprobs(choice), stop_sequence_of(choice.stop_reason, choice.matched_stop)
    )
    reasoning, other = message.reasoning, message.reasoning_content
    twice = (message.content and message.refusal) or (reasoning and other and reasoning != other)
    unread = twice or len(completion.choices) > 1 or calls != written
    if answer and (unread or not spells(details.logprobs, reply.text) or repeats_a_key(answer)):
        answer = None
    return UpstreamReply(reply=reply, finish=finish, raw=answer, details=details)


def _details(
    completion: "_Whole | _Lenient | _Chunk",
    logprobs: Sequence[TokenLogprob] | None,
    stop_sequence: str | None,
) -> ReplyDetails:
    created, usage = completion.created, completion.usage
    fingerprint, tier = completion.system_fingerprint, completion.service_tier
    return ReplyDetails(
        created=read_count(floor(created) if _is_fraction(created) else created),
        system_fingerprint=fingerprint if _is_name(fingerprint) else None,
        service_tier=tier if _is_name(tier) else None,
        logprobs=None if logprobs is None else tuple(logprobs),
        usage={} if usage is None else _usage_details(usage),
        stop_sequence=stop_sequence,
    )


def _is_fraction(value: object) -> TypeGuard[float]:
    return isinstance(value, float) and isfinite(value)


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def _logprobs(choice: "_WholeChoice | _LenientChoice | _Choice") -> list[TokenLogprob] | None:
    """Return the log-probabilities of a choice; None without any, or if they are malformed."""
    if choice.logprobs is None:
        return None
    try:
        return msgspec.convert(choice.logprobs, _Logprobs).content
    except UNREADABLE:
        return None


def _usage_details(usage: "_Usage") -> Mapping[str, Mapping[str, int]]:
    parts = {
        "prompt_tokens_details": usage.prompt_tokens_details,
        "completion_tokens_details": usage.completion_tokens_details,
    }
    return {name: _counts(part) for name, part in parts.items() if isinstance(part, dict)}


def _counts(part: Mapping[object, object]) -> dict[str, int]:
    counts = {name: read_count(part.get(name)) for name in COUNTED}
    return {name: count for name, count in counts.items() if count is not None}


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


def _unreadable() -> RequestError:
    return RequestError(502, "upstream", "the upstream's reply is not a chat completion")


class StreamReader:
    """Reads the events of one stream; tool calls are returned whole, with the last delta."""

    def __init__(self) -> None:
        self.ended = False
        """The server has reported that its reply is complete."""
        self._calls = CallAssembler()
        self._text, self._reasoning = TextJoiner(), TextJoiner()
        self._has_begun = False
        self._chunk = _Chunk()
        """The last chunk with token counts, or else the first."""
        self._logprobs: list[TokenLogprob] = []
        self._stop_sequence: str | None = None

    @property
    def details(self) -> ReplyDetails:
        """What the server has said so far about its reply."""
        return _details(self._chunk, self._logprobs or None, self._stop_sequence)

    def read(self, event: ServerSentEvent) -> Iterator[UpstreamDelta]:
        """Yield the deltas of an event.

        Raises:
            ReportedError: it is the report of a failure.
            RequestError: 502, it is not a chunk of a chat completion.
        """
        data = event.data.strip()
        if data == "[DONE]":
            if not self.ended:  # some servers never send a `finish_reason`
                yield self._end(None)
            return
        if data in ("", "null"):
            return
        try:
            chunk = _read_chunk(data, event.name)
        except UNREADABLE as error:
            raise RequestError(
                502, "upstream", "the upstream's stream has an event that is not a completion chunk"
            ) from error
        if self._chunk.created is None or chunk.usage is not None:
            self._chunk = chunk
        if usage := _usage(chunk.usage, chunk.model):
            yield UpstreamDelta(usage=usage)
        for choice in (chunk.choices or ())[:1]:
            yield from self._choice(choice)

    def _choice(self, choice: "_Choice") -> Iterator[UpstreamDelta]:
        self._logprobs += _logprobs(choice) or ()
        self._stop_sequence = (
            stop_sequence_of(choice.stop_reason, choice.matched_stop) or self._stop_sequence
        )
        delta = choice.delta
        if delta is None and not self._has_begun:  # a server that streams the reply as one message
            delta = choice.message
        if delta is not None:
            for part in delta.tool_calls or ():
                self._add_to_call(part)
            words = delta.content or delta.refusal
            thoughts = delta.reasoning or delta.reasoning_content
            text = self._text.add(words) if words else ""
            reasoning = self._reasoning.add(thoughts) if thoughts else ""
            self._has_begun = self._has_begun or bool(text or reasoning or delta.tool_calls)
            if text or reasoning:
                yield UpstreamDelta(text=text, reasoning=reasoning)
        if is_reason(choice.finish_reason) and not self.ended:
            yield self._end(choice.finish_reason)

    def _end(self, reason: str | None) -> UpstreamDelta:
        self.ended = True
        calls = self._calls.calls
        return UpstreamDelta(
            text=self._text.end(),
            reasoning=self._reasoning.end(),
            calls=calls,
            finish=finish_of(reason, calls),
        )

    def _add_to_call(self, part: "_CallPart") -> None:
        index = part.index if isinstance(part.index, int | float | str) else None
        self._calls.add(index, _call(part))


def _read_chunk(data: str, event: str) -> "_Chunk":
    """Read an event, strictly if its form allows it, because most do and are decoded once.

    Raises:
        ReportedError: it is the report of a failure.
        ValueError: it is not a chunk; or one of the other errors in `UNREADABLE`.
    """
    try:
        chunk = CHUNKS.decode(data)
    except UNREADABLE:
        chunk = _Chunk()
    # One without choices may be an error that has no key `error`.
    if chunk.choices and event != "error" and chunk.error is chunk.choices[0].error is None:
        return chunk
    body = read_json(data)
    check_reported(body, event)
    return msgspec.convert(tidied(body), _Chunk)


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallPart(msgspec.Struct):
    index: object = None
    id: str | None = None
    function: _Function | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: object = None
    completion_tokens: object = None
    prompt_tokens_details: object = None
    completion_tokens_details: object = None


Counts = Mapping[CountedName, int | None] | None


class _WholeUsage(_Usage, forbid_unknown_fields=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: Counts = None
    completion_tokens_details: Counts = None
    total_tokens: int | None = None


def _usage(usage: _Usage | None, model: object) -> Usage | None:
    """Return the server's token counts, with its id of the model; None if one is unknown."""
    if usage is None:
        return None
    read, generated = read_count(usage.prompt_tokens), read_count(usage.completion_tokens)
    if read is None or generated is None:
        return None
    name = model if isinstance(model, str) else ""
    return Usage(input_tokens=read, output_tokens=generated, model=name)


Empty = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=0)] | None


class _Logprobs(msgspec.Struct, forbid_unknown_fields=True):
    content: list[TokenLogprob] | None = None
    refusal: Empty = None


class _LenientMessage(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_CallPart] | None = None


class _LenientChoice(msgspec.Struct):
    message: _LenientMessage
    finish_reason: str | None = None
    stop_reason: object = None
    matched_stop: object = None
    logprobs: object = None


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


class _WholeFunction(_Function, forbid_unknown_fields=True, kw_only=True):
    name: str
    arguments: str


class _WholeCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    id: str
    type: Word | None = None
    index: int = 0
    function: _WholeFunction


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
    matched_stop: int | Name | None = None
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


class _Choice(msgspec.Struct):
    delta: _LenientMessage | None = None
    message: _LenientMessage | None = None
    finish_reason: str | None = None
    stop_reason: object = None
    matched_stop: object = None
    logprobs: object = None
    error: object = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    model: object = None
    created: object = None
    usage: _Usage | None = None
    system_fingerprint: object = None
    service_tier: object = None
    error: object = None


CHUNKS = msgspec.json.Decoder(_Chunk)


def _call(call: _CallPart | _WholeCall) -> ToolCall:
    function = call.function or _Function()
    return ToolCall(id=call.id or "", name=function.name or "", arguments=function.arguments or "")
