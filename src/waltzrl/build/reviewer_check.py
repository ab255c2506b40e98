"""Tests a bundle's reviewing model while the gateway starts, and until it can review."""

import asyncio
import logging

from waltzrl.agents import Reviewer
from waltzrl.agents.self_test import REPLIES, SelfTest, self_test
from waltzrl.config.gateway import BundleRecipe
from waltzrl.serving.health import OK, Health
from waltzrl.telemetry.logs import fields

FIRST_RETRY_SECONDS = 2.0
LONGEST_RETRY_SECONDS = 60.0

logger = logging.getLogger(__name__)


class ReviewerCheck:
    """What the self-test of a reviewing model has shown."""

    def __init__(self, agent: Reviewer, recipe: BundleRecipe) -> None:
        """Test nothing yet.

        Args:
            agent: the model in the role of the feedback agent, without rules or time limit.
            recipe: of its bundle.
        """
        assert recipe.feedback is not None
        self._agent = agent
        self._model = recipe.feedback.model
        self._budget_seconds = recipe.review_timeout_ms / 1e3
        self._refuses = recipe.on_failure == "refuse"
        self._result: SelfTest | None = None

    async def run(self) -> None:
        """Test the model, and again after a while as long as it cannot review at all."""
        wait = FIRST_RETRY_SECONDS
        while True:
            before, self._result = self._result, await self_test(self._agent)
            if before is None or before.outcomes != self._result.outcomes:
                self._log(self._result)
            if self._result.can_review:
                return
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_RETRY_SECONDS)

    def health(self) -> Health:
        """Return the state for `/readyz`: down where every request would be refused."""
        if self._result is None:
            return Health("down", "self-test under way")
        if not self._result.can_review:
            allowed = not (self._refuses or self._result.readable)
            return Health("degraded" if allowed else "down", self._result.failures)
        problems = self._result.failures or self._slowness(self._result)
        return Health("degraded", problems) if problems else OK

    @property
    def passed(self) -> dict[str, bool]:
        """Name of each reply of the self-test -> whether its review passed."""
        outcomes = self._result.outcomes if self._result is not None else {}
        return {name: outcomes.get(name) == "passed" for name in REPLIES}

    def _slowness(self, result: SelfTest) -> str:
        if result.slowest_seconds <= self._budget_seconds:
            return ""
        return (
            f"a review took {result.slowest_seconds:.1f} s, and review_timeout_ms allows "
            f"{self._budget_seconds:.1f} s"
        )

    def _log(self, result: SelfTest) -> None:
        extra = fields(model=self._model, seconds=round(result.slowest_seconds, 2))
        if failures := result.failures:
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
