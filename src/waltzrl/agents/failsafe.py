"""A reviewer that survives a feedback model that is slow, unavailable or unreadable."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from waltzrl.agents import Reviewer, RulesReviewer
from waltzrl.agents.breaker import Breaker
from waltzrl.errors import PolicyError
from waltzrl.records import Feedback, Prompt, Reply

ReviewFailure = Literal["timeout", "failed", "unreadable", "breaker"]
"""Timed out, error of the policy, feedback that cannot be parsed, circuit breaker open."""
OnFailure = Literal["refuse", "rules", "serve"]

CRITICAL = 0.9
"""The risk, by the rules, from which a reply is declined unless a model has reviewed it."""


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

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`; never raises `PolicyError`."""
        outcome = await self._try_review(prompt, reply)
        if isinstance(outcome, Feedback):
            return outcome
        if self._on_review_failure is not None:
            self._on_review_failure(outcome)
        return self._without_review(outcome, self.fallback.read(prompt, reply))

    async def _try_review(self, prompt: Prompt, reply: Reply) -> Feedback | ReviewFailure:
        with self.breaker.attempt() as attempt:
            if attempt is None:
                return "breaker"
            try:
                async with asyncio.timeout(self.budget_seconds):
                    feedback = await self.reviewer.review(prompt, reply)
            except TimeoutError:
                attempt.succeeded = False
                return "timeout"
            except PolicyError:
                attempt.succeeded = False
                return "failed"
            # Unreadable feedback is a failure, or a reply that breaks the model's JSON would pass.
            # For the breaker it is a success: the server did answer, and otherwise one client's
            # attacks could disable the model for all clients.
            attempt.succeeded = True
            return feedback if feedback.well_formed else "unreadable"

    def _without_review(self, cause: ReviewFailure, rules: Feedback) -> Feedback:
        """Apply the operator's choice for replies that the model did not review."""
        reasoning = f"the model did not review this reply ({cause})"
        if self.on_failure == "rules" and (rules.risk or 0.0) < CRITICAL:
            return replace(rules, reasoning=f"{reasoning}: the rules decided")
        return replace(
            rules, unsafe=False, overrefuse=False, text="", reasoning=reasoning, well_formed=False
        )
