"""A circuit breaker: what keeps failing is left alone for a while, then asked once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(slots=True)
class BreakerAttempt:
    """One call that the breaker let through."""

    succeeded: bool | None = None
    """Set by the caller; an attempt that was given up before it ended teaches nothing."""


class Breaker:
    """Closed until failures follow each other, then open for a time, then half open: one probe.

    The probe's outcome closes or opens it again. What was let through before a change of state,
    and ends after it, does not count. For the calls of one event loop.
    """

    def __init__(
        self,
        *,
        failures: int = 5,
        open_seconds: float = 60.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Start closed.

        Args:
            failures: this many in a row, without a success between them, open it.
            open_seconds: how long nothing is let through.
            clock: seconds that never run backwards.
        """
        self._limit = failures
        self._open_seconds = open_seconds
        self._clock = clock
        self._failures = 0
        self._opened_at: float | None = None
        """None while closed."""
        self._probing = False
        self._turn = 0
        """Counts the changes of state."""

    @property
    def state(self) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        waited = self._clock() - self._opened_at
        return "half_open" if waited >= self._open_seconds else "open"

    @contextmanager
    def attempt(self) -> Iterator[BreakerAttempt | None]:
        """Give an attempt, whose outcome its user sets; None when nothing may be let through."""
        state = self.state
        if state == "open" or self._probing:
            yield None
            return
        attempt, turn = BreakerAttempt(), self._turn
        self._probing = state == "half_open"
        try:
            yield attempt
        finally:
            if turn == self._turn:
                self._learn(attempt.succeeded)

    def _learn(self, succeeded: bool | None) -> None:
        probing, self._probing = self._probing, False
        if succeeded:
            self._failures = 0
            if probing:
                self._change(opened_at=None)
        elif succeeded is False:
            self._failures += 1
            if probing or self._failures >= self._limit:
                self._change(opened_at=self._clock())

    def _change(self, opened_at: float | None) -> None:
        self._opened_at = opened_at
        self._failures = 0
        self._turn += 1
