"""Tells the recorder, a process of its own, of everything that was served.

To look for personal data takes a millisecond per kilobyte, which in a thread would be taken from
every request. So the gateway encodes what was served and writes it to a pipe; the recorder does the
rest. What it has not reported as done is kept here, and given to the next one when it dies.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from waltzrl.online.recorder_protocol import RecorderReport, frame, large_pipe, writer_of
from waltzrl.serving.exchange import ServedChoice

KEPT = 10_000
KEPT_BYTES = 64 * 2**20
"""So many interactions may wait for the recorder, or for it to be done with them."""
GATHER_SECONDS = 0.02
CHUNK_BYTES = 64 * 1024
"""What was gathered is written in pieces of this size, each when the pipe has taken the last."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
"""Before a recorder that died is started again; twice as long each time, until one lives longer."""
FATAL = 3
"""Recorders that died in a row over the same interactions; then these are given up."""
FINISH_SECONDS = 10.0

log = logging.getLogger(__name__)


class RecorderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How remembering goes at the moment of a scrape; counts are since the start."""

    told: int
    """Interactions that were taken."""
    dropped: int
    """Interactions that found no room, or that recorders died over."""
    kept: int
    """Interactions that wait for the recorder, or for it to be done with them."""
    restarts: int
    """Recorders that died."""
    recorder: RecorderReport
    """What all recorders did together."""


class RecorderClient:
    """A `Told` of the ledger that never waits and never fails; made by `open_recorder`."""

    def __init__(
        self,
        command: Sequence[str],
        settings: object,
        environment: Mapping[str, str],
        *,
        may_learn: bool,
    ) -> None:
        """Describe the recorder; see `open_recorder`."""
        self._command, self._environment = command, environment
        self._may_learn = may_learn
        self._settings = frame(settings)
        self._waiting: deque[bytes] = deque()
        self._sent: deque[bytes] = deque()
        """The recorder has these and is not done with them."""
        self._bytes = 0
        """Of both."""
        self._told = self._dropped = self._deaths = 0
        self._in_vain = 0
        """Recorders in a row that were sent something and died with nothing done."""
        self._before = RecorderReport()
        """What recorders did that are gone."""
        self._report = RecorderReport()
        self._news = asyncio.Event()
        """Something waits, or it is time to stop."""
        self._stopping = False

    def served(self, served: ServedChoice) -> None:
        """Take one choice that was answered, or failed; drop it when there is no room."""
        if self._kept >= KEPT or self._bytes >= KEPT_BYTES:
            self._dropped += 1
            return
        exchange = served.exchange
        if exchange.may_learn is None:
            exchange = msgspec.structs.replace(exchange, may_learn=self._may_learn)
        made = frame(exchange)
        self._told += 1
        self._bytes += len(made)
        self._waiting.append(made)
        self._news.set()

    def now(self) -> RecorderStatus:
        """Return the counts."""
        return RecorderStatus(
            told=self._told,
            dropped=self._dropped,
            kept=self._kept,
            restarts=self._deaths,
            recorder=_both(self._before, self._report),
        )

    async def run(self) -> None:
        """Feed a recorder, and the next when it dies, until `stop` and until all is done."""
        pause = FIRST_PAUSE_SECONDS
        while self._kept or not self._stopping:
            started = time.monotonic()
            try:
                await self._one_recorder()
            except OSError as error:
                log.error("the recorder cannot be started: %s", error)  # noqa: TRY400 - one line
            except Exception:  # the boundary: another recorder may fare better
                log.exception("the recorder cannot be fed")
            if self._kept or not self._stopping:
                self._died()
                if time.monotonic() - started > LONGEST_PAUSE_SECONDS:
                    pause = FIRST_PAUSE_SECONDS
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def stop(self) -> None:
        """Let `run` end when the recorder is done with everything."""
        self._stopping = True
        self._news.set()

    @property
    def _kept(self) -> int:
        return len(self._waiting) + len(self._sent)

    async def _one_recorder(self) -> None:
        """Start a recorder and stay with it until it ends.

        Raises:
            OSError: it cannot be started.
        """
        its_end, our_end = large_pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=its_end,
                stdout=asyncio.subprocess.PIPE,
                env=dict(self._environment),
            )
        except OSError:
            os.close(our_end)
            raise
        finally:
            os.close(its_end)
        assert process.stdout is not None
        feeding = asyncio.create_task(self._feed(await writer_of(our_end)))
        try:
            async for line in process.stdout:
                self._heard(line)
        finally:  # it has ended, or it takes too long
            feeding.cancel()
            if not process.stdout.at_eof():
                process.kill()
            await asyncio.gather(feeding, return_exceptions=True)
            await process.wait()

    async def _feed(self, pipe: asyncio.StreamWriter) -> None:
        """Write what waits, as fast as the recorder reads; close the pipe when told to stop."""
        pipe.transport.set_write_buffer_limits(high=0)
        pipe.write(self._settings)
        try:
            while self._waiting or not self._stopping:
                await self._news.wait()
                if not self._stopping:
                    await asyncio.sleep(GATHER_SECONDS)
                self._news.clear()
                while self._waiting:
                    pipe.write(self._chunk())
                    await pipe.drain()
        except ConnectionError:
            return  # it died: whoever listens to it sees that too
        finally:
            pipe.close()

    def _chunk(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._waiting and size < CHUNK_BYTES:
            part = self._waiting.popleft()
            self._sent.append(part)
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def _heard(self, line: bytes) -> None:
        """Let go of what the recorder is done with."""
        try:
            report = msgspec.json.decode(line, type=RecorderReport)
        except msgspec.DecodeError:  # it died while it wrote
            return
        for _ in range(report.done - self._report.done):
            self._bytes -= len(self._sent.popleft())
        self._report = report

    def _died(self) -> None:
        """Make ready for the next recorder."""
        log.warning("the recorder has died; another is started")
        self._deaths += 1
        self._in_vain = 0 if self._report.done or not self._sent else self._in_vain + 1
        self._before, self._report = _both(self._before, self._report), RecorderReport()
        if self._in_vain == FATAL:
            log.error("%d recorders died over %d interactions, now lost", FATAL, len(self._sent))
            self._in_vain = 0
            self._dropped += len(self._sent)
            self._bytes -= sum(map(len, self._sent))
            self._sent.clear()
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        if self._waiting:
            self._news.set()


@asynccontextmanager
async def open_recorder(
    command: Sequence[str],
    settings: object,
    environment: Mapping[str, str],
    *,
    may_learn: bool = True,
    finish_seconds: float = FINISH_SECONDS,
) -> AsyncIterator[RecorderClient]:
    """Run a recorder beside the block.

    Args:
        command: starts the recorder, which reads frames and writes reports.
        settings: its first frame.
        environment: its variables.
        may_learn: whether the agents may learn from what was served, where neither the client nor
            its key says.
        finish_seconds: how long the recorder may take to finish when the block is left.
    """
    remembrance = RecorderClient(command, settings, environment, may_learn=may_learn)
    running = asyncio.create_task(remembrance.run())
    try:
        yield remembrance
    finally:
        remembrance.stop()
        try:
            await asyncio.wait_for(running, finish_seconds)
        except TimeoutError:
            lost = remembrance.now().kept
            log.error("the recorder did not finish; %d interactions may be lost", lost)  # noqa: TRY400


def _both(one: RecorderReport, other: RecorderReport) -> RecorderReport:
    return RecorderReport(
        stored=one.stored + other.stored,
        failed=one.failed + other.failed,
        judged=one.judged + other.judged,
        unjudged=one.unjudged + other.unjudged,
        scrub_seconds=one.scrub_seconds + other.scrub_seconds,
        database_failing=other.database_failing,
    )
