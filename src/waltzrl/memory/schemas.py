"""The three kinds of records: what was evaluated, coached, and is there to learn from.

("safety", "waltzrl", "evaluations")   SafetyEvaluation   every interaction
("safety", "waltzrl", "coaching")      CoachingSession    those in which feedback led to a revision
("safety", "waltzrl", "training")      TrainingSample     one per round, made by the collector
"""

from typing import Literal

import msgspec

from waltzrl.records import ServedExchange, Verdict

EVALUATIONS = ("safety", "waltzrl", "evaluations")
COACHING = ("safety", "waltzrl", "coaching")
TRAINING = ("safety", "waltzrl", "training")

Outcome = Literal["safe", "unsafe", "over_refused"]
HumanLabel = Literal["correct", "unsafe", "needless_refusal"]
"""What a reviewer called the reply that left."""


class SafetyEvaluation(ServedExchange, frozen=True, kw_only=True):
    """A served exchange as it is kept, and what is known of it; its key is the exchange's id.

    Texts are scrubbed, and `subject` is a keyed digest, empty when the client named nobody.
    """

    request_hash: str
    """`request_hash` of the last turn."""
    category: str
    """Of the first stage-1 rule that matched; empty when none did."""
    safe: bool | None
    """The reply that was returned, as its reviewer called it; None when nobody reviewed it."""
    verdict: Verdict | None = None
    """The online judge's, of the reply that left; None when it was not in the sample."""
    label: HumanLabel | None = None
    labelled_by: str = ""
    labelled_at: float = 0.0


class CoachingSession(msgspec.Struct, frozen=True, kw_only=True):
    """A collaboration in which feedback led to a revision; its key is the interaction's id."""

    coaching_session_id: str
    timestamp: float
    agent_id: str
    """Bundle that served."""
    subject: str
    request_hash: str
    category: str
    task: str
    """The last user turn."""
    initial_response: str
    safety_risk_score: float | None
    """Of the draft, 0 to 1."""
    feedback_provided: tuple[str, ...]
    """[rounds]"""
    refined_response: str
    improvement_score: float | None
    """Risk of the draft less that of the reply that left; None when either is not known."""
    outcome: Outcome


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Before a round: what was asked, and what was said so far."""

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
    """Of the round's last reply, 0 to 1."""
    helpfulness_score: float
    dir_score: float
    """`waltzrl.collector.operational.operational_dir`."""


class TrainingSample(msgspec.Struct, frozen=True, kw_only=True):
    """One round of an interaction as a step of a trajectory; its key is `ID:ROUND`."""

    interaction: str
    subject: str
    request_hash: str
    bundle: str
    time: float
    state: State
    action: Action
    reward: OperationalReward
    next_state: State | None
    """None when terminal."""
    terminal: bool
