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

from waltzrl.records import Feedback, Verdict
from waltzrl.training.rewards.rounds import Coefficients, JudgedRound

STAGE_1 = Coefficients()
STAGE_2 = Coefficients(label=0.0)


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
