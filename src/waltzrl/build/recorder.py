"""The recorder: a process beside each gateway that keeps what was served, and decides on releases.

    frames -> scrub, store -> report done -> judge a sample -> observations -> decide

It ends when the gateway closes the pipe or dies, and first finishes what it was given. See
docs/recorder.md.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

import msgspec

from waltzrl.build.judges import open_judge
from waltzrl.build.memory import MemorySettings, open_memory
from waltzrl.errors import WaltzError
from waltzrl.memory.safety import SafetyMemory
from waltzrl.online.judging import OnlineJudge
from waltzrl.online.observations import ObservationTerms, observation_of, terms_of
from waltzrl.online.recorder_protocol import RecorderReport, frames, interaction
from waltzrl.online.retry import DatabaseRetry, failure_location
from waltzrl.records import ServedExchange, Verdict
from waltzrl.release.book import ReleaseBook
from waltzrl.release.calibration import judge_errors
from waltzrl.release.state import Observation
from waltzrl.storage.database import open_database

COMMAND = (sys.executable, "-m", "waltzrl.build.recorder")
BATCH = 256
COMMIT_SECONDS = 0.25
"""An interaction waits so long for others, to be stored with them."""
TICK_SECONDS = 1.0
TICKS_TO_SWEEP = 60
LAST_SECONDS = 60.0
"""When the gateway is gone, a database that fails is waited for so long."""
LAST_VERDICTS_SECONDS = 5.0
"""When the gateway is gone, the judge may take so long over what waits."""

log = logging.getLogger("waltzrl.recorder")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings(MemorySettings):
    """What a recorder is told first."""

    judge: str | None = None
    """A name for `open_judge`; None judges nothing."""
    judge_share: float = 0.1
    """Of the answers that no candidate and no shadow gave, 0 to 1; of those all are judged."""
    niceness: int = 19
    """On a core that is busy with requests, 19 takes 1.5 % of it and 10 would take 10 %."""


class Recorder:
    """What one recorder works on; `run` does the work."""

    def __init__(self, settings: RecorderSettings, tell: Callable[[RecorderReport], None]) -> None:
        """Open nothing yet; `tell` hears what was done."""
        self._settings, self._tell_gateway = settings, tell
        self._report = RecorderReport()
        self._database = DatabaseRetry(self._away)
        self._backlog: deque[bytes] = deque()
        """Bounded by the gateway, which sends no more than it may keep itself."""
        self._news = asyncio.Event()
        self._ended = False
        self._observations: list[Observation] = []
        self._terms: dict[str, ObservationTerms] = {}
        """Of each release."""

    async def run(self, texts: AsyncIterator[bytes]) -> None:
        """Store, judge and decide until the texts of interactions end and all are stored.

        Raises:
            InputError: there is no such database or judge.
            TimeoutError: the texts have ended and the database failed too long.
        """
        settings = self._settings
        async with asyncio.timeout(None) as patience, AsyncExitStack() as stack:
            reading = asyncio.create_task(self._read(texts, patience))
            stack.callback(reading.cancel)
            self._memory, self._book = await self._database.insist(self._open)
            judge = None
            if settings.judge is not None:
                judge = await stack.enter_async_context(open_judge(settings.judge))
            self._jury = OnlineJudge(judge, settings.judge_share, self._judged)
            work = (self._store(), self._jury.sit(), self._watch())
            tasks = [asyncio.create_task(one) for one in work]
            for task in tasks:
                stack.callback(task.cancel)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:  # the first ends with the texts, the others by mistakes of ours
                if task.done():
                    task.result()
            too_late = await self._jury.adjourn(LAST_VERDICTS_SECONDS)
            self._report.unjudged += too_late
            if self._observations:
                await self._decide()
        self._tell()

    @property
    def unstored(self) -> int:
        """Interactions that were read and are not in the database."""
        return len(self._backlog)

    def _open(self) -> tuple[SafetyMemory, ReleaseBook]:
        engine = open_database(self._settings.database)
        scrub = self._timed(self._settings.open_redaction().scrub)
        return open_memory(self._settings, engine, scrub), ReleaseBook(engine)

    def _timed(self, scrub: Callable[[str], str]) -> Callable[[str], str]:
        def timed(text: str) -> str:
            started = time.perf_counter()
            try:
                return scrub(text)
            finally:
                self._report.scrub_seconds += time.perf_counter() - started

        return timed

    async def _read(self, texts: AsyncIterator[bytes], patience: asyncio.Timeout) -> None:
        async for text in texts:
            self._backlog.append(text)
            self._news.set()
        self._ended = True
        self._news.set()
        patience.reschedule(asyncio.get_running_loop().time() + LAST_SECONDS)

    async def _store(self) -> None:
        """Store what was read, batch by batch, until there is no more."""
        while self._backlog or not self._ended:
            await self._news.wait()
            if len(self._backlog) < BATCH and not self._ended:
                await asyncio.sleep(COMMIT_SECONDS)
            batch = [interaction(text) for text in islice(self._backlog, BATCH)]
            if batch:
                await self._remember(batch)
            for _ in batch:
                self._backlog.popleft()
            if not (self._backlog or self._ended):
                self._news.clear()
            self._tell()

    async def _remember(self, batch: Sequence[ServedExchange]) -> None:
        """Store a batch; when that cannot be, each for itself, and give up those that cannot."""
        try:
            kept = await self._database.insist(partial(self._memory.remember, batch))
        except Exception as error:  # noqa: BLE001 - the boundary: what cannot be kept is counted
            if len(batch) == 1:
                log.error("an interaction cannot be kept: %s", failure_location(error))  # noqa: TRY400
                self._report.failed += 1
                return
            for one in batch:
                await self._remember([one])
            return
        self._report.stored += len(batch)
        for seen, evaluation in zip(batch, kept, strict=True):
            said = evaluation.collaboration
            if said is not None and self._jury.wants(seen):
                if self._jury.take(seen, said):
                    continue
                self._report.unjudged += 1
            await self._observe(seen, None)

    async def _judged(self, seen: ServedExchange, verdict: Verdict | None) -> None:
        """Keep a verdict, or count that none came."""
        if verdict is None:
            self._report.unjudged += 1
        else:
            await self._database.attempt(partial(self._memory.judged, seen.id, verdict))
            self._report.judged += 1
        await self._observe(seen, verdict)

    async def _observe(self, seen: ServedExchange, verdict: Verdict | None) -> None:
        if not seen.release:
            return
        if seen.release not in self._terms:
            terms = await self._database.attempt(partial(terms_of, self._book, seen.release))
            if terms is None:
                return
            self._terms[seen.release] = terms
        observation = observation_of(seen, verdict, self._terms[seen.release])
        if observation is not None:
            self._observations.append(observation)

    async def _watch(self) -> None:
        """Decide on the release, and now and then remove what was kept long enough."""
        ticks = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self._decide()
            if ticks % TICKS_TO_SWEEP == 0:
                await self._database.attempt(partial(self._memory.sweep, time.time()))
            ticks += 1
            self._tell()

    async def _decide(self) -> None:
        seen, self._observations = self._observations, []
        await self._database.attempt(partial(self._book.observe, seen))
        await self._database.attempt(self._tick)

    def _tick(self) -> None:
        if self._book.current() is not None:
            self._book.tick(judge_errors(self._memory.calibration()), time.time())

    def _away(self, away: bool) -> None:
        self._report.database_failing = away
        self._tell()

    def _tell(self) -> None:
        self._tell_gateway(self._report)


async def _work() -> None:
    pipe = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pipe), sys.stdin)
    texts = frames(pipe)
    settings = msgspec.json.decode(await anext(texts), type=RecorderSettings)
    os.nice(settings.niceness)
    recorder = Recorder(settings, _report)
    try:
        await recorder.run(texts)
    except WaltzError as error:
        log.error("%s", error)  # noqa: TRY400 - one line
    except TimeoutError:
        lost = recorder.unstored
        log.error("the database failed too long; %d interactions are lost", lost)  # noqa: TRY400


def _report(report: RecorderReport) -> None:
    with suppress(BrokenPipeError):  # the gateway is gone; what it sent is finished all the same
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Be the recorder of the process that writes to our standard input."""
    for number in (signal.SIGINT, signal.SIGTERM):  # only the end of the pipe ends a recorder
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="recorder: %(message)s")
    asyncio.run(_work())


if __name__ == "__main__":
    main()
