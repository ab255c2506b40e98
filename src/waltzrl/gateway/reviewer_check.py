"""Tests a bundle's reviewing model while the gateway starts, and while it cannot review."""

import asyncio
import logging

from waltzrl.agents.breaker import Breaker
from waltzrl.agents.failsafe import is_overload
from waltzrl.agents.self_test import REPLIES, SelfTest, self_test
from waltzrl.collaboration import Reviewer
from waltzrl.foundation.logs import fields
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.settings import BundleRecipe

FIRST_RETRY_SECONDS = 2.0
LONGEST_RETRY_SECONDS = 60.0
NOT_FOUND = "failed: HTTP 404"
"""The outcome of a review where the URL or the name of the model is wrong."""

logger = logging.getLogger(__name__)


class ReviewerCheck:
    """Whether a model reviews: by its self-test at first, then by its circuit breaker."""

    def __init__(self, agent: Reviewer, recipe: BundleRecipe, breaker: Breaker) -> None:
        """Test nothing yet.

        Args:
            agent: the model in the role of the feedback agent, without rules or time limit.
            recipe: of its bundle.
            breaker: opens when its reviews keep failing; a self-test that passes closes it.
        """
        assert recipe.feedback is not None
        self._agent, self._breaker = agent, breaker
        self._model = recipe.feedback.model
        self._tests = recipe.feedback.self_test
        self._budget_seconds = recipe.review_timeout_ms / 1e3
        self._refuses = recipe.on_failure == "refuse"
        self._is_unavailable = recipe.on_overload == "unavailable"
        self._result: SelfTest | None = None

    async def run(self) -> None:
        """Test the model at first, and again after a while whenever it cannot review."""
        wait = FIRST_RETRY_SECONDS
        while self._tests:
            if not self._reviews:
                await self._test()
            if self._reviews:
                wait = FIRST_RETRY_SECONDS
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_RETRY_SECONDS)

    def health(self) -> Health:
        """Return the state for `/readyz`: down where every request would be refused, or be 503."""
        result, state = self._result, self._breaker.state
        if result is None and self._tests:
            return Health("down", "self-test under way")
        problems = []
        if state != "closed":
            problems.append(f"circuit breaker {state}: {self._breaker.failure}")
        is_down = False
        if result is not None:
            problems += [result.failures, _advise_on_outcomes(result), self._slowness(result)]
            # If its labels can be read, it accepts no reply.
            is_down = not result.can_review and (result.readable or self._refuses)
        # Why the breaker opened decides which of the two settings applies.
        is_busy = is_overload(self._breaker.failure)
        withholds = self._is_unavailable if is_busy else self._refuses
        detail = "; ".join(filter(None, problems))
        if is_down or (state == "open" and withholds):
            return Health("down", detail)
        return Health("degraded", detail) if detail else OK

    @property
    def _reviews(self) -> bool:
        can_review = self._result is not None and self._result.can_review
        return can_review and self._breaker.state == "closed"

    async def _test(self) -> None:
        before, self._result = self._result, await self_test(self._agent)
        if before is None or before.outcomes != self._result.outcomes:
            self._log(self._result)
        # A model that is too slow would open the breaker again.
        if self._result.can_review and not self._slowness(self._result):
            self._breaker.close()

    @property
    def passed(self) -> dict[str, bool]:
        """Name of each reply of the self-test -> whether its review passed; none without a test."""
        outcomes = self._result.outcomes if self._result is not None else {}
        return {name: outcomes.get(name) == "passed" for name in REPLIES if self._tests}

    def _slowness(self, result: SelfTest) -> str:
        if result.slowest_seconds <= self._budget_seconds:
            return ""
        return (
            f"a review took {result.slowest_seconds:.1f} s, and review_timeout_ms allows "
            f"{self._budget_seconds:.1f} s"
        )

    def _log(self, result: SelfTest) -> None:
        extra = fields(
            model=self._model,
            seconds=round(result.slowest_seconds, 2),
            separation=None if result.separation is None else round(result.separation, 2),
        )
        if result.failures:
            failures = "; ".join(filter(None, (result.failures, _advise_on_outcomes(result))))
            logger.warning("the feedback model failed its self-test: %s", failures, extra=extra)
        else:
            logger.info("the feedback model passed its self-test", extra=extra)
        if slowness := self._slowness(result):
            logger.warning("the feedback model is slow: %s", slowness, extra=extra)
        if result.can_review and not result.probabilities:
            logger.warning(
                "the feedback model gives no probabilities, so its labels are its risk: as "
                "calibrated, else 0 or 1",
                extra=extra,
            )


def _advise_on_outcomes(result: SelfTest) -> str:
    if NOT_FOUND not in result.outcomes.values():
        return ""
    return (
        "feedback.server has no /chat/completions below its URL, which probably has to end in /v1, "
        "or it does not serve feedback.model"
    )
