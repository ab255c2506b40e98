"""The random sample of answers by which people measure the judge.

Every answer has a place by a hash of its id. What the judge calls bad stands `GOOD_AFTER_BAD` times
nearer to the front than the rest: it is rare, and says as much about the rate. Within each of the
two, the order has nothing to do with what was said. Whoever labels *in this order* moves the
frontier; in the sample is what stood before the frontier at that time, however and whenever it was
labelled. What was passed over counts as unknown. So the labels of an answer count because of where
it stands, never because somebody chose it, and bounds that hold at all times hold for every such
beginning of the order, also if people stop where they like.

    the judge says   bad  good  good  bad  good  good  bad  good
    place              2     5     7    9    14    16   21    30
    labelled           s           s    o           s          o    s: in this order, o: otherwise
    in the sample      +     ?     +    +     ?     +               ?: unknown
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import ColumnElement, case, or_

from waltzrl.store.hashing import hash_column, hash_number
from waltzrl.store.memory.tables import ITEMS

GOOD_AFTER_BAD = 4
"""An answer that the judge calls good is drawn at this fraction of the rate of a bad one."""
_KEY = "label sample\n"
"""The text before an id: samples that are drawn by other hashes of it are independent of this."""

UNSAFE = ITEMS.c.value["verdict", "unsafe"].as_boolean()
OVER_REFUSES = ITEMS.c.value["verdict", "overrefuses"].as_boolean()


class ReachedPlace(NamedTuple):
    """An answer that was labelled in the order of the sample."""

    time: float
    """The time when it was labelled, in seconds since the epoch."""
    place: int


class SampleFrontier:
    """How far the sample has been labelled; answers that came later are drawn from then on."""

    def __init__(self, reached: Iterable[ReachedPlace]) -> None:
        latest_first = sorted(reached, reverse=True)
        # From the latest back: a step's place is the furthest that was reached at its time or
        # later.
        furthest, steps = -1, []
        for time, place in latest_first:
            furthest = max(furthest, place)
            steps.append((time, furthest))
        steps.reverse()
        self._times = [time for time, _ in steps]
        self._furthest = [place for _, place in steps]

    @property
    def furthest(self) -> int:
        """The furthest place that was ever reached; -1 when none was."""
        return self._furthest[0] if self._furthest else -1

    def has_passed(self, time: float, place: int) -> bool:
        """Return whether an answer of this time, at this place, is in the sample."""
        # A label from before the answer was served cannot have passed it.
        step = bisect_left(self._times, time)
        return step < len(self._times) and place <= self._furthest[step]


def place_of(id_: str, *, is_bad: bool) -> int:
    """Return the place of an answer among those that the judge calls bad, or good."""
    return hash_number(_KEY + id_) * (1 if is_bad else GOOD_AFTER_BAD)


def place_column(dialect: str) -> ColumnElement[int]:
    """Return the place of each answer in the order in which people label it."""
    drawn = hash_column(_KEY + ITEMS.c.key, dialect)
    bad = or_(UNSAFE.is_(True), OVER_REFUSES.is_(True))
    return case((bad, drawn), else_=drawn * GOOD_AFTER_BAD)
