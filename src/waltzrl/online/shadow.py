"""A release's candidate answers too, after the answer has left, and nobody sees what it says."""

import asyncio
import time
from collections.abc import Callable

import msgspec

from waltzrl.errors import RequestError
from waltzrl.online.release_follower import ReleaseFollower
from waltzrl.release.assignment import is_shadowed
from waltzrl.serving.exchange import Assignment, ServedChoice
from waltzrl.serving.gateway import DecisionLog, Gateway, Listener, SingleBundle, conversation_key

LONGEST_SECONDS = 60.0
MINUTE = 60.0


class Shadows:
    """Asks the candidate what it would have answered; leaves out what would cost too much."""

    def __init__(
        self,
        releases: ReleaseFollower,
        told: Listener,
        *,
        at_once: int,
        per_minute: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with none.

        Args:
            releases: says whether there is a shadow.
            told: hears of what a shadow would have served, and nobody else does.
            at_once: answers under way; with more, some are left out.
            per_minute: answers begun in a minute; the rest is left out.
            clock: seconds that never go back.
        """
        self.left_out = 0
        """Answers that a shadow should have given too, and did not for their cost."""
        self._releases, self._told, self._clock = releases, told, clock
        self._at_once, self._per_minute = at_once, per_minute
        self._minute = clock()
        self._begun = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def served(self, served: ServedChoice) -> None:
        """Hear of an answer, and let the shadow give its own beside all else."""
        shadow = self._releases.shadow
        if shadow is None or not _comparable(served):
            return
        release, candidate = shadow
        if not is_shadowed(release, conversation_key(served.request)):
            return
        if not self._affordable():
            self.left_out += 1
            return
        task = asyncio.create_task(
            self._answer(served, Assignment(candidate, "shadow", release.id))
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, served: ServedChoice, assignment: Assignment) -> None:
        gateway = Gateway(
            selector=SingleBundle(assignment), decisions=DecisionLog(None, [self._told])
        )
        request = msgspec.structs.replace(served.request, mode="whole")
        collaboration = served.exchange.collaboration
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                if collaboration is not None and collaboration.draft.origin == "given":
                    await gateway.review(request, collaboration.draft, served.number)
                else:
                    await gateway.choice(request, served.number)
        except (RequestError, TimeoutError):
            return  # it is recorded as a failure of the shadow

    def _affordable(self) -> bool:
        now = self._clock()
        if now - self._minute >= MINUTE:
            self._minute, self._begun = now, 0
        if len(self._tasks) >= self._at_once or self._begun >= self._per_minute:
            return False
        self._begun += 1
        return True


def _comparable(served: ServedChoice) -> bool:
    """Whether a shadow may answer too; clients with their own upstream key pay for no shadow."""
    exchange = served.exchange
    answered = exchange.decision != "error" and exchange.mode != "review"
    return answered and exchange.arm == "serving" and served.request.bearer is None
