"""The three kinds of records in the memory, and how a served exchange becomes the first two.

("safety", "waltzrl", "evaluations")   SafetyEvaluation   every exchange
("safety", "waltzrl", "coaching")      CoachingSession    those in which feedback led to a revision
("safety", "waltzrl", "training")      TrainingSample     one per round, made by the collector
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import structs

from waltzrl.records import ServedExchange, Verdict
from waltzrl.store.memory.labels import (
    Disputed,
    LabelEvent,
    ReferenceLabels,
    ReplyLabel,
    reference_labels,
    reply_label,
)

EVALUATIONS = ("safety", "waltzrl", "evaluations")
COACHING = ("safety", "waltzrl", "coaching")
TRAINING = ("safety", "waltzrl", "training")
BACKUP_MANIFEST = "manifest.json"
"""The file in a backup that is recorded like an export; a backup is deleted, never rewritten."""
ROUTE = "route"
"""`ServedExchange.api` of a routed task; its model is the task's type, its bundle the agent."""
MOST_EXAMPLES = 2
"""The sessions of coaching that an agent is shown as examples with a prompt, at most."""

Outcome = Literal["safe", "unsafe", "over_refused"]
Thumb = Literal["up", "down"]
LabelSource = Literal["person", "judge", "rule", "model"]


class SafetyEvaluation(ServedExchange, frozen=True, kw_only=True):
    """A served exchange as it is kept, and what is known of it; its key is the exchange's id.

    Texts are scrubbed, and `subject` is a keyed digest, empty when the client named no user.
    """

    request_hash: str
    """`request_hash` of the last turn."""
    category: str
    """The category of the first stage-1 rule that matched; empty when none did."""
    safe: bool | None
    """The last review's opinion of the returned reply; None when it was not reviewed."""
    added_milliseconds: float | None = None
    """`own_milliseconds` of the exchange."""
    verdict: Verdict | None = None
    """The online judge's, of the returned reply; None when it was not judged."""
    sampled: bool | None = None
    """Whether it was judged as part of the random sample of what is served, and not because of a
    release alone; None without a verdict."""
    labels: tuple[LabelEvent, ...] = ()
    """The labels of people, the oldest first."""
    label: ReplyLabel | Disputed | None = None
    """`reply_label` of `labels`."""
    reference: ReferenceLabels | None = None
    """`reference_labels` of `labels`."""
    assignee: str | None = None
    """Name of the key of the person who is to label it."""
    thumb: Thumb | None = None
    """The user's opinion of the reply; None when nothing was said."""

    def labelled(self, *events: LabelEvent) -> "SafetyEvaluation":
        """Return the evaluation after more events."""
        labels = (*self.labels, *events)
        return structs.replace(
            self, labels=labels, label=reply_label(labels), reference=reference_labels(labels)
        )


class CoachingSession(msgspec.Struct, frozen=True, kw_only=True):
    """A collaboration in which feedback led to a revision; its key is the exchange's id."""

    coaching_session_id: str
    timestamp: float
    agent_id: str
    """Bundle that served, or the agent of a routed task."""
    subject: str
    request_hash: str
    category: str
    task: str
    """The last turn of the user."""
    task_type: str = ""
    """The type of a routed task."""
    initial_response: str
    safety_risk_score: float | None
    """The risk of the draft, 0 to 1."""
    feedback_provided: tuple[str, ...]
    """[rounds]"""
    refined_response: str
    improvement_score: float | None
    """Risk of the draft minus risk of the returned reply; None when either is unknown."""
    outcome: Outcome


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Before a round: the request, and what was said so far."""

    user_request: str
    context: tuple[str, ...]
    """The turns before the request, each as a line of JSON."""
    coaching_round: int
    """1, 2, ..."""
    coaching_history: tuple[str, ...]
    """Replies and feedback so far, in turn, the draft first."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A round: the feedback, and the reply that it led to."""

    response: str
    reasoning: str
    risk_score: float | None
    """The feedback's, of the reply before."""


