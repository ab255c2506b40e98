"""Reads the replies of a chat-completions server, whole or streamed."""

import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Literal, TypeGuard, get_args

import msgspec
from pydantic_core import from_json

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import (
    EncryptedReasoning,
    Finish,
    ReplyDetails,
    TokenAlternative,
    TokenLogprob,
    UpstreamReply,
)
from waltzrl.policies.server_faults import ReportedError, check_reported
from waltzrl.policies.server_json import (
    MOST_COUNT,
    mend_json,
    read_json,
    tidy_completion,
)
from waltzrl.policies.tool_calls import (
    calls_something,
    is_complete,
    with_decoded_arguments,
    with_ids,
)
from waltzrl.records import Reply, ToolCall, Usage

FINISHES: Mapping[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "maxtokens": "length",
    "maxoutputtokens": "length",
    "tokenlimit": "length",
    "timelimit": "length",
    "timeout": "length",
    "cancelled": "length",
    "modellength": "length",
    "modelcontextwindowexceeded": "length",
    "abort": "length",
    "error": "length",
    "networkerror": "length",
    "insufficientsystemresource": "length",
    "repetition": "length",
    "toolcalls": "tool_calls",
    "tooluse": "tool_calls",
    "functioncall": "tool_calls",
    "contentfilter": "content_filter",
    "contentfiltered": "content_filter",
    "guardrailintervened": "content_filter",
    "imagesafety": "content_filter",
    "errortoxic": "content_filter",
    "refusal": "content_filter",
    "blocklist": "content_filter",
    "prohibitedcontent": "content_filter",
    "recitation": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "spii": "content_filter",
}
"""The words of servers, as `_spell_plainly` spells them; any other is the end of a reply. A failure
cuts it off."""
CUT_OFF: tuple[Finish, ...] = ("length", "content_filter")
"""The ends at which a reply may lack what was to follow."""
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""The exceptions for bytes that are not JSON, or are JSON of the wrong shape."""


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
        return _convert_completion(whole, milliseconds, answer)
    try:
        body = read_json(answer)
        check_reported(body)
        completion = msgspec.convert(tidy_completion(body), _Lenient)
    except UNREADABLE as error:
        raise _unreadable_reply_error() from error
    return _convert_completion(completion, milliseconds, None)


def read_beginning(answer: bytes) -> Reply | None:
    """Return what the beginning of a chat completion holds of the reply; None if it is no word."""
    reply = None
    with suppress(*UNREADABLE, ReportedError, RequestError):
        text = answer.decode("utf-8", "ignore")  # the last character may be divided
        # The text of the reply is the string that is cut off, which is left out by default.
        body = from_json(text, allow_partial="trailing-strings")
        check_reported(body)
        reply = _convert_completion(
            msgspec.convert(tidy_completion(body), _Lenient), 0.0, None
        ).reply
    return reply if reply and (reply.reviewed_text or reply.usage) else None


def _convert_completion(
    completion: "_Whole | _Lenient", milliseconds: float, answer: bytes | None
) -> UpstreamReply:
    if not completion.choices:
        raise _unreadable_reply_error()
    choice = completion.choices[0]
    message, *others = map(_message_of, completion.choices)
    # Copilot's server has the text of a reply and each of its calls in choices of their own.
    called = [message, *[other for other in others if not other.content]]
    written = tuple([call for part in called for call in _collect_calls(part)])
    calls: tuple[ToolCall, ...] = ()
    if written:
        calls = with_decoded_arguments(with_ids(filter(calls_something, written)))
    finish = finish_of(choice.finish_reason, calls)
    calls = fill_arguments(calls, finish)
    reply = Reply(
        text=message.content or message.refusal or "",
        reasoning=message.reasoning or message.reasoning_content or "",
        calls=calls,
        finish="length" if finish == "length" else "stop",
        usage=usage_of(completion.usage, completion.model),
        milliseconds=milliseconds,
    )
    if not (reply.text or reply.reasoning or calls) and isinstance(message, ReplyMessage):
        check_no_media(message.has_media)
    parts = [part for other in called for part in other.tool_calls or ()]
    parts = [part for part in parts if calls_something(call_of(part))]
    details = details_of(
        completion,
        logprobs_of(choice.logprobs),
        stop_sequence_of(choice.stop_reason, choice.matched_stop),
        encrypted=encrypted_of(message),
        signatures={
            call.id: signature
            for call, part in zip(calls, parts, strict=False)
            if (signature := signature_of(part))
        },
    )
    reasoning, other = message.reasoning, message.reasoning_content
    twice = (message.content and message.refusal) or (reasoning and other and reasoning != other)
    ambiguous = any(call.function and call.custom for call in message.tool_calls or ())
    # The bytes are passed on only if `reply` has every text in them, no call got a new id, and
    # a client that knows only OpenAI's words for an end understands theirs.
    unread = twice or ambiguous or len(completion.choices) > 1 or calls != written
    if answer and (
        unread
        or finish != choice.finish_reason
        or not tokens_spell(details.logprobs, reply.text)
        or repeats_a_key(answer)
    ):
        answer = None
    refused = bool(message.refusal and not message.content)
    return UpstreamReply(reply=reply, finish=finish, raw=answer, details=details, refused=refused)


def _message_of(choice: "_WholeChoice | LenientChoice") -> "ReplyMessage | _WholeMessage":
    """Return the message of a choice; Google's server leaves it out where it filters the reply.

    Raises:
        RequestError: 502, it is missing for another reason.
    """
    if choice.message is not None:
        return choice.message
    if finish_of(choice.finish_reason, ()) != "content_filter":
        raise _unreadable_reply_error()
    return ReplyMessage()


def finish_of(reason: str | None, calls: Sequence[ToolCall]) -> Finish:
    """Return why a reply ended; without a reason, arguments that are incomplete were cut off.

    Many servers say `stop` of a reply with calls, or that there are some where there are none.
    """
    if is_reason(reason):
        finish = FINISHES.get(_spell_plainly(reason), "stop")
        is_end = finish in ("stop", "tool_calls")
        return ("tool_calls" if calls else "stop") if is_end else finish
    if not calls:
        return "stop"
    last = calls[-1]
    is_whole = last.kind == "custom" or is_complete(last.arguments)
    return "tool_calls" if is_whole else "length"


def fill_arguments(calls: tuple[ToolCall, ...], finish: Finish) -> tuple[ToolCall, ...]:
    """Return calls with an empty object where the model wrote no arguments, and was not cut off.

    Many servers leave it out for a function without parameters, and clients fail to decode it.
    """
    if finish in CUT_OFF or all(map(_has_arguments, calls)):
        return calls
    return tuple(
        [call if _has_arguments(call) else replace(call, arguments="{}") for call in calls]
    )


def _has_arguments(call: ToolCall) -> bool:
    return call.kind == "custom" or call.arguments.strip() not in ("", "null")


def _spell_plainly(word: str) -> str:
    """Return a word without its separators and what follows a colon, which explains it."""
    return re.sub("[-_ ]|:.*", "", word.lower(), flags=re.DOTALL)


def is_reason(reason: str | None) -> TypeGuard[str]:
    """Return whether a reply has ended; some servers write null as a word."""
    return reason is not None and reason.lower() not in ("", "null", "none")


def stop_sequence_of(stop_reason: object, matched_stop: object) -> str | None:
    """Return the stop sequence that ended the reply, where vLLM or SGLang say which."""
    texts = [text for text in (stop_reason, matched_stop) if isinstance(text, str)]
    return texts[0] if texts else None


def tokens_spell(tokens: Sequence[TokenLogprob] | None, text: str) -> bool:
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


def details_of(
    completion: "_Whole | ReplyFields",
    logprobs: Sequence[TokenLogprob] | None,
    stop_sequence: str | None,
    *,
    encrypted: tuple[EncryptedReasoning, ...],
    signatures: Mapping[str, str],
) -> ReplyDetails:
    usage = completion.usage
    fingerprint, tier = completion.system_fingerprint, completion.service_tier
    return ReplyDetails(
        created=completion.created,
        system_fingerprint=fingerprint if _is_name(fingerprint) else None,
        service_tier=tier if _is_name(tier) else None,
        logprobs=None if logprobs is None else tuple(logprobs),
        usage={} if usage is None else _collect_usage_details(usage),
        stop_sequence=stop_sequence,
        signatures=signatures,
        encrypted=encrypted,
    )


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def logprobs_of(logprobs: object) -> Sequence[TokenLogprob] | None:
    """Return the log-probabilities of a choice; None without any, or if they are malformed."""
    if logprobs is None:
        return None
    if isinstance(logprobs, _Logprobs):  # of a reply that the strict decoder took
        return logprobs.content
    with suppress(*UNREADABLE):
        return msgspec.convert(logprobs, _LenientLogprobs).content
    with suppress(*UNREADABLE):
        return msgspec.convert(_tidy_logprobs(mend_json(logprobs)), _LenientLogprobs).content
    return None


def _tidy_logprobs(value: object) -> object:
    """Return log-probabilities with a number for each token: servers may write null or infinity."""
    if isinstance(value, list):
        return [_tidy_logprobs(item) for item in value]
    if not isinstance(value, dict):
        return value
    tidy = {key: _tidy_logprobs(inner) for key, inner in value.items()}
    number = tidy.get("logprob", math.inf)
    if "token" in tidy and isinstance(number, float) and not math.isfinite(number):
        tidy["logprob"] = IMPOSSIBLE
    return tidy


def _collect_usage_details(usage: "TokenCounts") -> Mapping[str, Mapping[str, int]]:
    parts = {
        "prompt_tokens_details": usage.prompt_tokens_details,
        "completion_tokens_details": usage.completion_tokens_details,
    }
    details: dict[str, dict[str, int]] = {
        name: {key: n for key in COUNTED if type(n := part.get(key)) is int and n >= 0}
        for name, part in parts.items()
        if isinstance(part, dict)
    }
    for cached in (usage.cached_tokens, usage.prompt_cache_hit_tokens):
        if cached is not None:
            details.setdefault("prompt_tokens_details", {}).setdefault("cached_tokens", cached)
    return details


CountedName = Literal[
    "cached_tokens",
    "cache_write_tokens",
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


# A key that is longer or escaped makes the counts differ, and so leads to the exact check.
KEY = re.compile(rb'"([^"\\]{0,64}+)"[ \t\r\n]*+:')  # `+`: without going back, which is slow
KEY_END = re.compile(rb'"[ \t\r\n]*+:')
"""The end of every key, and perhaps of a quotation within a string."""
UNIQUE_KEYS = json.JSONDecoder(object_pairs_hook=_require_unique_keys)


def check_no_media(has_media: bool) -> None:
    """Check that a reply without a word is empty.

    Raises:
        RequestError: 502, it has images or sound.
    """
    if has_media:
        raise RequestError(
            502,
            "upstream",
            "the upstream replied with images or sound alone, which cannot be reviewed; ask it for "
            "text",
        )


def _unreadable_reply_error() -> RequestError:
    return RequestError(502, "upstream", "the upstream's reply is not a chat completion")


class CallFunction(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class CallPart(msgspec.Struct):
    index: object = None
    id: str | None = None
    function: CallFunction | None = None
    custom: object = None
    extra_content: object = None


ENCODED = re.compile(r"[\w+/=-]+", re.ASCII)
"""Data in some encoding, which says nothing to a reader."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)]


