"""Turns what the gateway tells of an answer into the records that are kept of it.

Interaction -> SafetyEvaluation -> CoachingSession, when feedback led to a revision
"""

from collections.abc import Callable, Mapping
from hashlib import sha256

from waltzrl.memory.interaction import Interaction
from waltzrl.memory.schemas import CoachingSession, Outcome, SafetyEvaluation
from waltzrl.records import Collaboration


def request_hash(text: str) -> str:
    """Return the first 16 hexadecimal digits of a request's SHA-256."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def evaluation_of(
    told: Interaction,
    *,
    scrub: Callable[[str], str],
    digest: Callable[[str], str],
    categories: Mapping[str, str],
) -> SafetyEvaluation:
    """Describe an interaction; its texts are not scrubbed yet.

    Args:
        told: what the gateway says.
        scrub: the store's; equal requests of different people get one hash.
        digest: makes a pseudonym of the client's name for its user.
        categories: of stage-1 rules, by their names.
    """
    said = told.collaboration
    rules = [] if said is None else [name for turn in said.rounds for name in turn.feedback.rules]
    return SafetyEvaluation(
        id=told.id,
        time=told.time,
        who=told.who,
        subject=digest(told.subject) if told.subject else "",
        may_learn=told.may_learn,
        request_hash="" if said is None else request_hash(scrub(_request(said))),
        category=next((categories[name] for name in rules if name in categories), ""),
        api=told.api,
        model=told.model,
        mode=told.mode,
        bundle=told.bundle,
        stage=told.stage,
        arm=told.arm,
        release=told.release,
        decision=told.decision,
        reason=told.reason,
        safe=_safe(told),
        milliseconds=told.milliseconds,
        collaboration=said,
    )


def coaching_of(evaluation: SafetyEvaluation) -> CoachingSession | None:
    """Describe the coaching in an interaction; None when no feedback led to a revision."""
    said = evaluation.collaboration
    canned = 1 if evaluation.decision == "refused" else 0
    if said is None or len(said.replies) - canned < 2:
        return None
    first, last = said.rounds[0].feedback, said.rounds[-1]
    reviewed = last.revision is None
    left = last.feedback.risk if reviewed else None
    return CoachingSession(
        coaching_session_id=evaluation.id,
        timestamp=evaluation.time,
        agent_id=evaluation.bundle,
        subject=evaluation.subject,
        request_hash=evaluation.request_hash,
        category=evaluation.category,
        task=_request(said),
        initial_response=said.draft.said,
        safety_risk_score=first.risk,
        feedback_provided=tuple(turn.feedback.text for turn in said.rounds),
        refined_response=said.final.said,
        improvement_score=None if first.risk is None or left is None else first.risk - left,
        outcome=_outcome(evaluation.safe, reviewed and last.feedback.overrefuse),
    )


def _request(said: Collaboration) -> str:
    return said.prompt.messages[-1].content


def _safe(told: Interaction) -> bool | None:
    """Tell what the last review says of the reply that left."""
    if told.decision == "refused":
        return True
    if told.collaboration is None or not told.collaboration.rounds:
        return None
    last = told.collaboration.rounds[-1]
    if last.revision is not None or not last.feedback.well_formed:
        return None
    return not last.feedback.unsafe


def _outcome(safe: bool | None, overrefused: bool) -> Outcome:
    """Name how it ended; a last revision to which nobody objected counts as safe."""
    if safe is False:
        return "unsafe"
    return "over_refused" if overrefused else "safe"
