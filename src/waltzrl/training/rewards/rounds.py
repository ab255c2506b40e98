"""What every reward of the feedback agent gets, and what it pays for further rounds.

    R_t - kappa 1{t > 0 and c_{t+1} exists}                       charge_rounds

R_t any reward of the feedback of round t, from 0; kappa the cost. The first revision is free, as in
the paper, whose collaborations have one round. A further one pays where it improves the reply more
often than kappa / alpha, less what its label earns. Feedback that accepts a revision pays nothing:
nobody chose that there is another review. Neither does the conversation agent, which does not
choose how many rounds there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from waltzrl.records import Feedback, JudgedCollaboration, Prompt, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The weights of the feedback agent's three rewards.

    The paper states only that lambda is 0 in stage 2. The other values are not known from it:
    alpha and gamma are the requirement's, lambda in stage 1 is ours (equal to alpha).
    """

    improvement: float = 0.65
    """alpha; raise it when feedback labels well but does not improve replies."""
    label: float = 0.65
    """lambda; raise it when labels are wrong."""
    format: float = 0.1
    """gamma; raise it when feedback often cannot be parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRound:
    """One feedback, with the verdicts on the reply that it reviewed and on the revision."""

    prompt: Prompt
    """What was asked; its label, if it has one, is that of its set."""
    feedback: Feedback
    before: Verdict
    """The verdict on the reviewed reply, c_t."""
    after: Verdict | None = None
    """The verdict on the revision, c_{t+1}; None when the feedback did not lead to one."""
    place: int = 0
    """t: the number of rounds before it."""
    class_weight: float = 1.0
    """w_k of the reviewed reply's class; `balance_classes` sets it."""

    def __post_init__(self) -> None:
        if not _is_scored(self.before) or not _is_scored(self.after):
            raise ValueError(
                "a reward needs scored verdicts, got one that is unscored; leave such rounds out, "
                "as judged_rounds does"
            )


class FeedbackReward(Protocol):
    """A reward of the feedback agent; a variant is another function."""

    def __call__(self, rounds: Sequence[JudgedRound], coefficients: Coefficients) -> list[float]:
        """Reward a whole batch of rounds: [N] in, [N] out; the coefficients are the recipe's."""
        ...


def judged_rounds(judged: JudgedCollaboration) -> tuple[JudgedRound | None, ...]:
    """Pair each round with its verdicts.

    Returns:
        [rounds] in order; None where a verdict is unscored: such a round is left out of the
        batch, because any reward for it would be a guess.

    Raises:
        ValueError: there is not one verdict per reply.
    """
    prompt, replies = judged.collaboration.prompt, judged.collaboration.replies
    verdicts = judged.verdicts
    if len(verdicts) != len(replies):
        raise ValueError(f"need one verdict per reply, got {len(verdicts)} for {len(replies)}")
    rounds: list[JudgedRound | None] = []
    reviewed = 0  # position of the reply that the round reviews
    for place, turn in enumerate(judged.collaboration.rounds):
        before, after = verdicts[reviewed], None
        if turn.revision is not None:
            reviewed += 1
            after = verdicts[reviewed]
        scored = _is_scored(before) and _is_scored(after)
        rounds.append(
            JudgedRound(
                prompt=prompt, feedback=turn.feedback, before=before, after=after, place=place
            )
            if scored
            else None
        )
    return tuple(rounds)


def _is_scored(verdict: Verdict | None) -> bool:
    return verdict is None or verdict.acceptable is not None


def charge_rounds(
    rounds: Sequence[JudgedRound], rewards: Sequence[float], cost: float
) -> list[float]:
    """Subtract the cost from the rewards of further rounds that led to a revision: [N] in and out.

    With a cost of 0, rewards stay what they were, bit by bit.
    """
    return [
        reward - cost if judged.place > 0 and judged.after is not None else reward
        for judged, reward in zip(rounds, rewards, strict=True)
    ]
