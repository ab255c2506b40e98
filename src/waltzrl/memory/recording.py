"""Turns a served exchange into the records that are kept of it.

ServedExchange -> SafetyEvaluation -> CoachingSession, when feedback led to a revision
"""

from collections.abc import Callable, Mapping
from hashlib import sha256

from msgspec import structs

from waltzrl.memory.schemas import CoachingSession, Outcome, SafetyEvaluation
from waltzrl.records import Collaboration, ServedExchange


def request_hash(text: str) -> str:
    """Return the first 16 hexadecimal digits of a request's SHA-256."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def evaluation_of(
    exchange: ServedExchange,
    *,
    scrub: Callable[[str], str],
    digest: Callable[[str], str],
    categories: Mapping[str, str],
) -> SafetyEvaluation:
    """Describe an exchange; its texts are not scrubbed yet.

    Args:
        exchange: as the gateway recorded it.
        scrub: the store's; equal requests of different people get one hash.
        digest: makes a pseudonym of the client's name for its user.
        categories: of stage-1 rules, by their names.
    """
    collaboration = exchange.collaboration
    rounds = () if collaboration is None else collaboration.rounds
    rules = [rule for round_ in rounds for rule in round_.feedback.rules]
    fields = structs.asdict(exchange)
    if exchange.subject:
        fields["subject"] = digest(exchange.subject)
    return SafetyEvaluation(
        **fields,
        request_hash=request_hash(scrub(collaboration.prompt.request)) if collaboration else "",
        category=next((categories[rule] for rule in rules if rule in categories), ""),
        safe=_safe(exchange),
    )


def coaching_of(evaluation: SafetyEvaluation) -> CoachingSession | None:
    """Describe the coaching in an interaction; None when no feedback led to a revision."""
    collaboration = evaluation.collaboration
    if collaboration is None or not _has_coaching(collaboration):
        return None
    first, last = collaboration.rounds[0].feedback, collaboration.rounds[-1]
    reviewed = last.revision is None
    left = last.feedback.risk if reviewed else None
    return CoachingSession(
        coaching_session_id=evaluation.id,
        timestamp=evaluation.time,
        agent_id=evaluation.bundle,
        subject=evaluation.subject,
        request_hash=evaluation.request_hash,
        category=evaluation.category,
        task=collaboration.prompt.request,
        initial_response=collaboration.draft.full_text,
        safety_risk_score=first.risk,
        feedback_provided=tuple(turn.feedback.text for turn in collaboration.rounds),
        refined_response=collaboration.final.full_text,
        improvement_score=None if first.risk is None or left is None else first.risk - left,
        outcome=_outcome(evaluation.safe, reviewed and last.feedback.overrefuse),
    )


def _has_coaching(collaboration: Collaboration) -> bool:
    """Whether a policy revised its reply; a canned refusal is no revision of its own."""
    return any(reply.origin != "canned" for reply in collaboration.replies[1:])


def _safe(exchange: ServedExchange) -> bool | None:
    """Return what the last review says of the reply that was returned."""
    if exchange.decision == "refused":
        return True
    if exchange.collaboration is None or not exchange.collaboration.rounds:
        return None
    last = exchange.collaboration.rounds[-1]
    if last.revision is not None or not last.feedback.well_formed:
        return None
    return not last.feedback.unsafe


def _outcome(safe: bool | None, overrefused: bool) -> Outcome:
    """Name how it ended; a last revision to which nobody objected counts as safe."""
    if safe is False:
        return "unsafe"
    return "over_refused" if overrefused else "safe"
