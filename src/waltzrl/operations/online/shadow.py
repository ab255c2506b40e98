"""Has a release's candidate answer too, after the reply was returned, for measurement only."""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from waltzrl.agents.coaching import ExampleSource
from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import Assignment, ServedChoice
from waltzrl.gateway.gateway import DecisionLog, Gateway, Listener, SingleBundle
from waltzrl.gateway.split import conversation_key
from waltzrl.operations.online.release_follower import ReleaseFollower
from waltzrl.operations.release.assignment import is_shadowed

ANSWER_TIMEOUT_SECONDS = 60.0
MINUTE = 60.0


class Shadows:
    """Sends answered requests to the candidate too, within a budget."""

    def __init__(
        self,
        releases: ReleaseFollower,
        listeners: Sequence[Listener],
        *,
        at_once: int,
        per_minute: int,
        examples: ExampleSource | None = None,
    ) -> None:
        """Set the budget.

        Args:
            releases: provides the shadow, if there is one.
            listeners: the only recipients of what shadows would have served.
            at_once: most answers in progress; further ones are skipped.
            per_minute: most answers started in a minute; further ones are skipped.
            examples: the gateway's, so that both arms are shown the same ones.
        """
        self.left_out = 0
        """Shadow answers that were skipped because of their cost."""
        self._releases, self._listeners = releases, listeners
        self._at_once, self._per_minute = at_once, per_minute
        self._examples = examples
        self._minute_start = time.monotonic()
        self._started = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def served(self, served: ServedChoice) -> None:
        """Start the shadow's answer to a request that was answered."""
        shadow = self._releases.shadow
        if shadow is None or not _is_comparable(served):
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
        # An event loop keeps only weak references to its tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel all answers in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, served: ServedChoice, assignment: Assignment) -> None:
        gateway = Gateway(
            selector=SingleBundle(assignment),
            decisions=DecisionLog(None, self._listeners),
            examples=self._examples,
        )
        # Nobody reads a shadow's stream.
        request = msgspec.structs.replace(served.request, stream_mode=None)
        collaboration = served.exchange.collaboration
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
                if collaboration is not None and collaboration.draft.origin == "given":
                    await gateway.review(request, collaboration.draft, served.number)
                else:
                    await gateway.choice(request, served.number)
        except (RequestError, TimeoutError):
            return  # the gateway has recorded it as the shadow's failure

    def _affordable(self) -> bool:
        now = time.monotonic()
        if now - self._minute_start >= MINUTE:
            self._minute_start, self._started = now, 0
        if len(self._tasks) >= self._at_once or self._started >= self._per_minute:
            return False
        self._started += 1
        return True


def _is_comparable(served: ServedChoice) -> bool:
    """Whether a shadow may answer too; never at the cost of a client's own upstream key."""
    exchange = served.exchange
    answered = exchange.decision != "error" and exchange.mode != "review" and not exchange.probe
    return answered and exchange.arm == "serving" and served.request.bearer is None
