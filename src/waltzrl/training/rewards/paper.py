"""The rewards of The Alignment Waltz (arXiv 2510.08240).

    R_c = 1{not unsafe and not overrefuse}                        conversation_reward
    R_DIR = R_c(c_{t+1}) - R_c(c_t); 0 without a revision         improvement
    R_label = 1{L(f_t) = J(p, c_t)}, both booleans                label_reward
    R_format = 1{f_t parses}                                      format_reward
    R_f = alpha R_DIR R_label + lambda R_label + gamma R_format   feedback_reward

p prompt, c_t reply of round t, f_t feedback, L(f_t) its two labels, J the judge.

Its three reward designs, compared with the conversation agent frozen:

    A  all terms                      paper_rewards with STAGE_1
    B  no additive label (lambda 0)   paper_rewards with STAGE_2
    C  no label at all                unconditioned_rewards
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from waltzrl.records import Feedback, JudgedCollaboration, Verdict


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


STAGE_1 = Coefficients()
STAGE_2 = Coefficients(label=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRound:
    """One feedback, with the verdicts on the reply that it reviewed and on the revision."""

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
    replies, verdicts = judged.collaboration.replies, judged.verdicts
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
            JudgedRound(feedback=turn.feedback, before=before, after=after, place=place)
            if scored
            else None
        )
    return tuple(rounds)


def _is_scored(verdict: Verdict | None) -> bool:
    return verdict is None or verdict.acceptable is not None


def conversation_reward(verdict: Verdict) -> float:
    """Return 1 for a reply that is neither unsafe nor an over-refusal, else 0.

    Unlike the paper, it is 0 too for a reply that answers nothing, if the judge looks for those:
    otherwise an empty or endless reply to a harmless prompt would be paid like an answer.

    Raises:
        ValueError: the verdict is unscored; any number would be a guess, even zero.
    """
    if verdict.acceptable is None:
        raise ValueError("an unscored verdict has no reward; leave its sample out")
    return float(verdict.acceptable)  # R_c


def improvement(before: Verdict, after: Verdict | None) -> float:
    """Return the gain of the revision, in {-1, 0, 1}; 0 when there was no revision."""
    if after is None:
        return 0.0
    return conversation_reward(after) - conversation_reward(before)  # R_DIR


def label_reward(feedback: Feedback, verdict: Verdict) -> float:
    """Return 1 if both labels are right, else 0; feedback that could not be parsed has none."""
    agrees = (feedback.unsafe, feedback.overrefuse) == (verdict.unsafe, verdict.overrefuses)
    return float(feedback.well_formed and agrees)  # R_label


def format_reward(feedback: Feedback) -> float:
    """Return 1 if the feedback could be parsed, else 0."""
    return float(feedback.well_formed)  # R_format


def feedback_reward(judged: JudgedRound, coefficients: Coefficients) -> float:
    """Reward one feedback: R_f = alpha R_DIR R_label + lambda R_label + gamma R_format.

    The product is never negative: where R_DIR is -1 the reviewed reply was good, so the label that
    asked for a revision was wrong and R_label is 0. With lambda = 0 a false alarm that ruins a
    good reply is therefore rewarded like a correct approval; `signed_rewards` closes this hole.
    """
    gain = improvement(judged.before, judged.after)
    labels = label_reward(judged.feedback, judged.before)
    return (
        coefficients.improvement * gain * labels
        + coefficients.label * labels
        + coefficients.format * format_reward(judged.feedback)
    )


def paper_rewards(rounds: Sequence[JudgedRound], coefficients: Coefficients) -> list[float]:
    """Reward each round by `feedback_reward`: [N] in, [N] out."""
    return [feedback_reward(judged, coefficients) for judged in rounds]


def unconditioned_rewards(rounds: Sequence[JudgedRound], coefficients: Coefficients) -> list[float]:
    """Reward improvement whatever the labels were: alpha R_DIR + gamma R_format (design C).

    `coefficients.label` is not used.
    """
    return [
        coefficients.improvement * improvement(judged.before, judged.after)
        + coefficients.format * format_reward(judged.feedback)
        for judged in rounds
    ]
