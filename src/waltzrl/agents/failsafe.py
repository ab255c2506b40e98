"""A reviewer that survives a feedback model that is busy, slow, unavailable or unreadable."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from time import monotonic
from typing import Literal

from waltzrl.agents.breaker import Breaker
from waltzrl.agents.hybrid import CRITICAL, UNREADABLE
from waltzrl.agents.review_queue import ReviewQueue
from waltzrl.collaboration import Reviewer
from waltzrl.errors import OverloadError, PolicyError
from waltzrl.records import Feedback, Prompt, Reply

ReviewFailure = Literal["timeout", "overloaded", "failed", "unreadable", "breaker"]
"""Timed out, so much waits that it would time out or the server said that it is busy, other error
of the policy, feedback that cannot be parsed, circuit breaker open."""
OnFailure = Literal["refuse", "rules", "serve"]
OnOverload = Literal["unavailable", "rules", "pass"]

BUSY = ("HTTP 429", "HTTP 503", "HTTP 529")
"""The reasons of a policy whose server has no capacity now."""
REVIEWS_AT_ONCE = 64
"""The most concurrent requests to a feedback model."""
LOG_SECONDS = 10.0
"""The least time between two lines of the log on the same cause."""

logger = logging.getLogger(__name__)


def is_overload(failure: str) -> bool:
    """Return whether a failure of a review, or what opened its breaker, was a lack of capacity."""
    # Of an open breaker, what opened it follows a colon, as in `breaker: timeout`.
    return not {"timeout", "overloaded"}.isdisjoint(failure.split(": "))


@dataclass(slots=True)
class FailsafeReviewer:
    """A reviewer with a time limit and a queue, and rules as its fallback."""

    reviewer: Reviewer
    """The reviewer that decides unless it fails."""
    fallback: Reviewer
    """The rules, which apply when it fails."""
    _: KW_ONLY
    breaker: Breaker
    """The breaker that stops calls to a reviewer that keeps failing."""
    budget_seconds: float
    """The time limit of one review, its wait included; then it is cancelled."""
    queue: ReviewQueue = field(default_factory=lambda: ReviewQueue(REVIEWS_AT_ONCE))
    """The queue in which reviews wait; shared by all reviewers of the same model."""
    on_failure: OnFailure = "refuse"
    """The treatment when the reviewer fails or cannot be read. `rules` lets the rules decide,
    unless they rate the reply as critical. Otherwise the feedback is marked as not well-formed:
    `guarded` then returns a canned refusal, or, when it fails open, the reply.
    """
    on_overload: OnOverload = "pass"
    """The treatment when it had no time: `unavailable` raises `OverloadError`, `rules` is as above,
    and `pass` marks the feedback as not well-formed, for a pattern that returns the reply.
    """
    on_review_failure: Callable[[ReviewFailure], None] | None = None
    """A function that is called with the cause of each failure."""
    # A lambda, because the class stands below.
    _log: "FailureLog" = field(default_factory=lambda: FailureLog(), init=False)

    def admit(self) -> AbstractContextManager[object]:
        """Expect the review of a draft; the context manager is to be left when it is generated.

        Raises:
            OverloadError: the review would come too late, so the draft would be paid for in vain.
        """
        if self.on_overload != "unavailable":
            return nullcontext()  # the reply is returned in any case
        expected = None
        missing = _NoReview("overloaded")
        if self.breaker.rejects and is_overload(self.breaker.failure):
            missing = _NoReview("breaker", self.breaker.failure)
        else:
            expected = self.queue.expect(self.budget_seconds)
        if expected is None:
            self._note(missing)
            raise self._unavailable(missing)
        return expected

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`.

        Raises:
            OverloadError: the reviewer had no time, and `on_overload` is `unavailable`.
        """
        outcome = await self._try_review(prompt, reply)
        if isinstance(outcome, Feedback):
            return outcome
        self._note(outcome)
        if outcome.is_overload and self.on_overload == "unavailable":
            raise self._unavailable(outcome)
        return self._without_review(outcome, await self.fallback.review(prompt, reply))

    async def _try_review(self, prompt: Prompt, reply: Reply) -> "Feedback | _NoReview":
        if not self.queue.admits(self.budget_seconds):
            return _NoReview("overloaded")
        with self.breaker.attempt() as attempt:
            if attempt is None:
                # What opened the breaker for want of capacity is still the reason.
                opened = self.breaker.failure
                return _NoReview("breaker", opened if is_overload(opened) else "")
            turn = self.queue.turn(self.budget_seconds)
            try:
                # The timeout goes first, so that it covers the wait for a place too.
                async with asyncio.timeout(self.budget_seconds), turn:
                    feedback = await self.reviewer.review(prompt, reply)
            except TimeoutError:
                missing = _NoReview("timeout")
                if self.queue.timed_out(turn):  # a wait in our own queue is no failure of the model
                    attempt.fail(missing.failure)
                return missing
            except PolicyError as error:
                is_busy = error.reason in BUSY
                missing = _NoReview("overloaded" if is_busy else "failed", error.reason)
                if not is_busy or self.queue.slow_down(turn):
                    attempt.fail(missing.failure)
                return missing
            # Unreadable feedback is a failure, or a reply that breaks the model's JSON would pass.
            # For the breaker it is a success: the server did answer, and otherwise one client's
            # attacks could disable the model for all clients.
            attempt.succeeded = True
            return feedback if feedback.well_formed else _NoReview(UNREADABLE, reply=feedback.reply)

    def _note(self, missing: "_NoReview") -> None:
        if self.on_review_failure is not None:
            self.on_review_failure(missing.cause)
        self._log.add(missing.cause, missing.failure)

    def _unavailable(self, missing: "_NoReview") -> OverloadError:
        """Return the error, with when what is ahead now, or the breaker, will be gone."""
        seconds = max(self.queue.backlog_seconds, self.breaker.seconds_left)
        return OverloadError(reason=missing.failure, retry_after_seconds=seconds)

    def _without_review(self, missing: "_NoReview", rules: Feedback) -> Feedback:
        """Apply the operator's choice for replies that the model did not review."""
        if not rules.well_formed:  # the operator declines what the rules cannot read
            return rules
        reasoning = f"the model did not review this reply ({missing.failure})"
        rules = replace(rules, reply=missing.reply, failure=missing.failure)
        choice = self.on_overload if missing.is_overload else self.on_failure
        is_critical = (rules.risk or 0.0) >= CRITICAL and rules.action != "observe"
        if choice == "rules" and not is_critical:
            return replace(rules, reasoning=f"{reasoning}: the rules decided")
        return replace(
            rules, unsafe=False, overrefuse=False, text="", reasoning=reasoning, well_formed=False
        )


