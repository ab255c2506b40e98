"""One turn of the flywheel, at work: a gateway that runs, users who ask, releases that move."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from waltzrl.demo.flywheel import BY, FlywheelDemo
from waltzrl.demo.users import Users, running_gateway
from waltzrl.errors import InputError, PolicyError
from waltzrl.memory.safety import SafetyMemory
from waltzrl.release.book import ReleaseBook
from waltzrl.release.state import Release, place
from waltzrl.release.view import Transition

FIRST_QUESTIONS = 800
QUESTIONS = 64
"""Between two looks at a release."""
RECORDER_SECONDS = 2.0
"""Until all that was served is remembered."""
LONGEST_RELEASE_SECONDS = 180.0

Say = Callable[[str], None]


class FlywheelRun:
    """What happens while the gateway of a story runs."""

    def __init__(self, story: FlywheelDemo, users: Users, say: Say) -> None:
        self._story, self._users, self._say = story, users, say
        self._memory: SafetyMemory = story.open_memory()
        self._book = ReleaseBook(self._memory.store.engine)

    async def collect(self) -> None:
        """Let users ask, label what they were told, and write the trajectories."""
        await self._users.ask(FIRST_QUESTIONS)
        await asyncio.sleep(RECORDER_SECONDS)
        labelled = 0
        for served, label in list(self._story.labels(self._memory)):
            self._memory.label(served.id, label, BY)
            labelled += 1
        path, found = await asyncio.to_thread(self._story.collect)
        safe = "none" if found.safe_rate is None else f"{100 * found.safe_rate:.0f} %"
        self._say(
            f"{labelled} answers labelled by people; {found.total_interactions} reviewed "
            f"interactions as trajectories in {path}, {safe} of them safe"
        )

    async def release(self) -> Release:
        """Release the second pair, and have users ask until all of them have it.

        Raises:
            InputError: the gate is shut.
            PolicyError: it was rolled back, or takes too long.
        """
        release = await asyncio.to_thread(self._story.release, self._book)
        self._say(f"the gate is open: {self._book.history(release.id)[0].why}")
        ended = await self._follow(release)
        if ended.state != "full":
            raise PolicyError(f"the release ended {ended.state}: {self._why(ended)}")
        return ended

    async def drill(self) -> Release:
        """Propose a bad bundle, which the gate refuses, then release it all the same.

        Raises:
            PolicyError: nothing rolled it back.
        """
        try:
            await asyncio.to_thread(self._story.try_bad_bundle, self._book)
        except InputError as refused:
            self._say(f"the gate is shut: {refused}")
        release = await asyncio.to_thread(self._story.release_bad_bundle, self._book)
        ended = await self._follow(release)
        if ended.state != "rolled_back":
            raise PolicyError(f"the bad bundle ended {ended.state}: {self._why(ended)}")
        return ended

    async def _follow(self, release: Release) -> Release:
        """Have users ask until the release is over; tell each of its moves."""
        ends = time.monotonic() + LONGEST_RELEASE_SECONDS
        told = 0
        while time.monotonic() < ends:
            moves = await asyncio.to_thread(self._book.history, release.id)
            for move in moves[told:]:
                self._say(_line(move))
            told = len(moves)
            now = await asyncio.to_thread(self._book.release, release.id)
            if now is not None and not now.is_open:
                return now
            await self._users.ask(QUESTIONS)
        raise PolicyError(
            f"the release is not over after {LONGEST_RELEASE_SECONDS:.0f} s: {self._why(release)}"
        )

    def _why(self, release: Release) -> str:
        view = self._book.view()
        waits = view.decision.why if view is not None and view.decision is not None else "unknown"
        return f"{release.id}: {waits}"


@asynccontextmanager
async def running_flywheel(story: FlywheelDemo, say: Say) -> AsyncIterator[FlywheelRun]:
    """Run the story's gateway, with users, beside the block.

    Raises:
        PolicyError: it did not start.
    """
    client, desk = story.add_keys()
    async with running_gateway(story.gateway) as address:
        say(f"a gateway serves the first pair; its desk: {address}/desk, key {desk}")
        users = Users(address, client, story.questions)
        try:
            yield FlywheelRun(story, users, say)
        finally:
            await users.aclose()


def _line(move: Transition) -> str:
    to = place(move.after, move.percentage)
    return f"release {move.release}: {move.action} -> {to}: {move.why}"
