"""The input of a feedback reward: one feedback, and the verdicts before and after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from waltzrl.records import Feedback, JudgedCollaboration, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRound:
    """One feedback, with the verdicts on the reply that it reviewed and on the revision."""

    feedback: Feedback
    before: Verdict
    """The verdict on the reviewed reply, c_t."""
    after: Verdict | None = None
    """The verdict on the revision, c_{t+1}; None when the feedback did not lead to one."""
    class_weight: float = 1.0
    """w_k of the reviewed reply's class; `ClassFrequencies` sets it."""

    def __post_init__(self) -> None:
        if not _is_scored(self.before) or not _is_scored(self.after):
            raise ValueError(
                "a reward needs scored verdicts, got one that is unscored; leave such rounds out, "
                "as judged_rounds does"
            )


FeedbackReward: TypeAlias = Callable[[Sequence[JudgedRound]], list[float]]
"""A function that rewards a whole batch of rounds: [N] rounds in, [N] rewards out. A variant is
another function. Bind its coefficients with `functools.partial(paper_rewards,
coefficients=STAGE_1)`."""


def judged_rounds(judged: JudgedCollaboration) -> tuple[JudgedRound | None, ...]:
    """Pair each round with its verdicts.

    Returns:
        [rounds] in order; None where a verdict is unscored: such a round is left out of the
        batch, because any reward for it would be a guess.

    Raises:
        ValueError: there is not one verdict per reply.
    """
    replies, verdicts = judged.collaboration.replies, judged.verdicts
    if len(verdicts) != len(replies):
        raise ValueError(f"need one verdict per reply, got {len(verdicts)} for {len(replies)}")
    rounds: list[JudgedRound | None] = []
    reviewed = 0  # position of the reply that the round reviews
    for turn in judged.collaboration.rounds:
        before, after = verdicts[reviewed], None
        if turn.revision is not None:
            reviewed += 1
            after = verdicts[reviewed]
        scored = _is_scored(before) and _is_scored(after)
        rounds.append(
            JudgedRound(feedback=turn.feedback, before=before, after=after) if scored else None
        )
    return tuple(rounds)


def _is_scored(verdict: Verdict | None) -> bool:
    return verdict is None or verdict.acceptable is not None
