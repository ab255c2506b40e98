"""A circuit breaker: stops calls to a service that keeps failing, then probes it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from waltzrl.foundation.logs import fields

log = logging.getLogger(__name__)

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(slots=True)
class BreakerAttempt:
    """One call, and what its caller says came of it."""

    succeeded: bool | None = None
    """True if the call succeeded; None, as after a cancelled call, counts as neither success nor
    failure.
    """
    failure: str = ""
    """The reason why it failed, without content."""

    def fail(self, failure: str) -> None:
        self.succeeded, self.failure = False, failure


class Breaker:
    """Closed until several calls in a row fail, then open for a time, then half open.

    Half open, it allows one call, the probe, whose outcome closes it or opens it again. A call
    that started before a change of state and ends after it does not count. Not thread-safe: use
    it from one event loop.
    """

    def __init__(
        self,
        name: str = "",
        *,
        failures: int = 5,
        open_seconds: float = 60.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Start closed.

        Args:
            name: of the service, for logs and metrics.
            failures: consecutive failures that open it.
            open_seconds: how long it rejects all calls.
            clock: monotonic time in seconds.
        """
        self.name = name
        self._limit = failures
        self._open_seconds = open_seconds
        self._clock = clock
        self.failure = ""
        """The failure of the attempt that opened it; empty while closed."""
        self._failures = 0
        self._opened_at: float | None = None
        """The time when it opened; None while closed."""
        self._probing = False
        self._generation = 0
        """The number of changes of state; an attempt of an earlier generation does not count."""

    @property
    def state(self) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        open_seconds = self._clock() - self._opened_at
        return "half_open" if open_seconds >= self._open_seconds else "open"

    @property
    def rejects(self) -> bool:
        """Whether a call would be rejected now."""
        return self._probing or self.state == "open"

    @property
    def seconds_left(self) -> float:
        """How long it stays open; 0 when it does not reject all calls."""
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + self._open_seconds - self._clock())

    @contextmanager
    def attempt(self) -> Iterator[BreakerAttempt | None]:
        """Yield what takes the outcome of a call, and record it; None if no call is allowed."""
        if self.rejects:
            yield None
            return
        # While a probe is under way, every other call is rejected.
        self._probing = self.state == "half_open"
        attempt, generation = BreakerAttempt(), self._generation
        try:
            yield attempt
        finally:
            if generation == self._generation:
                self._record(attempt)

    def close(self) -> None:
        """Close it: the service was reached by other means than an attempt."""
        if self._opened_at is not None:
            self._probing = False
            self._change_state(opened_at=None)

    def _record(self, attempt: BreakerAttempt) -> None:
        # A cancelled probe says nothing, and leaves the next call to probe.
        probing, self._probing = self._probing, False
        if attempt.succeeded:
            self._failures = 0
            if probing:
                self._change_state(opened_at=None)
        elif attempt.succeeded is False:
            self._failures += 1
            if probing or self._failures >= self._limit:
                self._change_state(opened_at=self._clock(), failure=attempt.failure)

    def _change_state(self, opened_at: float | None, failure: str = "") -> None:
        self._opened_at, self.failure = opened_at, failure
        self._failures = 0
        self._generation += 1
        state = "closed" if opened_at is None else "open"
        log.warning(
            "a circuit breaker is %s",
            state,
            extra=fields(breaker=self.name, state=state, cause=failure or None),
        )
