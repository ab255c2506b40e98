"""The queue in front of a reviewer: it admits what can be reviewed in time.

    with queue.expect(limit_seconds):  # None: the review would come too late
        ... draft
    async with queue.turn(limit_seconds):  # waits for a place
        ... review

Nobody tells how many reviews a reviewer can do at once. So the queue adds places while reviews end
soon, and halves them when one does not end in time. The places divided by the time of a review are
the rate, and the reviews ahead divided by the rate the expected wait.
"""

from asyncio import Semaphore, get_running_loop
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Self

MOST_WAITING = 256
"""The most reviews that wait for a place; more are not admitted, however fast the reviewer is."""
WEIGHT = 0.2
"""The weight of the newest time in a mean of times; the last ten make nine tenths of it."""
SOON = 0.5
"""The share of the time limit within which a review must end for more of them at once to be tried,
as more at once make each of them slower.
"""
PLANNED_SHARE = 0.7
"""The share of the time limit that may be expected for a review whose draft is not there yet: what
is not planned covers the error of the estimate, because a draft that comes too late was paid in
vain.
"""


def loop_time() -> float:
    """Return the time of the event loop in seconds, by which time limits run too."""
    return get_running_loop().time()


class ReviewTurn:
    """One review: a context manager that waits for a place, and measures the time in it."""

    def __init__(self, queue: "ReviewQueue", limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self.began: float | None = None
        """The time when it got a place; None while it waits."""
        self._queue = queue

    async def __aenter__(self) -> Self:
        """Wait for a place.

        Raises:
            TimeoutError: the wait left too little time; what would be computed would be lost.
        """
        arrived = self._queue.now()
        has_waited = await self._queue.enter()
        began = self._queue.now()
        if has_waited and began - arrived + self._queue.review_seconds > self.limit_seconds:
            self._queue.leave()
            raise TimeoutError
        self.began = began
        return self

    async def __aexit__(self, error: object, *exception: object) -> None:
        assert self.began is not None, "it was entered"
        took = self._queue.now() - self.began
        if error is None:  # a failure says nothing of the rate
            self._queue.reviewed(took, soon=took <= SOON * self.limit_seconds)
        self._queue.leave()


class ReviewQueue:
    """First come, first served. Not thread-safe: use it from one event loop."""

    def __init__(
        self,
        most_at_once: int,
        *,
        first_places: int | None = None,
        most_waiting: int = MOST_WAITING,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        """Start empty.

        Args:
            most_at_once: reviews that the reviewer gets at once, at most.
            first_places: that it gets at once before anything is known of it; None for the most.
            most_waiting: reviews that wait for a place, at most.
            clock: monotonic time in seconds.
        """
        self.now = clock
        self._most_at_once, self._most_waiting = most_at_once, most_waiting
        self._places = float(first_places or most_at_once)
        """The number of reviews at once, as it is now held to be right."""
        self._permits = int(self._places)
        """The permits of the semaphore, free and taken: the places that there are."""
        self._free = Semaphore(self._permits)
        self._running = 0
        self.waiting = 0
        """The number of reviews that wait for a place."""
        self._review_seconds: float | None = None
        """The mean time of a review in its place; None before the first."""
        self._drafts = 0
        """The number of drafts under way."""
        self._draft_seconds = 0.0
        """The mean time of a draft."""
        self._slowed_at: float | None = None
        """The time when the number of places was halved last."""

    @property
    def review_seconds(self) -> float:
        """How long a review takes in its place; 0 before the first."""
        return self._review_seconds or 0.0

    @property
    def expected_seconds(self) -> float:
        """How long a review that came now would wait for a place; 0 before the rate is known."""
        return self._expected_wait(0)

    @property
    def backlog_seconds(self) -> float:
        """How long all will take that are here, and the reviews of the drafts under way."""
        return self._expected_wait(self._drafts)

    def admits(self, limit_seconds: float) -> bool:
        """Return whether a review that came now would end within its time limit.

        One that finds a free place is always admitted: only so is it known that the reviewer has
        become faster.
        """
        wait = self.expected_seconds
        in_time = not wait or wait + self.review_seconds <= limit_seconds
        return in_time and self.waiting < self._most_waiting

    def expect(self, limit_seconds: float) -> AbstractContextManager[None] | None:
        """Return a context manager around the generation of a draft that will be reviewed.

        It is None if the review would come too late: the drafts under way come before it, and the
        reviewer goes on while it is generated.
        """
        wait = max(0.0, self._expected_wait(self._drafts) - self._draft_seconds)
        planned_seconds = PLANNED_SHARE * limit_seconds
        if wait and wait + self.review_seconds > planned_seconds:
            return None
        if self.waiting >= self._most_waiting:
            return None
        self._drafts += 1
        return self._measure_draft()

    @contextmanager
    def _measure_draft(self) -> Iterator[None]:
        began = self.now()
        try:
            yield
        finally:
            self._drafts -= 1
        # Only of a draft that is there to be reviewed.
        self._draft_seconds += WEIGHT * (self.now() - began - self._draft_seconds)

    def turn(self, limit_seconds: float) -> ReviewTurn:
        """Return a context manager for one review; who is cancelled while it waits is left out."""
        return ReviewTurn(self, limit_seconds)

    def timed_out(self, turn: ReviewTurn) -> bool:
        """Note that a review was not done in its time limit; return whether the reviewer is slow.

        It is not if most of the time was the wait for a place. Of several that were under way
        together only the first counts.
        """
        if turn.began is None:
            return False
        took = self.now() - turn.began
        self._measure(max(took, self.review_seconds))  # it would have taken longer
        return took > turn.limit_seconds / 2 and self.slow_down(turn)

    def slow_down(self, turn: ReviewTurn) -> bool:
        """Halve the reviews at once; return False, and do nothing, if that was done since `turn`.

        For a review that was too slow, or that the reviewer's server had no capacity for.
        """
        assert turn.began is not None, "only a review that began says something of the reviewer"
        if self._slowed_at is not None and turn.began <= self._slowed_at:
            return False
        self._slowed_at = self.now()
        self._places = max(1.0, self._places / 2)
        return True

    async def enter(self) -> bool:
        """Take a place; return whether it was not there at once."""
        waits = self._free.locked()
        self.waiting += 1
        try:
            await self._free.acquire()
            while self._permits > int(self._places):  # a free place of those that were given up
                # Counted before the wait, so that a cancellation there leaves the count right.
                self._permits -= 1
                await self._free.acquire()
        finally:
            self.waiting -= 1
        self._running += 1
        return waits

    def reviewed(self, seconds: float, *, soon: bool) -> None:
        """Note what a review took in its place."""
        self._measure(seconds)
        if soon and self._free.locked():  # while places are free, more prove nothing
            # Fast until the first halving, then about one more place for each round of reviews.
            more = 1.0 if self._slowed_at is None else 1 / self._places
            self._places = min(float(self._most_at_once), self._places + more)

    def leave(self) -> None:
        """Give back a place."""
        self._running -= 1
        self._permits -= 1
        # After `slow_down` there are more permits than places; one that is too many is not given
        # back.
        while self._permits < int(self._places):
            self._permits += 1
            self._free.release()

    def _expected_wait(self, more: int) -> float:
        """Return the wait for a place behind all reviews that are here, and `more`."""
        # With P places, a review begins when all but P - 1 of those before it have ended.
        to_end_first = self._running + self.waiting + more + 1 - int(self._places)
        if to_end_first <= 0 or self._review_seconds is None:
            return 0.0
        rate = int(self._places) / self._review_seconds
        return to_end_first / rate

    def _measure(self, seconds: float) -> None:
        mean = self._review_seconds
        self._review_seconds = seconds if mean is None else mean + WEIGHT * (seconds - mean)