@dataclass(slots=True)
class FailureLog:
    """Logs failed reviews without their content, a line per cause in `LOG_SECONDS` at most."""

    clock: Callable[[], float] = monotonic
    _last: dict[ReviewFailure, float] = field(default_factory=dict)
    _skipped: Counter[ReviewFailure] = field(default_factory=Counter)

    def add(self, cause: ReviewFailure, failure: str) -> None:
        """Log a failure, or count it until the next line."""
        now = self.clock()
        if now < self._last.get(cause, float("-inf")) + LOG_SECONDS:
            self._skipped[cause] += 1
            return
        self._last[cause] = now
        skipped = self._skipped.pop(cause, 0)
        more = f"; {skipped} more since the last line" if skipped else ""
        logger.warning("the feedback model did not review a reply: %s%s", failure, more)


@dataclass(frozen=True, slots=True)
class _NoReview:
    """Why there is no review by the model."""

    cause: ReviewFailure
    reason: str = ""
    """The reason of a policy that failed, such as `HTTP 503`."""
    reply: Reply | None = None
    """The reply that could not be read."""

    @property
    def failure(self) -> str:
        return f"{self.cause}: {self.reason}" if self.reason else self.cause

    @property
    def is_overload(self) -> bool:
        """Whether it had no time, rather than failed."""
        return is_overload(self.failure)
