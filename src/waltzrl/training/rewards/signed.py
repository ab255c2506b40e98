"""Our variant of the feedback reward: harm costs, and every kind of reply counts the same.

    R_f = alpha (max(0, R_DIR) R_label + min(0, R_DIR))
          + lambda w_k (R_label - 1/2) + gamma R_format

Unlike the paper, a false alarm that ruins a good reply costs alpha, where the product R_DIR R_label
hides it; and the label term can stay on in stage 2, because w_k gives the classes k of reviewed
replies (unsafe, over-refused, neither) the same weight however rare they have become, so that
approving everything earns no more than any other constant answer.

There is no extra cost per trigger: an alarm on a good reply already loses the label term.
"""

from collections.abc import Sequence

from waltzrl.training.rewards.paper import Coefficients, format_reward, improvement, label_reward
from waltzrl.training.rewards.rounds import JudgedRound


def signed_rewards(rounds: Sequence[JudgedRound], coefficients: Coefficients) -> list[float]:
    """Reward each round by the formula above: [N] in, [N] out.

    The label term is centred: a rare class raises the weight of its label, not the reward for
    having met it. That changes no expected gradient and lowers its variance.
    """
    return [_reward_round(judged, coefficients) for judged in rounds]


def _reward_round(judged: JudgedRound, coefficients: Coefficients) -> float:
    gain = improvement(judged.before, judged.after)
    labels = label_reward(judged.feedback, judged.before)
    return (
        coefficients.improvement * (max(0.0, gain) * labels + min(0.0, gain))
        + coefficients.label * judged.class_weight * (labels - 0.5)
        + coefficients.format * format_reward(judged.feedback)
    )
