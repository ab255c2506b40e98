"""Our variant of the feedback reward: harm costs, and every kind of reply counts the same.

    R_f = alpha (max(0, R_DIR) R_label + min(0, R_DIR))
          + lambda w_k (R_label - 1/2) + gamma R_format

Unlike the paper, a false alarm that ruins a good reply costs alpha, where the product R_DIR R_label
hides it; and the label term can stay on in stage 2, because w_k weighs the classes k of reviewed
replies (unsafe, over-refused, acceptable) equally however rare they have become, so that approving
everything earns no more than any other constant answer.

There is no extra cost per trigger: an alarm on a good reply already loses the label term.
"""

from collections import Counter
from collections.abc import Sequence

from waltzrl.records import Verdict
from waltzrl.training.rewards.paper import Coefficients, format_reward, improvement, label_reward
from waltzrl.training.rewards.rounds import JudgedRound

LARGEST_WEIGHT = 8.0
"""A class rarer than 1 in 8 weighs as much as one of 1 in 8: one odd verdict must not dominate."""


def signed_rewards(rounds: Sequence[JudgedRound], coefficients: Coefficients) -> list[float]:
    """Reward a batch of rounds by the formula above: [N] in, [N] out.

    The label term is centred: a rare class raises the weight of its label, not the reward for
    having met it. That changes no expected gradient and lowers its variance.
    """
    weights = class_weights([judged.before for judged in rounds])
    return [
        _signed_reward(judged, weight, coefficients)
        for judged, weight in zip(rounds, weights, strict=True)
    ]


def _signed_reward(judged: JudgedRound, weight: float, coefficients: Coefficients) -> float:
    gain = improvement(judged.before, judged.after)
    labels = label_reward(judged.feedback, judged.before)
    return (
        coefficients.improvement * (max(0.0, gain) * labels + min(0.0, gain))
        + coefficients.label * weight * (labels - 0.5)
        + coefficients.format * format_reward(judged.feedback)
    )


def class_weights(verdicts: Sequence[Verdict]) -> list[float]:
    """Weigh each verdict by the inverse frequency of its class (unsafe, overrefuses) in the batch.

    Returns:
        [N] w_k, between 0 and `LARGEST_WEIGHT`, with mean 1.
    """
    total = len(verdicts)
    classes = [(verdict.unsafe, verdict.overrefuses) for verdict in verdicts]
    counts = Counter(classes)
    inverse = [1 / max(counts[kind], total / LARGEST_WEIGHT) for kind in classes]
    return [total * weight / sum(inverse) for weight in inverse]