class OperationalReward(msgspec.Struct, frozen=True, kw_only=True):
    """The requirement's operational scores; never trained on."""

    safety_score: float
    """The score of the round's last reply, 0 to 1."""
    helpfulness_score: float
    dir_score: float
    """`waltzrl.agents.operational.operational_dir`."""


class TrainingSample(msgspec.Struct, frozen=True, kw_only=True):
    """One round of an exchange as a step of a trajectory; its key is `ID:ROUND`."""

    interaction: str
    """Id of the exchange."""
    subject: str
    request_hash: str
    bundle: str
    time: float
    state: State
    action: Action
    reward: OperationalReward
    next_state: State | None
    """The state before the next round; None when terminal."""
    terminal: bool
    label_source: LabelSource
    """The source of the returned reply's score: a person, the judge, or else the feedback, of rules
    alone or of a model."""


# msgspec describes a type when it first decodes it, and crashes if two threads do so at once.
for _kind in (SafetyEvaluation, CoachingSession, TrainingSample):
    msgspec.json.Decoder(_kind)


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
    """Make the evaluation of an exchange; its texts are not scrubbed yet.

    Args:
        exchange: as the gateway recorded it.
        scrub: the store's, so that equal requests of different people have the same hash.
        digest: makes a pseudonym of the client's name for its user.
        categories: rule id -> category, of the stage-1 rules.
    """
    collaboration = exchange.collaboration
    rounds = () if collaboration is None else collaboration.rounds
    rules = [rule for round_ in rounds for rule in round_.feedback.rules]
    fields = structs.asdict(exchange) | {"unfinished": None, "sent": ""}
    if exchange.subject:
        fields["subject"] = digest(exchange.subject)
    return SafetyEvaluation(
        **fields,
        request_hash=request_hash(scrub(collaboration.prompt.request)) if collaboration else "",
        category=next((categories[rule] for rule in rules if rule in categories), ""),
        safe=_is_safe(exchange),
        added_milliseconds=exchange.own_milliseconds,
    )


def coaching_of(evaluation: SafetyEvaluation) -> CoachingSession | None:
    """Make the coaching session of an exchange; None when no feedback led to a revision."""
    collaboration = evaluation.collaboration
    # A canned refusal in place of a revision teaches nothing.
    if collaboration is None or all(r.origin == "canned" for r in collaboration.replies[1:]):
        return None
    *earlier, last = collaboration.rounds
    first = collaboration.rounds[0].feedback
    last_was_review = last.revision is None
    risk_after = last.feedback.risk if last_was_review else None
    outcome: Outcome = "safe"  # also of a last revision that was not reviewed
    if evaluation.safe is False:
        outcome = "unsafe"
    elif last_was_review and last.feedback.after(earlier).overrefuse:
        outcome = "over_refused"
    return CoachingSession(
        coaching_session_id=evaluation.id,
        timestamp=evaluation.time,
        agent_id=evaluation.bundle,
        subject=evaluation.subject,
        request_hash=evaluation.request_hash,
        category=evaluation.category,
        task=collaboration.prompt.request,
        task_type=evaluation.model if evaluation.api == ROUTE else "",
        initial_response=collaboration.draft.full_text,
        safety_risk_score=first.risk,
        feedback_provided=tuple(round_.feedback.text for round_ in collaboration.rounds),
        refined_response=collaboration.final.full_text,
        improvement_score=(
            None if first.risk is None or risk_after is None else first.risk - risk_after
        ),
        outcome=outcome,
    )


def _is_safe(exchange: ServedExchange) -> bool | None:
    """Return what the last review says of the returned reply."""
    if exchange.decision == "refused":
        return True
    if exchange.collaboration is None or not exchange.collaboration.rounds:
        return None
    last = exchange.collaboration.rounds[-1]
    if last.revision is not None or not last.feedback.well_formed:
        return None
    return not last.feedback.unsafe
