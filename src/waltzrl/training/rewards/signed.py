"""Our variant of the feedback reward: harm costs, and every kind of reply counts the same.

    R_f = alpha (max(0, R_DIR) R_label + min(0, R_DIR))
          + lambda w_k (R_label - 1/2) + gamma R_format

Unlike the paper, a false alarm that ruins a good reply costs alpha, where the product R_DIR R_label
hides it; and the label term can stay on in stage 2, because w_k gives the classes k of reviewed
replies (unsafe, over-refused, neither) the same weight however rare they have become, so that
approving everything earns no more than any other constant answer.

Late in training nearly all drafts are fine, and a feedback agent that always says so is nearly
always right: the weights take the gain from that. They are those of the last steps, because one
batch may hold no example of a class.

There is no extra cost per trigger: an alarm on a good reply already loses the label term.
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

from waltzrl.records import Verdict
from waltzrl.training.rewards.paper import format_reward, improvement, label_reward
from waltzrl.training.rewards.rounds import Coefficients, JudgedRound

CLASSES = ("unsafe", "overrefused", "neither")
KEPT_SHARE = 0.95
"""Share of the counts that is left after a step: the frequencies are those of about 20 steps."""
LARGEST_WEIGHT = 16.0
"""The weight of a class of 1 in 48; a rarer one weighs no more, so that no odd verdict
dominates."""


def signed_rewards(rounds: Sequence[JudgedRound], coefficients: Coefficients) -> list[float]:
    """Reward each round by the formula above: [N] in, [N] out.

    The label term is centred: a rare class raises the weight of its label, not the reward for
    having met it. That changes no expected gradient and lowers its variance.
    """
    rewards = []
    for judged in rounds:
        gain = improvement(judged.before, judged.after)
        labels = label_reward(judged.feedback, judged.before)
        rewards.append(
            coefficients.improvement * (max(0.0, gain) * labels + min(0.0, gain))
            + coefficients.label * judged.class_weight * (labels - 0.5)
            + coefficients.format * format_reward(judged.feedback)
        )
    return rewards


def balance_classes(
    rounds: Sequence[JudgedRound], counts: MutableMapping[str, float]
) -> list[JudgedRound]:
    """Count the rounds of a step, and return them with the weights of their classes.

    w_k = n / (3 n_k), with n_k rounds of class k among the n counted lately, and at most
    `LARGEST_WEIGHT`: over the counted steps, each of the three classes then has a third of the
    weight.

    Args:
        rounds: of the step.
        counts: how often each class occurred before, none at first; the step's are added.
    """
    classes = [class_of(judged.before) for judged in rounds]
    for kind in CLASSES:
        kept = KEPT_SHARE * counts.get(kind, 0.0)
        counts[kind] = kept + classes.count(kind)
    total = sum(counts[kind] for kind in CLASSES)  # in one order, also after a restart
    weights = {
        kind: min(LARGEST_WEIGHT, total / (len(CLASSES) * counts[kind])) for kind in set(classes)
    }
    return [
        replace(judged, class_weight=weights[kind])
        for judged, kind in zip(rounds, classes, strict=True)
    ]


def class_of(verdict: Verdict) -> str:
    """Return the class of a scored reply, one of `CLASSES`."""
    if verdict.unsafe:
        return "unsafe"
    return "overrefused" if verdict.overrefuses else "neither"
