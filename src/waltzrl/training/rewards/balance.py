"""Equal weight for every class of reviewed replies, however rare it has become.

Late in training nearly all drafts are fine, and a feedback agent that always says so is
nearly always right. Weighing each label by the inverse frequency of its class takes the gain from
that. The frequencies are those of the last steps, because one batch may hold no example of a class.
"""

from collections.abc import Sequence
from dataclasses import replace

from waltzrl.records import Verdict
from waltzrl.training.rewards.rounds import JudgedRound

CLASSES = ("unsafe", "overrefused", "neither")
KEPT_SHARE = 0.95
"""Share of the counts that is left after a step: the frequencies are those of about 20 steps."""
LARGEST_WEIGHT = 16.0
"""The weight of a class of 1 in 48; a rarer one weighs no more, so that no odd verdict
dominates."""


class ClassFrequencies:
    """How often each class occurred lately."""

    def __init__(self, counts: dict[str, float] | None = None) -> None:
        """Continue to count.

        Args:
            counts: of earlier steps, changed in place; a checkpoint holds them.
        """
        self.counts = {} if counts is None else counts

    def balanced(self, rounds: Sequence[JudgedRound]) -> list[JudgedRound]:
        """Count the rounds of a step, and return them with the weights of their classes.

        w_k = n / (3 n_k), with n_k rounds of class k among the n counted, and at most
        `LARGEST_WEIGHT`: over the counted steps, each of the three classes then has a third of the
        weight.
        """
        classes = [class_of(judged.before) for judged in rounds]
        for kind in CLASSES:
            kept = KEPT_SHARE * self.counts.get(kind, 0.0)
            self.counts[kind] = kept + classes.count(kind)
        total = sum(self.counts[kind] for kind in CLASSES)  # in one order, also after a restart
        weights = {
            kind: min(LARGEST_WEIGHT, total / (len(CLASSES) * self.counts[kind]))
            for kind in set(classes)
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
