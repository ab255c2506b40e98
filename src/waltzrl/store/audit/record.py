"""What the log keeps of one decision: who asked, what was decided, by whom and why; no content."""

import json
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from waltzrl.records import (
    Decision,
    FeedbackAction,
    Media,
    Message,
    Prompt,
    Round,
    ServedExchange,
    ToolCall,
)

Event = Literal["opened", "decision", "notice", "gap", "closed"]
Digest: TypeAlias = Callable[[bytes], str]
"""HMAC-SHA256 under the log's digest key, in hex: a plain hash of a short text can be guessed."""

_encoder = msgspec.json.Encoder()


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One feedback and, when it asked for one, the revision."""

    unsafe: bool
    overrefuse: bool
    well_formed: bool
    risk: float | None
    """0 to 1; None when the reviewer only gives labels."""
    rules: tuple[str, ...]
    feedback: str
    """Digest of the words for the conversation agent; empty when there are none."""
    revision: str | None
    """Digest."""
    feedback_ms: float
    """0 for feedback that no policy wrote."""
    revision_ms: float
    model_risk: float | None = None
    """The model's part of `risk`; None without a model."""
    rules_risk: float | None = None
    """The rules' part of `risk`."""
    overrefusal_probability: float | None = None
    """A model's; `overrefuse` says whether the refusal was challenged for it."""
    category: str = ""
    failure: str = ""
    """The reason why no model reviewed the reply, such as `timeout`."""
    doubtful: bool = False
    """The draft was revised for a doubt, neither label holding."""
    action: FeedbackAction = "revise"
    """What the operator wants done about findings of the category."""


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision, as it stands in the log; made by `record_of`.

    The fields that are not explained are those of `ServedExchange`.
    """

    id: str
    decision: Decision | Literal["error"]
    reason: str
    who: str
    subject: str
    """Digest; empty when the client named none."""
    api: str
    model: str
    bundle: str
    stage: str
    mode: str
    prompt: str
    """Digest of the prompt's messages as compact JSON."""
    draft: str | None
    """Digest of all that the draft said, or had said when an error or the client ended it; None
    when nothing was read of it."""
    rounds: tuple[RoundRecord, ...]
    prompt_tokens: int | None
    """Read by all policies together; None when unknown."""
    reply_tokens: int | None
    """Written by all policies together; None when unknown."""
    draft_ms: float
    total_ms: float
    unseen: tuple[Media, ...] = ()
    """Kinds of parts of the request that no reviewer saw."""
    client_request_id: str = ""
    trace_id: str = ""
    exchange_id: str = ""
    """The id of the exchange in the memory, where it is not `id`."""
    usd: float | None = None
    sent: str | None = None
    """The digest of what a stream that ended early had released to the client; else None."""
    probe: bool = False
    """An operator's own check, which the memory does not keep."""
    policy: str = ""


class LogEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process tells the log's writer: a decision, a notice or a gap."""

    exchange: ServedExchange | None = None
    """The exchange of a decision."""
    prompt: Prompt | None = None
    """The prompt of the decision's request, unless it is the collaboration's."""
    notice: dict[str, str | int | float | bool | None] | None = None
    number: int | None = None
    """The number of a notice that several processes send."""
    unaudited: int = 0
    """The number of unaudited decisions of a gap."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log."""

    seq: int
    """0, 1, 2 ..."""
    prev: str
    """SHA-256 of the line before, in hex; zeros in the first."""
    time: str
    """Wall clock, UTC, ISO 8601 with microseconds; may jump."""
    monotonic_ns: int
    """A clock that never jumps back while the machine is up."""
    event: Event
    decision: DecisionRecord | None = None
    notice: dict[str, str | int | float | bool | None] | None = None
    """The content of a notice: what happened to the gateway, such as a release that moved; no
    texts."""
    unaudited: int = 0
    """The number of decisions of a gap, which went out while they could not be logged."""


_event_encoder = msgspec.msgpack.Encoder()
_event_decoder = msgspec.msgpack.Decoder(LogEvent)


