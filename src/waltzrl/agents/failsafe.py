"""A reviewer that survives a feedback model that is slow, unavailable or unreadable."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Literal

from waltzrl.agents import Reviewer, RulesReviewer
from waltzrl.agents.breaker import Breaker
from waltzrl.agents.hybrid import CRITICAL, UNREADABLE
from waltzrl.errors import PolicyError
from waltzrl.records import Feedback, Prompt, Reply

ReviewFailure = Literal["timeout", "failed", "unreadable", "breaker"]
"""Timed out, error of the policy, feedback that cannot be parsed, circuit breaker open."""
OnFailure = Literal["refuse", "rules", "serve"]

LOG_SECONDS = 10.0
"""Least time between two lines of the log on the same cause."""

logger = logging.getLogger(__name__)


class FailsafeReviewer:
    """A reviewer with a time limit, and rules as its fallback."""

    def __init__(
        self,
        reviewer: Reviewer,
        fallback: RulesReviewer,
        *,
        breaker: Breaker,
        budget_seconds: float,
        on_failure: OnFailure = "refuse",
        on_review_failure: Callable[[ReviewFailure], None] | None = None,
    ) -> None:
        """Combine a reviewer and its fallback.

        Args:
            reviewer: reviews unless it fails.
            fallback: the rules that apply when it fails.
            breaker: stops calls to a reviewer that keeps failing.
            budget_seconds: time limit of one review; then it is cancelled.
            on_failure: `rules` lets the rules decide, unless they rate the reply as critical.
                Otherwise the feedback is marked as not well-formed: `guarded` then returns a
                canned refusal, or, when it fails open, the reply.
            on_review_failure: called with the cause of each failure.
        """
        self.reviewer = reviewer
        self.fallback = fallback
        self.breaker = breaker
        self.budget_seconds = budget_seconds
        self.on_failure = on_failure
        self._on_review_failure = on_review_failure
        self._log = FailureLog()

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`; never raises `PolicyError`."""
        outcome = await self._try_review(prompt, reply)
        if isinstance(outcome, Feedback):
            return outcome
        if self._on_review_failure is not None:
            self._on_review_failure(outcome.cause)
        self._log.add(outcome.cause, outcome.failure)
        return self._without_review(outcome, await self.fallback.review(prompt, reply))

    async def _try_review(self, prompt: Prompt, reply: Reply) -> "Feedback | _NoReview":
        with self.breaker.attempt() as attempt:
            if attempt is None:
                return _NoReview("breaker")
            try:
                async with asyncio.timeout(self.budget_seconds):
                    feedback = await self.reviewer.review(prompt, reply)
            except TimeoutError:
                missing = _NoReview("timeout")
                attempt.fail(missing.failure)
                return missing
            except PolicyError as error:
                missing = _NoReview("failed", error.reason)
                attempt.fail(missing.failure)
                return missing
            # Unreadable feedback is a failure, or a reply that breaks the model's JSON would pass.
            # For the breaker it is a success: the server did answer, and otherwise one client's
            # attacks could disable the model for all clients.
            attempt.succeeded = True
            return feedback if feedback.well_formed else _NoReview(UNREADABLE, reply=feedback.reply)

    def _without_review(self, missing: "_NoReview", rules: Feedback) -> Feedback:
        """Apply the operator's choice for replies that the model did not review."""
        reasoning = f"the model did not review this reply ({missing.failure})"
        rules = replace(rules, reply=missing.reply, failure=missing.failure)
        if self.on_failure == "rules" and (rules.risk or 0.0) < CRITICAL:
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
    """Of a policy that failed, such as `HTTP 503`."""
    reply: Reply | None = None
    """What could not be read."""

    @property
    def failure(self) -> str:
        return f"{self.cause}: {self.reason}" if self.reason else self.cause
