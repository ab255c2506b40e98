"""The recorder's work: store what was served, judge a sample, observe, and decide on releases.

    texts -> scrub, store -> report done -> judge a sample -> observations -> decide

It runs in a process of its own, which `recorder_opening` starts; see docs/memory.md.
"""

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from typing import TypeVar

from msgspec import structs

from waltzrl.errors import StorageError
from waltzrl.operations.online.judging import (
    ObservationTerms,
    OnlineJudge,
    VerdictListener,
    observation_of,
    observation_terms,
)
from waltzrl.operations.online.recorder_protocol import (
    NO_LABELS,
    RecorderReport,
    add_labels,
    decode_exchange,
)
from waltzrl.operations.release.attention import find_need
from waltzrl.operations.release.book import ReleaseBook, people_labels
from waltzrl.operations.release.gates import GateReader
from waltzrl.operations.release.state import Observation
from waltzrl.records import ServedExchange, Verdict
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.store import SWEPT_AT_ONCE

BATCH = 256
COMMIT_SECONDS = 0.25
"""An exchange waits so long for others, to be stored with them."""
TICK_SECONDS = 1.0
TICKS_TO_SWEEP = 60
LAST_SECONDS = 60.0
"""Longest wait for a failing database once the gateway is gone."""
LAST_VERDICTS_SECONDS = 5.0
"""Longest wait for the judge's queue once the gateway is gone."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
"""The pause between attempts on a failing database; each pause is twice the one before."""

log = logging.getLogger("waltzrl.recorder")

T = TypeVar("T")


class Recorder:
    """Records what one gateway served; `run` does all the work."""

    def __init__(
        self,
        open_stores: Callable[[], tuple[SafetyMemory, ReleaseBook]],
        make_judge: Callable[[VerdictListener], OnlineJudge],
        report: Callable[[RecorderReport], None],
    ) -> None:
        """Describe the recorder; nothing is opened yet.

        Args:
            open_stores: opens the memory and the release book; it raises a StorageError while the
                database is unavailable.
            make_judge: makes the judge, which tells a listener its verdicts.
            report: called with the counts whenever they change.
        """
        self._open_stores, self._send_report = open_stores, report
        self._report = RecorderReport()
        self._database = DatabaseRetry(self._note_database)
        self._judge = make_judge(self._store_verdict)
        self._backlog: deque[bytes] = deque()
        """The gateway bounds it: it sends no more than it may keep itself."""
        self._changed = asyncio.Event()
        """Something was read, or the texts have ended."""
        self._ended = False
        self._observations: list[Observation] = []
        self._terms: dict[str, ObservationTerms] = {}
        """The terms of the observations, by release."""

    async def run(self, texts: AsyncIterator[bytes]) -> None:
        """Store, judge and decide until the texts end and everything is stored.

        Args:
            texts: the JSON of served exchanges.

        Raises:
            InputError: the database or a key is invalid.
            TimeoutError: the database was unavailable for too long after the texts had ended.
        """
        # Without a limit at first; `_read` sets one when the texts have ended.
        async with asyncio.timeout(None) as deadline, AsyncExitStack() as stack:
            reading = asyncio.create_task(self._read(texts, deadline))
            stack.callback(reading.cancel)
            opening = asyncio.create_task(self._database.run(self._open_stores))
            stack.callback(opening.cancel)
            await asyncio.wait((reading, opening), return_when=asyncio.FIRST_COMPLETED)
            # A gateway that leaves nothing to store does not wait for a failing database.
            if not (opening.done() or self._backlog):
                return
            self._memory, self._book = await opening
            self._gate = GateReader(self._memory.rates)
            work = (self._store_backlog(), self._judge.run(), self._tick())
            tasks = [asyncio.create_task(coroutine) for coroutine in work]
            for task in tasks:
                stack.callback(task.cancel)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:  # the first ends with the texts, the others only by our mistakes
                if task.done():
                    task.result()
            # In two lines: `+= await` would lose what is counted during the wait.
            unfinished = await self._judge.finish(LAST_VERDICTS_SECONDS)
            self._report.unjudged += unfinished
            if self._observations:
                await self._decide()
        self._send_report(self._report)

    @property
    def unstored(self) -> int:
        """Exchanges that were read and are not in the database."""
        return len(self._backlog)

    async def _read(self, texts: AsyncIterator[bytes], deadline: asyncio.Timeout) -> None:
        async for text in texts:
            self._backlog.append(text)
            self._changed.set()
        self._ended = True
        self._changed.set()
        # No limit while the gateway lives: it keeps what is not done, and may wait for the
        # database.
        deadline.reschedule(asyncio.get_running_loop().time() + LAST_SECONDS)

    async def _store_backlog(self) -> None:
        """Store what was read, batch by batch, until the texts end."""
        while self._backlog or not self._ended:
            await self._changed.wait()
            # A full batch is stored at once; a small one waits for more.
            if len(self._backlog) < BATCH and not self._ended:
                await asyncio.sleep(COMMIT_SECONDS)
            # They leave the backlog only when they are stored, so that `unstored` counts them until
            # then.
            batch = [decode_exchange(text) for text in islice(self._backlog, BATCH)]
            if batch:
                await self._store(batch)
            for _ in batch:
                self._backlog.popleft()
            if not (self._backlog or self._ended):
                self._changed.clear()
            self._send_report(self._report)

    async def _store(self, batch: Sequence[ServedExchange]) -> None:
        """Store a batch; if it cannot be stored, each by itself, and drop those that cannot."""
        try:
            evaluations = await self._database.run(partial(self._memory.remember, batch))
        except Exception as error:  # noqa: BLE001 - the boundary: what cannot be stored is counted
            if len(batch) == 1:
                log.error("an exchange cannot be stored: %s", failure_location(error))  # noqa: TRY400
                self._report.failed += 1
                return
            for exchange in batch:
                await self._store([exchange])
            return
        self._report.stored += len(batch)
        for exchange, evaluation in zip(batch, evaluations, strict=True):
            # The judge reads the scrubbed texts.
            collaboration = evaluation.collaboration
            if collaboration is not None and self._judge.samples(exchange):
                if self._judge.submit(exchange, collaboration):
                    continue
                self._report.unjudged += 1
            await self._observe(exchange, None)

    async def _store_verdict(
        self, exchange: ServedExchange, verdict: Verdict | None, second: Verdict | None
    ) -> None:
        if verdict is None:
            self._report.unjudged += 1
        else:
            sampled = self._judge.in_random_sample(exchange)
            store = partial(self._memory.store_verdict, exchange.id, verdict, sampled=sampled)
            await self._database.run_or_none(store)
            self._report.judged += 1
            if sampled:
                self._count_labels(exchange.stage, verdict)
        await self._observe(exchange, verdict, second)

    def _count_labels(self, stage: int, verdict: Verdict) -> None:
        """Count the labels that the judge gave, and apart those that it did not: None."""
        by_stage = self._report.labels_by_stage
        labels = (
            int(verdict.unsafe is True),
            int(verdict.unsafe is False),
            int(verdict.overrefuses is True),
            int(verdict.overrefuses is False),
        )
        by_stage[stage] = add_labels(by_stage.get(stage, NO_LABELS), labels)
        self._report.unsafe_unscored += verdict.unsafe is None
        self._report.overrefusal_unscored += verdict.overrefuses is None

    async def _observe(
        self, exchange: ServedExchange, verdict: Verdict | None, second: Verdict | None = None
    ) -> None:
        if not exchange.release:
            return
        if exchange.release not in self._terms:
            read_terms = partial(observation_terms, self._book, exchange.release)
            terms = await self._database.run_or_none(read_terms)
            if terms is None:
                return
            self._terms[exchange.release] = terms
        terms = self._terms[exchange.release]
        observation = observation_of(exchange, verdict, terms, second)
        if observation is not None:
            subject = self._memory.digest(exchange.subject) if exchange.subject else ""
            # Observations are stored, where a subject's name must not be.
            self._observations.append(structs.replace(observation, subject=subject))

    async def _tick(self) -> None:
        """Decide on the release every second, and delete expired records now and then."""
        ticks = 0
        swept = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self._decide()
            if swept >= SWEPT_AT_ONCE or ticks % TICKS_TO_SWEEP == 0:
                sweep = partial(self._memory.sweep, time.time())
                swept = await self._database.run_or_none(sweep) or 0
            ticks += 1
            self._send_report(self._report)

    async def _decide(self) -> None:
        # Taken before the wait: what is observed meanwhile belongs to the next time.
        observations, self._observations = self._observations, []
        await self._database.run_or_none(partial(self._book.observe, observations))
        await self._database.run_or_none(self._tick_release)

    def _tick_release(self) -> None:
        release = self._book.current()
        if release is None:
            self._report.release_needs = None
            return
        labels = people_labels(self._memory.release_calibrations(release.id))
        decided = self._book.tick(labels, time.time(), self._gate)
        if decided is not None:  # else another replica has decided
            self._report.release_needs = find_need(*decided)

    def _note_database(self, failing: bool) -> None:
        self._report.database_failing = failing
        self._send_report(self._report)


class DatabaseRetry:
    """Runs work in threads, and again while the database is unavailable."""

    def __init__(self, listener: Callable[[bool], None]) -> None:
        """Report to `listener` whether the database is failing, each time that changes."""
        self._listener = listener
        self._failing = False

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, retried for as long as it raises a StorageError.

        Raises:
            Exception: any other that the work raises.
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                result = await asyncio.to_thread(work)
            except StorageError as error:
                if not self._failing:
                    log.error("%s", error)  # noqa: TRY400 - one line
                    self._set_failing(True)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                if self._failing:
                    log.warning("the database is available again")
                    self._set_failing(False)
                return result

    async def run_or_none(self, work: Callable[[], T]) -> T | None:
        """Like `run`, but log any other exception and return None."""
        try:
            return await self.run(work)
        except Exception as error:  # noqa: BLE001 - the boundary: one failure must not end all
            log.error("continued after %s", failure_location(error))  # noqa: TRY400 - may be private
            return None

    def _set_failing(self, failing: bool) -> None:
        self._failing = failing
        self._listener(failing)


def failure_location(error: Exception) -> str:
    """Return the kind and the place of a failure; its message or traceback may hold user text."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {place.filename}:{place.lineno}"