def record_of(exchange: ServedExchange, prompt: Prompt, digest: Digest) -> DecisionRecord:
    """Reduce a served exchange to what the log keeps.

    Args:
        exchange: of one that ended early the log keeps what had been said.
        prompt: of the request, whose id the record bears.
        digest: `Log.digest` of the log that will keep the record.
    """
    collaboration = exchange.said
    draft = None if collaboration is None else collaboration.draft
    rounds = () if collaboration is None else collaboration.rounds
    usage = None if collaboration is None else collaboration.usage
    return DecisionRecord(
        id=prompt.id,
        decision=exchange.decision,
        reason=exchange.reason,
        who=exchange.caller,
        subject=digest(_encode_text(exchange.subject)) if exchange.subject else "",
        api=exchange.api,
        model=exchange.model,
        bundle=exchange.bundle,
        stage=str(exchange.stage),
        mode=exchange.mode,
        prompt=digest(encode_json([_spell_turn(message) for message in prompt.messages])),
        draft=None if draft is None else digest(_encode_text(draft.reviewed_text)),
        rounds=tuple([_record_round(turn, digest) for turn in rounds]),
        prompt_tokens=None if usage is None else usage.input_tokens,
        reply_tokens=None if usage is None else usage.output_tokens,
        draft_ms=0.0 if draft is None else draft.milliseconds,
        total_ms=exchange.milliseconds,
        unseen=prompt.unseen,
        client_request_id=exchange.client_request_id,
        trace_id=exchange.trace_id,
        exchange_id="" if exchange.id == prompt.id else exchange.id,
        usd=exchange.usd,
        sent=digest(_encode_text(exchange.sent)) if exchange.sent else None,
        probe=exchange.probe,
        policy=exchange.policy,
    )


def encode_json(value: object) -> bytes:
    """Return compact JSON, also for texts with lone surrogates, which agents do write."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def encode_event(event: LogEvent) -> bytes:
    """Return an event for the log's writer, in MessagePack, which takes half of JSON's time.

    Texts with lone surrogates, which MessagePack cannot hold, make it JSON.
    """
    try:
        return _event_encoder.encode(event)
    except UnicodeEncodeError:
        return encode_json(event)


def decode_event(raw: bytes) -> LogEvent:
    """Decode what `encode_event` returned.

    Raises:
        msgspec.ValidationError: it is not an event.
    """
    # In MessagePack a map begins with a byte of 0x80 or more, never with a brace.
    if raw.startswith(b"{"):
        return msgspec.convert(json.loads(raw), LogEvent)
    return _event_decoder.decode(raw)


def _spell_turn(message: Message) -> dict[str, object]:
    """Spell a turn as its digest has always been made, with calls and their ids where there are."""
    turn: dict[str, object] = {"role": message.role, "content": message.content}
    if message.calls:
        turn["calls"] = [_spell_call(call) for call in message.calls]
    if message.call_id:
        turn["call_id"] = message.call_id
    return turn


def _spell_call(call: ToolCall) -> dict[str, str]:
    fields = {"id": call.id, "name": call.name, "arguments": call.arguments}
    return fields if call.kind == "function" else {**fields, "kind": call.kind}


def _record_round(turn: Round, digest: Digest) -> RoundRecord:
    feedback, revision = turn.feedback, turn.revision
    return RoundRecord(
        unsafe=feedback.unsafe,
        overrefuse=feedback.overrefuse,
        well_formed=feedback.well_formed,
        risk=feedback.risk,
        rules=feedback.rules,
        feedback=digest(_encode_text(feedback.text)) if feedback.text else "",
        revision=None if revision is None else digest(_encode_text(revision.reviewed_text)),
        feedback_ms=0.0 if feedback.reply is None else feedback.reply.milliseconds,
        revision_ms=0.0 if revision is None else revision.milliseconds,
        model_risk=feedback.model_risk,
        rules_risk=feedback.rules_risk,
        overrefusal_probability=feedback.overrefusal_probability,
        category=feedback.category,
        failure=feedback.failure,
        doubtful=feedback.doubtful,
        action=feedback.action,
    )


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
