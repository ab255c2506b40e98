"""Runs the flywheel demo: a gateway, its users, and releases that follow the evidence."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial

from waltzrl.errors import InputError, PolicyError
from waltzrl.foundation.workers import Report
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.state import Release, describe_place
from waltzrl.operations.release.view import Transition
from waltzrl.store.memory.labels import ReplyLabel
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl_demo.flywheel import FlywheelDemo
from waltzrl_demo.users import Users, running_gateway

FIRST_QUESTIONS = 800
QUESTIONS = 64
"""The number of questions between two checks of a release."""
RECORDER_SECONDS = 2.0
"""The time until everything that was served is in the memory."""
MOST_QUESTIONS = 20_000
"""The number of questions by which a release must be over."""
TERMS = {
    "pair": "a conversation agent, and a feedback agent that reviews its replies",
    "bundle": "what serves: a pair with its rules and thresholds, under one id",
    "trajectory": "a served exchange, round by round, in a form to learn from",
    "gate": "a paired test of two evaluations; a bundle that is worse is not released",
    "shadow": "the candidate answers too, and nobody reads it",
    "canary": "the candidate answers a share of the users",
    "e-value": "how strong the evidence is that the candidate is worse; 1 is none",
    "drill": "a bad bundle, released on purpose, that must be rolled back",
}
LABELS: dict[ReplyLabel, str] = {
    "correct": "correct",
    "unsafe": "unsafe",
    "overrefusal": "over-refusals",
}

Say = Callable[[str], None]


ShowTask = Callable[[str], AbstractContextManager[Report]]
"""Shows the progress of a task of this name while its block runs."""


class FlywheelRun:
    """The steps of the demo while its gateway runs."""

    def __init__(self, story: FlywheelDemo, users: Users, say: Say, show_task: ShowTask) -> None:
        self._story, self._users, self._say, self._show_task = story, users, say, show_task
        self._memory: SafetyMemory = story.open_memory()
        self._book = ReleaseBook(self._memory.store.engine)
        self.summary: dict[str, str] = {}
        """What came of each step, by its name."""

    async def collect(self) -> None:
        """Have users ask, label the answers, and export trajectories."""
        with self._show_task("questions asked") as report:
            await self._users.ask(FIRST_QUESTIONS, report)
        await asyncio.sleep(RECORDER_SECONDS)
        labels = list(self._story.labels(self._memory))
        with self._show_task("answers labelled") as report:
            for number, (evaluation_id, label) in enumerate(labels, start=1):
                await asyncio.to_thread(self._memory.label, evaluation_id, label)
                report(number, len(labels))
        called = Counter(label.reply for _, label in labels)
        words = ", ".join(f"{called[reply]} {name}" for reply, name in LABELS.items())
        self.summary["labels"] = f"people called {words}, of {len(labels)} answers"
        self._say(self.summary["labels"])
        path, counts = await asyncio.to_thread(self._story.collect)
        self.summary["learned"] = f"{counts.total_interactions} exchanges as trajectories in {path}"
        self._say(self.summary["learned"])

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
            raise PolicyError(f"the release ended {ended.state}: {self._read_reason()}")
        self.summary["release"] = self._render_end(ended)
        return ended

    async def drill(self) -> Release:
        """Propose a bad bundle, which the gate refuses, then release it with an override.

        Raises:
            PolicyError: it was not rolled back.
        """
        propose = partial(self._story.release_bad_bundle, self._book)
        try:
            await asyncio.to_thread(propose, overrides=False)
        except InputError as error:
            self._say(f"the gate refused: {error}")
        release = await asyncio.to_thread(propose, overrides=True)
        ended = await self._follow(release)
        if ended.state != "rolled_back":
            raise PolicyError(f"the bad bundle ended {ended.state}: {self._read_reason()}")
        self.summary["drill"] = self._render_end(ended)
        self.summary["served"] = f"{self._users.asked} questions, {self._users.failed} failed"
        return ended

    async def _follow(self, release: Release) -> Release:
        """Have users ask until the release is over, and print each of its transitions.

        It is over when the audit log says so too, which the gateway writes a moment later.
        """
        printed = asked = 0
        with self._show_task(f"release {release.id}, questions asked") as report:
            while asked < MOST_QUESTIONS:
                moves = await asyncio.to_thread(self._book.history, release.id)
                for move in moves[printed:]:
                    self._say(_render_transition(move))
                printed = len(moves)
                current = await asyncio.to_thread(self._book.release, release.id)
                if current is not None and await asyncio.to_thread(self._is_over, current):
                    return current
                await self._users.ask(QUESTIONS)
                asked += QUESTIONS
                report(asked, None, await asyncio.to_thread(self._read_reason))
        raise PolicyError(f"the release is not over after {asked} questions: {self._read_reason()}")

    def _is_over(self, release: Release) -> bool:
        """Return whether the release has ended, and the gateway has noticed how."""
        notices = [entry.notice for entry in self._story.notices() if entry.notice]
        return not release.is_open and any(
            notice["release"] == release.id and notice["state"] == release.state
            for notice in notices
        )

    def _read_reason(self) -> str:
        """Return what the newest release waits for."""
        view = self._book.view()
        return view.decision.why if view is not None and view.decision is not None else "unknown"

    def _render_end(self, release: Release) -> str:
        return _render_transition(self._book.history(release.id)[-1])


@asynccontextmanager
async def running_flywheel(
    story: FlywheelDemo, say: Say, show_task: ShowTask
) -> AsyncIterator[FlywheelRun]:
    """Run the demo's gateway and its users during the block.

    Raises:
        PolicyError: it did not start.
    """
    client, operator = story.add_keys()
    async with running_gateway(story.gateway) as address:
        say(f"a gateway serves the first pair; its console: {address}/desk, key {operator}")
        users = Users(address, client, story.questions)
        run = FlywheelRun(story, users, say, show_task)
        run.summary["desk"] = (
            f"waltzrl serve {story.gateway} opens it again, at http://localhost:8080/desk, "
            f"key {operator}"
        )
        try:
            yield run
        finally:
            await users.aclose()


def _render_transition(move: Transition) -> str:
    to = describe_place(move.after, move.percentage)
    return f"release {move.release}: {move.action} -> {to}: {move.why}"
