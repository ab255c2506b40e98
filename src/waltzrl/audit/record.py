"""What the log keeps of one decision: who asked, what was decided, by whom and why; no content."""

import json
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from waltzrl.records import Collaboration, Prompt, Round

Decision = Literal["draft", "revised", "refused", "error"]
"""What went out: the draft as it was, a revision, a canned refusal, or an error."""
Event = Literal["opened", "decision", "notice", "gap", "closed"]
Digest: TypeAlias = Callable[[bytes], str]
"""HMAC-SHA256 under the log's digest key, in hex: a plain hash of a short text can be guessed."""

_encoder = msgspec.json.Encoder()


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a decision beside what was said."""

    id: str
    """Of the request."""
    decision: Decision
    reason: str = ""
    """Why, in words that hold no content."""
    who: str = ""
    """Name of the client's key."""
    subject: str = ""
    """The client's own name for its user or conversation; only its digest is logged."""
    api: str = ""
    model: str = ""
    bundle: str = ""
    """The rules, agents and thresholds that served."""
    stage: str = ""
    mode: str = ""
    """How the reply was streamed; empty when it was not."""
    total_ms: float = 0.0


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


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision, as it stands in the log; made by `record_of`.

    The fields that are not explained are those of `Circumstances`.
    """

    id: str
    decision: Decision
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
    """Digest of all that the draft said; None when an error came before it."""
    rounds: tuple[RoundRecord, ...]
    prompt_tokens: int
    """Read by all policies together."""
    reply_tokens: int
    """Written by all policies together."""
    draft_ms: float
    total_ms: float


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
    """Of a notice: what happened to the gateway, such as a release that moved; no content."""
    unaudited: int = 0
    """Of a gap: decisions that went out while they could not be logged."""


def record_of(
    said: Collaboration | Prompt, circumstances: Circumstances, digest: Digest
) -> DecisionRecord:
    """Reduce what was said to what the log keeps.

    Args:
        said: the collaboration; the bare prompt when an error came before the draft.
        circumstances: what else is known.
        digest: `Log.digest` of the log that will keep the record.
    """
    prompt = said if isinstance(said, Prompt) else said.prompt
    draft = None if isinstance(said, Prompt) else said.draft
    rounds = () if isinstance(said, Prompt) else said.rounds
    policies = [draft, *[reply for r in rounds for reply in (r.feedback.reply, r.revision)]]
    written = [reply for reply in policies if reply is not None]
    about = circumstances
    return DecisionRecord(
        id=about.id,
        decision=about.decision,
        reason=about.reason,
        who=about.who,
        subject=digest(_bytes(about.subject)) if about.subject else "",
        api=about.api,
        model=about.model,
        bundle=about.bundle,
        stage=about.stage,
        mode=about.mode,
        prompt=digest(encode(prompt.messages)),
        draft=None if draft is None else digest(_bytes(draft.said)),
        rounds=tuple([_round(turn, digest) for turn in rounds]),
        prompt_tokens=sum([reply.prompt_tokens for reply in written]),
        reply_tokens=sum([reply.reply_tokens for reply in written]),
        draft_ms=0.0 if draft is None else draft.milliseconds,
        total_ms=about.total_ms,
    )


def encode(value: object) -> bytes:
    """Return compact JSON, also for texts with lone surrogates, which agents do write."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def _round(turn: Round, digest: Digest) -> RoundRecord:
    feedback, revision = turn.feedback, turn.revision
    return RoundRecord(
        unsafe=feedback.unsafe,
        overrefuse=feedback.overrefuse,
        well_formed=feedback.well_formed,
        risk=feedback.risk,
        rules=feedback.rules,
        feedback=digest(_bytes(feedback.text)) if feedback.text else "",
        revision=None if revision is None else digest(_bytes(revision.said)),
        feedback_ms=0.0 if feedback.reply is None else feedback.reply.milliseconds,
        revision_ms=0.0 if revision is None else revision.milliseconds,
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
