"""Judges a sample of what was served, beside everything else and without holding it up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from waltzrl.judges import Judge
from waltzrl.records import Collaboration, ServedExchange, Verdict
from waltzrl.release.assignment import is_among

AT_ONCE = 8
MOST_WAITING = 1000
LONGEST_SECONDS = 60.0
"""Of one judgement."""

log = logging.getLogger(__name__)

VerdictListener = Callable[[ServedExchange, Verdict | None], Awaitable[None]]
"""Hears of each interaction that was taken: the verdict on its last reply; None when none came."""


class OnlineJudge:
    """A judge, what waits for it, and who hears what it says."""

    def __init__(self, judge: Judge | None, share: float, told: VerdictListener) -> None:
        """Judge all that a candidate or a shadow said, and a share of the rest, 0 to 1."""
        self._judge, self._percentage, self._told = judge, 100 * share, told
        self._waiting: asyncio.Queue[tuple[ServedExchange, Collaboration]] = asyncio.Queue()
        self._unheard = 0
        """What was taken and of which nobody was told."""

    def wants(self, seen: ServedExchange) -> bool:
        """Whether the interaction belongs to the sample; the same id always does, or never."""
        if self._judge is None or seen.collaboration is None:
            return False
        return seen.arm in ("candidate", "shadow") or is_among("judge", seen.id, self._percentage)

    def take(self, seen: ServedExchange, said: Collaboration) -> bool:
        """Let what was said be judged; False when too much waits."""
        if self._unheard >= MOST_WAITING:
            return False
        self._unheard += 1
        self._waiting.put_nowait((seen, said))
        return True

    async def sit(self) -> None:
        """Judge until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._judge_on())

    async def adjourn(self, seconds: float) -> int:
        """Wait until all that was taken is judged, but no longer; return how much is not."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._waiting.join(), seconds)
        return self._unheard

    async def _judge_on(self) -> None:
        while True:
            seen, said = await self._waiting.get()
            await self._told(seen, await self._verdict(said))
            self._unheard -= 1
            self._waiting.task_done()

    async def _verdict(self, said: Collaboration) -> Verdict | None:
        assert self._judge is not None
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                return await self._judge.judge(said.prompt, said.final)
        except Exception as error:  # noqa: BLE001 - the boundary: any failure is counted
            log.warning("the judge failed: %s", type(error).__name__)
            return None
