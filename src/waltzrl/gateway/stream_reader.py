"""Reads the streams of a chat-completions server."""

from collections.abc import Iterator

import msgspec
from msgspec import structs

from waltzrl.errors import RequestError
from waltzrl.gateway.chat_reader import (
    UNREADABLE,
    LenientChoice,
    OlderCall,
    ReplyFields,
    ReplyMessage,
    TokenCounts,
    call_of,
    check_no_media,
    details_of,
    encrypted_of,
    fill_arguments,
    finish_of,
    is_reason,
    logprobs_of,
    signature_of,
    stop_sequence_of,
    usage_of,
)
from waltzrl.gateway.exchange import (
    EncryptedReasoning,
    ReplyDetails,
    TokenLogprob,
    UpstreamDelta,
)
from waltzrl.policies.server_faults import check_reported
from waltzrl.policies.server_json import TextJoiner, read_json, tidy_completion
from waltzrl.policies.sse import ServerSentEvent, says_nothing
from waltzrl.policies.tool_calls import CallAssembler, with_decoded_arguments
from waltzrl.records import ToolCall


class StreamReader:
    """Reads the events of one stream; tool calls are returned whole, with the end of the reply."""

    def __init__(self) -> None:
        self._last = UpstreamDelta()
        """The end of the reply, as far as the server has reported it."""
        self._calls = CallAssembler()
        self._older_call: OlderCall | None = None
        self._text, self._reasoning = TextJoiner(), TextJoiner()
        self._has_choice = self._has_begun = self._has_media = False
        self.fragments = 0
        """The number of fragments of tool calls that have been read."""
        self.done = False
        """Whether the server has said that nothing follows."""
        self._chunk = _Chunk()
        """The last chunk with token counts, or else the first."""
        self._logprobs: list[TokenLogprob] = []
        self._stop_sequence: str | None = None
        self._encrypted: list[EncryptedReasoning] = []

    @property
    def ended(self) -> bool:
        """Whether the server has reported that its reply is complete."""
        return self._last.finish is not None

    @property
    def details(self) -> ReplyDetails:
        """What the server has said so far about its reply."""
        return details_of(
            self._chunk,
            self._logprobs or None,
            self._stop_sequence,
            encrypted=tuple(self._encrypted),
            signatures=self._calls.signatures,
        )

    def read_calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls as far as they have been read, which joins all their fragments."""
        older = self._older_call.calls if self._older_call else ()
        return with_decoded_arguments((*self._calls.calls, *older))

    def read(self, event: ServerSentEvent) -> Iterator[UpstreamDelta]:
        """Yield the deltas of an event.

        Raises:
            ReportedError: it is the report of a failure.
            RequestError: 502, it is not a chunk of a chat completion.
        """
        data = event.data.strip()
        if self.done:
            return
        if data == "[DONE]":
            self.done = True
            # Some servers never send a `finish_reason`. A stream without a choice is no reply.
            if not self.ended and self._has_choice:
                yield from self._end(None)
            return
        chunk = self._read_chunk(event)
        choices = _select_choices(chunk.choices or [])
        if chunk.usage is None and choices:  # Moonshot's server has it in the last choice
            chunk.usage = choices[0].usage
        if self._chunk.created is None or chunk.usage is not None:
            self._chunk = chunk
        for choice in choices:
            self._has_choice = True
            yield from self._choice(choice)
        if usage := usage_of(chunk.usage, chunk.model):  # they count the words beside them
            yield UpstreamDelta(usage=usage)

    def _read_chunk(self, event: ServerSentEvent) -> "_Chunk":
        try:
            return _read_chunk(event.data.strip(), event.name)
        except UNREADABLE as error:
            # Some events say nothing, and what follows the reply is no part of it.
            if self.ended or says_nothing(event):
                return _Chunk()
            raise RequestError(
                502, "upstream", "the upstream's stream has an event that is not a completion chunk"
            ) from error

    def _choice(self, choice: "_Choice") -> Iterator[UpstreamDelta]:
        self._logprobs += logprobs_of(choice.logprobs) or ()
        self._stop_sequence = (
            stop_sequence_of(choice.stop_reason, choice.matched_stop) or self._stop_sequence
        )
        delta = choice.delta
        if delta is None and not self._has_begun:  # a server that streams the reply as one message
            delta = choice.message
        if delta is not None:
            for part in delta.tool_calls or ():
                self.fragments += 1
                index = part.index if isinstance(part.index, int | float | str) else None
                self._calls.add(index, call_of(part), signature_of(part))
            if delta.function_call is not None:
                self.fragments += 1
                self._older_call = self._older_call or OlderCall()
                self._older_call.add(delta.function_call)
            self._encrypted += encrypted_of(delta)
            self._has_media = self._has_media or delta.has_media
            words = delta.content or delta.refusal
            thoughts = delta.reasoning or delta.reasoning_content
            text = self._text.add(words) if words else ""
            reasoning = self._reasoning.add(thoughts) if thoughts else ""
            self._has_begun = self._has_begun or bool(text or reasoning or delta.tool_calls)
            if text or reasoning:
                refused = bool(text and not delta.content)
                yield UpstreamDelta(text=text, reasoning=reasoning, refused=refused)
        if is_reason(choice.finish_reason):
            yield from self._end(choice.finish_reason)
        elif self.ended and delta is not None and (delta.tool_calls or delta.function_call):
            yield from self._end("tool_calls")

    def _end(self, reason: str | None) -> Iterator[UpstreamDelta]:
        """Yield the end of the reply, or how it changes: some servers end every part of a reply."""
        last, calls = self._last, self.read_calls()
        check_no_media(self._has_media and not (self._has_begun or calls))
        finish = last.finish if last.finish not in (None, "stop") else finish_of(reason, calls)
        self._last = UpstreamDelta(calls=fill_arguments(calls, finish), finish=finish)
        if self._last != last:
            yield structs.replace(
                self._last, text=self._text.end(), reasoning=self._reasoning.end()
            )


def _select_choices(choices: list["_Choice"]) -> list["_Choice"]:
    """Return the first choice: a request for the upstream has no `n`, so there is one.

    Copilot's server has calls in choices of their own.
    """
    if len(choices) < 2:
        return choices
    return [choices[0], *[other for other in choices[1:] if _has_only_calls(other.delta)]]


def _has_only_calls(delta: ReplyMessage | None) -> bool:
    return delta is not None and bool(delta.tool_calls) and not delta.content


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
        counts = (chunk.usage, chunk.choices[0].usage)
        # Those without a count may have them under other names.
        if all(usage is None or usage.prompt_tokens is not None for usage in counts):
            return chunk
    body = read_json(data)
    check_reported(body, event)
    return msgspec.convert(tidy_completion(body), _Chunk)


class _Choice(LenientChoice):
    delta: ReplyMessage | None = None
    usage: TokenCounts | None = None
    error: object = None


class _Chunk(ReplyFields):
    choices: list[_Choice] | None = None
    error: object = None


CHUNKS = msgspec.json.Decoder(_Chunk)
