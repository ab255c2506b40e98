"""People who label answers in some order, and what the judge's rate is corrected to then."""

from dataclasses import dataclass

import numpy as np

from support.small_console import NOW
from waltzrl.evaluation.sample_correction import LabelledSample, RateEstimate, judged_rate
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.store.memory.queue import QueueSelection
from waltzrl.store.memory.sampling import GOOD_AFTER_BAD

ORDERS = ("sample", "disagreement", "unsafe first", "safe first", "topic", "newest")
TOPICS = 12


@dataclass(frozen=True)
class World:
    """[N] answers, the newest first."""

    unsafe: np.ndarray
    """The truth, which people tell."""
    called: np.ndarray
    """Whether the judge calls them unsafe."""
    reviewer: np.ndarray
    topic: np.ndarray
    """Unsafe answers are in a quarter of the topics more often."""
    place: np.ndarray
    """In the random sample."""

    @classmethod
    def drawn(cls, answers, rate, sensitivity, false_alarms, dice):
        unsafe = dice.random(answers) < rate
        called = dice.random(answers) < np.where(unsafe, sensitivity, false_alarms)
        reviewer = dice.random(answers) < np.where(unsafe, 0.5, 0.05)
        harmful = dice.random(answers) < np.where(unsafe, 0.8, 0.25)
        topic = np.where(harmful, dice.integers(3, size=answers), dice.integers(3, TOPICS, answers))
        place = dice.permutation(answers) * np.where(called, 1, GOOD_AFTER_BAD)
        return cls(unsafe, called, reviewer, topic, place)

    def order(self, name):
        """Return the answers as a list of the desk shows them; equal ones the newest first."""
        match name:
            case "sample":
                first = self.place
            case "disagreement":
                first = self.called == self.reviewer
            case "unsafe first":
                first = ~self.called
            case "safe first":
                first = self.called
            case "topic":
                first = self.topic
            case _:
                first = np.zeros(len(self.called))
        return np.argsort(first, kind="stable")

    def sample(self, labelled, furthest):
        """Return what people say of the sample up to a place, -1 for none."""
        counts = {}
        for called, names in (
            (True, ("true_positives", "false_positives", "unknown_positives")),
            (False, ("false_negatives", "true_negatives", "unknown_negatives")),
        ):
            drawn = (self.called == called) & (self.place <= furthest)
            cells = (self.unsafe & labelled, ~self.unsafe & labelled, ~labelled)
            counts |= {
                name: int((drawn & cell).sum()) for name, cell in zip(names, cells, strict=True)
            }
        return LabelledSample(**counts)

    def looks(self, name, chosen, sampled, every):
        """Yield the rate while people label `chosen` in an order, then `sampled` of the sample."""
        labelled = np.zeros(len(self.called), dtype=bool)
        furthest = -1
        for number, answer in enumerate(self.order(name)[:chosen], start=1):
            labelled[answer] = True
            if name == "sample":
                furthest = max(furthest, self.place[answer])
            if number % every == 0:
                yield self.rate(labelled, furthest)
        left = [answer for answer in self.order("sample") if not labelled[answer]]
        for number, answer in enumerate(left[:sampled], start=1):
            labelled[answer] = True
            furthest = max(furthest, self.place[answer])
            if number % every == 0:
                yield self.rate(labelled, furthest)

    def rate(self, labelled, furthest) -> RateEstimate:
        sample = self.sample(labelled, furthest)
        return judged_rate(int(self.called.sum()), len(self.called), sample)


def label_in(memory, truth, times, **selection):
    """Label the first answers of a list, as a reviewer at the desk does."""
    chosen = QueueSelection(rater="ada", rated="no", **selection)
    for number, queued in enumerate(memory.queue(chosen, limit=times)):
        said = LabelEvent(
            by="ada",
            time=NOW + 1000 + number,
            reply=truth[queued.evaluation.id],
            steers=True,
            selection=chosen.order,
        )
        memory.label(queued.evaluation.id, said)
