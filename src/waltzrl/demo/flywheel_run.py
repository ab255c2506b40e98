"""Runs the flywheel demo: a gateway, its users, and releases that follow the evidence."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from waltzrl.demo.flywheel import FlywheelDemo
from waltzrl.demo.users import Users, running_gateway
from waltzrl.errors import InputError, PolicyError
from waltzrl.memory.safety import SafetyMemory
from waltzrl.release.book import ReleaseBook
from waltzrl.release.state import Release, place
from waltzrl.release.view import Transition

FIRST_QUESTIONS = 800
QUESTIONS = 64
"""Between two checks of a release."""
RECORDER_SECONDS = 2.0
"""Until everything that was served is in the memory."""
LONGEST_RELEASE_SECONDS = 300.0

Say = Callable[[str], None]


class FlywheelRun:
    """The steps of the demo while its gateway runs."""

    def __init__(self, story: FlywheelDemo, users: Users, say: Say) -> None:
        self._story, self._users, self._say = story, users, say
        self._memory: SafetyMemory = story.open_memory()
        self._book = ReleaseBook(self._memory.store.engine)

    async def collect(self) -> None:
        """Have users ask, label the answers, and export trajectories."""
        await self._users.ask(FIRST_QUESTIONS)
        await asyncio.sleep(RECORDER_SECONDS)
        labels = list(self._story.labels(self._memory))
        for evaluation_id, label in labels:
            self._memory.label(evaluation_id, label)
        path, counts = await asyncio.to_thread(self._story.collect)
        safe = "none" if counts.safe_rate is None else f"{100 * counts.safe_rate:.0f} %"
        self._say(
            f"{len(labels)} answers labelled by people; {counts.total_interactions} reviewed "
            f"exchanges as trajectories in {path}, {safe} of them safe"
        )

    async def release(self) -> Release:
        """Release the second pair, and have users ask until it serves all of them.

        Raises:
            InputError: the gate refuses it.
            PolicyError: it was rolled back, or took too long.
        """
        release = await asyncio.to_thread(self._story.release, self._book)
        self._say(f"the gate passed: {self._book.history(release.id)[0].why}")
        ended = await self._follow(release)
        if ended.state != "full":
            raise PolicyError(f"the release ended {ended.state}: {self._why(ended)}")
        return ended

    async def drill(self) -> Release:
        """Propose a bad bundle, which the gate refuses, then release it with an override.

        Raises:
            PolicyError: it was not rolled back.
        """
        try:
            await asyncio.to_thread(self._story.try_bad_bundle, self._book)
        except InputError as error:
            self._say(f"the gate refused: {error}")
        release = await asyncio.to_thread(self._story.release_bad_bundle, self._book)
        ended = await self._follow(release)
        if ended.state != "rolled_back":
            raise PolicyError(f"the bad bundle ended {ended.state}: {self._why(ended)}")
        return ended

    async def _follow(self, release: Release) -> Release:
        """Have users ask until the release is over, and print each of its transitions.

        It is over when the audit log says so too, which the gateway writes a moment later.
        """
        ends = time.monotonic() + LONGEST_RELEASE_SECONDS
        printed = 0
        while time.monotonic() < ends:
            moves = await asyncio.to_thread(self._book.history, release.id)
            for move in moves[printed:]:
                self._say(_line(move))
            printed = len(moves)
            current = await asyncio.to_thread(self._book.release, release.id)
            if current is not None and await asyncio.to_thread(self._is_over, current):
                return current
            await self._users.ask(QUESTIONS)
        raise PolicyError(
            f"the release is not over after {LONGEST_RELEASE_SECONDS:.0f} s: {self._why(release)}"
        )

    def _is_over(self, release: Release) -> bool:
        """Return whether the release has ended, and the gateway has noticed how."""
        notices = [entry.notice for entry in self._story.notices() if entry.notice]
        return not release.is_open and any(
            notice["release"] == release.id and notice["state"] == release.state
            for notice in notices
        )

    def _why(self, release: Release) -> str:
        view = self._book.view()
        waits = view.decision.why if view is not None and view.decision is not None else "unknown"
        return f"{release.id}: {waits}"


@asynccontextmanager
async def running_flywheel(story: FlywheelDemo, say: Say) -> AsyncIterator[FlywheelRun]:
    """Run the demo's gateway and its users during the block.

    Raises:
        PolicyError: it did not start.
    """
    client, operator = story.add_keys()
    async with running_gateway(story.gateway) as address:
        say(f"a gateway serves the first pair; its console: {address}/desk, key {operator}")
        users = Users(address, client, story.questions)
        try:
            yield FlywheelRun(story, users, say)
        finally:
            await users.aclose()


def _line(move: Transition) -> str:
    to = place(move.after, move.percentage)
    return f"release {move.release}: {move.action} -> {to}: {move.why}"
