"""What happens when the model that reviews does not answer, or not in time, or not readably."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from waltzrl.agents import Reviewer, RulesReviewer
from waltzrl.agents.breaker import Breaker
from waltzrl.errors import PolicyError
from waltzrl.records import Feedback, Prompt, Reply

ReviewFailure = Literal["timeout", "failed", "unreadable", "breaker"]
"""Out of time, an error of the policy, feedback that cannot be read, a breaker that is open."""
OnFailure = Literal["refuse", "rules", "serve"]

CRITICAL = 0.9
"""The risk from which what the rules find is declined when no model could look at it."""


class FailsafeReviewer:
    """A reviewer with a budget of time, and rules that stand in where it fails.

    Feedback that cannot be read is a failure, for whoever breaks the model's JSON must not get
    through; but it does not count towards the breaker, for the server did answer, and else one
    client's attacks would take the model from all others.
    """

    def __init__(
        self,
        reviewer: Reviewer,
        stand_in: RulesReviewer,
        *,
        breaker: Breaker,
        budget_seconds: float,
        on_failure: OnFailure = "refuse",
        told: Callable[[ReviewFailure], None] | None = None,
    ) -> None:
        """Make a reviewer that always answers.

        Args:
            reviewer: asked first.
            stand_in: read when it fails.
            breaker: keeps from asking while asking is in vain.
            budget_seconds: for one review; then it is cancelled.
            on_failure: `rules` lets the rules decide, unless they hold the reply to be critical.
                Otherwise the feedback says that nobody could review, which `guarded` answers
                with a canned refusal, or, told to fail open, lets pass.
            told: called with the cause of each failure.
        """
        self.reviewer = reviewer
        self.stand_in = stand_in
        self.breaker = breaker
        self.budget_seconds = budget_seconds
        self.on_failure = on_failure
        self._told = told

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, one way or another."""
        outcome = await self._ask(prompt, reply)
        if isinstance(outcome, Feedback):
            return outcome
        if self._told is not None:
            self._told(outcome)
        return self._unheard(outcome, self.stand_in.read(prompt, reply))

    async def _ask(self, prompt: Prompt, reply: Reply) -> Feedback | ReviewFailure:
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
            attempt.succeeded = True
            return feedback if feedback.well_formed else "unreadable"

    def _unheard(self, cause: ReviewFailure, rules: Feedback) -> Feedback:
        """Do what the operator chose for replies that the model did not review."""
        why = f"the model was not heard ({cause})"
        if self.on_failure == "rules" and (rules.risk or 0.0) < CRITICAL:
            return replace(rules, reasoning=f"{why}: the rules decided")
        return replace(
            rules, unsafe=False, overrefuse=False, text="", reasoning=why, well_formed=False
        )