class TokenCounts(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: object = None
    completion_tokens_details: object = None
    cached_tokens: Count | None = None
    """Where Moonshot's server has it, among others."""
    prompt_cache_hit_tokens: Count | None = None
    """What DeepSeek's server calls it."""


Counts = Mapping[CountedName, int | None] | None


class _WholeUsage(TokenCounts, forbid_unknown_fields=True, kw_only=True):
    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: Counts = None
    completion_tokens_details: Counts = None
    total_tokens: int | None = None


def usage_of(usage: TokenCounts | None, model: object) -> Usage | None:
    """Return the server's token counts, with its id of the model; None if one is unknown."""
    if usage is None:
        return None
    read, generated = usage.prompt_tokens, usage.completion_tokens
    if read is None or generated is None or read == generated == 0:  # it has not counted
        return None
    name = model if isinstance(model, str) else ""
    return Usage(input_tokens=read, output_tokens=generated, model=name)


IMPOSSIBLE = -9999.0
"""The log-probability of a token that cannot come, in OpenAI's format."""
Finite = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Empty = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=0)] | None


class _Logprobs(msgspec.Struct, forbid_unknown_fields=True):
    content: list[TokenLogprob] | None = None
    refusal: Empty = None


class _LenientAlternative(TokenAlternative, frozen=True, forbid_unknown_fields=False):
    """An alternative, of whose other fields, such as llama.cpp's `id`, none is passed on."""

    logprob: Finite


class _LenientLogprob(TokenLogprob, frozen=True, forbid_unknown_fields=False):
    logprob: Finite
    top_logprobs: Sequence[_LenientAlternative] = ()


class _LenientLogprobs(msgspec.Struct):
    content: list[_LenientLogprob] | None = None


class ReplyMessage(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: object = None
    tool_calls: list[CallPart] | None = None
    function_call: object = None
    images: object = None
    audio: object = None

    @property
    def has_media(self) -> bool:
        """Whether it has images or sound, which are not passed on, because nobody reviews them."""
        return bool(self.images or self.audio)


class LenientChoice(msgspec.Struct):
    message: ReplyMessage | None = None
    finish_reason: str | None = None
    stop_reason: object = None
    matched_stop: object = None
    logprobs: object = None


class ReplyFields(msgspec.Struct, kw_only=True):
    """What a completion, or a chunk of one, says about itself."""

    model: object = None
    created: Count | None = None
    usage: TokenCounts | None = None
    system_fingerprint: object = None
    service_tier: object = None


class _Lenient(ReplyFields):
    """The fields that the gateway reads. The bytes may contain other text: do not pass them on."""

    choices: list[LenientChoice]


LONGEST_NAME = 200
"""A longer one could be text that nobody reviewed."""
Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
Word = Annotated[str, msgspec.Meta(pattern=r"^\w{0,32}$")]
"""A value that the format prescribes, such as `tool_calls`."""


class _WholeFunction(CallFunction, forbid_unknown_fields=True, kw_only=True):
    name: str
    arguments: str


class _WholeCustom(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    input: str


class _WholeCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    id: str
    type: Word | None = None
    index: int = 0
    function: _WholeFunction | None = None
    custom: _WholeCustom | None = None


class _WholeMessage(msgspec.Struct, forbid_unknown_fields=True):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_WholeCall] | None = None
    role: Word | None = None
    annotations: Empty = None
    audio: None = None
    function_call: _WholeFunction | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _WholeChoice(msgspec.Struct, forbid_unknown_fields=True):
    message: _WholeMessage
    index: int = 0
    finish_reason: Word | None = None
    stop_reason: int | Name | None = None
    matched_stop: int | Name | None = None
    logprobs: _Logprobs | None = None
    # vLLM sends it as null; ids would be text that nobody has read.
    token_ids: None = None


class _Whole(msgspec.Struct, forbid_unknown_fields=True):
    """All fields that a completion may have, and no others: its bytes hold no unread text."""

    choices: list[_WholeChoice]
    id: Name | None = None
    object: Name | None = None
    created: Count | None = None
    model: Name | None = None
    usage: _WholeUsage | None = None
    system_fingerprint: Name | None = None
    service_tier: Name | None = None
    prompt_logprobs: None = None
    prompt_token_ids: None = None
    kv_transfer_params: None = None


WHOLE = msgspec.json.Decoder(_Whole)


def _collect_calls(message: ReplyMessage | _WholeMessage) -> tuple[ToolCall, ...]:
    calls = tuple([call_of(call) for call in message.tool_calls or ()])
    if message.function_call is None:
        return calls
    older_call = OlderCall()
    older_call.add(message.function_call)
    return (*calls, *older_call.calls)


def call_of(call: CallPart | _WholeCall) -> ToolCall:
    """Return a call of a function, or of a custom tool with its input as arguments."""
    call_id, function = call.id or "", call.function or CallFunction()
    if call.function is None and (custom := _name_and_text(call.custom, "input")):
        return ToolCall(id=call_id, name=custom[0], arguments=custom[1], kind="custom")
    return ToolCall(id=call_id, name=function.name or "", arguments=function.arguments or "")


def signature_of(call: "CallPart | _WholeCall") -> str:
    """Return Google's signature of a call, which is encoded data; empty without one."""
    value: object = call.extra_content if isinstance(call, CallPart) else None
    for key in ("google", "thought_signature"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) and ENCODED.fullmatch(value) else ""


def encrypted_of(message: "ReplyMessage | _WholeMessage") -> tuple[EncryptedReasoning, ...]:
    """Return what is encrypted of the reasoning of a message, or of what a chunk adds to one."""
    details = message.reasoning_details if isinstance(message, ReplyMessage) else None
    encrypted: list[EncryptedReasoning] = []
    for detail in details if isinstance(details, list) else ():
        with suppress(*UNREADABLE):
            encrypted.append(msgspec.convert(detail, EncryptedReasoning))
    return tuple(encrypted)


class OlderCall:
    """The call in the field `function_call` of a reply, which some servers send empty with any."""

    def __init__(self) -> None:
        self._name = self._arguments = ""
        # The field has no id, which a call needs in other APIs than a chat.
        self._id = f"call_{secrets.token_hex(12)}"

    def add(self, part: object) -> None:
        """Add the field's value, whole or the next part of it in a stream."""
        name, arguments = _name_and_text(part, "arguments") or ("", "")
        self._name = name or self._name
        self._arguments += arguments

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The call; none if the field was missing or empty."""
        if not (self._name or self._arguments):
            return ()
        name, arguments = self._name, self._arguments
        return (ToolCall(id=self._id, name=name, arguments=arguments, kind="function_call"),)


def _name_and_text(call: object, key: str) -> tuple[str, str] | None:
    """Return the name in a call and the text under `key`; None if it is no object."""
    fields: object = None if call is None else msgspec.to_builtins(call)
    if not isinstance(fields, dict):
        return None
    name, text = fields.get("name"), fields.get(key)
    if text is not None and not isinstance(text, str):
        text = json.dumps(text, ensure_ascii=False)
    return name if isinstance(name, str) else "", text or ""
