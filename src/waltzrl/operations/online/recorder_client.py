"""Sends everything that was served to the recorder, a process of its own.

Scanning for personal data takes a millisecond per kilobyte, which a thread would take from every
request. So the gateway only encodes each exchange and writes it to a pipe. Exchanges that the
recorder has not reported as done are kept here, and sent again to the next one if it dies.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from waltzrl.foundation.counters import SlidingCounter
from waltzrl.foundation.pipes import large_pipe
from waltzrl.gateway.exchange import ServedChoice
from waltzrl.operations.online.recorder_protocol import (
    COUNTS,
    NO_LABELS,
    RecorderReport,
    add_labels,
    encode_frame,
    writer_of,
)

MOST_PENDING = 10_000
MOST_PENDING_BYTES = 64 * 2**20
"""The most bytes of exchanges that are not done; more are dropped."""
GATHER_SECONDS = 0.02
CHUNK_BYTES = 64 * 1024
"""Size of the pieces that are written to the pipe, one after another."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
"""The pause before a dead recorder is replaced; doubled each time, until one lives longer than the
last."""
FATAL = 3
"""Exchanges are dropped after so many recorders in a row died over them."""
FINISH_SECONDS = 30.0
"""The longest wait, when a gateway stops, for what was answered to be recorded."""

log = logging.getLogger(__name__)


class RecorderClient:
    """Listens to the gateway's decisions; never waits and never fails."""

    def __init__(self, command: Sequence[str], config: object, *, may_learn: bool) -> None:
        """Describe the recorder; `running` starts it.

        Args:
            command: starts the recorder, which reads frames and writes reports.
            config: its first frame.
            may_learn: whether the agents may learn from what was served, if neither the client nor
                its key says.
        """
        self._command, self._may_learn = command, may_learn
        self._config = encode_frame(config)
        self._waiting: deque[bytes] = deque()
        self._sent: deque[bytes] = deque()
        """Sent to the recorder, and not done."""
        self._bytes = 0
        """The bytes in both queues."""
        self.accepted = 0
        """Exchanges that were accepted since the start."""
        self.dropped = 0
        """Exchanges that were dropped: there was no room, or recorders died over them."""
        self.restarts = 0
        """Recorders that died."""
        self._fruitless = 0
        """Recorders in a row that were sent something and died before anything was done."""
        self._past = RecorderReport()
        """Sum over the recorders that have died."""
        self._report = RecorderReport()
        """The last report of the present recorder."""
        self.judged = SlidingCounter(4, slice_seconds=60.0, slices=60)
        """`RecorderReport.labels` of the last hour."""
        self._changed = asyncio.Event()
        """Something waits, or `stop` was called."""
        self._stopping = False

    def served(self, served: ServedChoice) -> None:
        """Queue one choice that was answered, or failed; drop it when there is no room.

        Probes are no traffic, so nothing is recorded of them.
        """
        if served.exchange.probe:
            return
        # Serving goes on whatever the recorder does; memory is bounded by both limits.
        if self.pending >= MOST_PENDING or self._bytes >= MOST_PENDING_BYTES:
            self.dropped += 1
            return
        exchange = served.exchange
        if exchange.may_learn is None:
            exchange = msgspec.structs.replace(exchange, may_learn=self._may_learn)
        data = encode_frame(exchange)
        self.accepted += 1
        self._bytes += len(data)
        self._waiting.append(data)
        self._changed.set()

    @property
    def pending(self) -> int:
        """Exchanges that the recorder is not done with."""
        return len(self._waiting) + len(self._sent)

    @property
    def report(self) -> RecorderReport:
        """Sum over all recorders so far."""
        return _sum_reports(self._past, self._report)

    @asynccontextmanager
    async def running(self, finish_seconds: float = FINISH_SECONDS) -> AsyncIterator[None]:
        """Run a recorder process during the block; when it ends, wait so long for it to finish."""
        feeding = asyncio.create_task(self.run())
        try:
            yield
        finally:
            self.stop()
            try:
                await asyncio.wait_for(feeding, finish_seconds)
            except TimeoutError:
                lost = self.pending
                log.error("the recorder did not finish; %d exchanges may be lost", lost)  # noqa: TRY400

    async def run(self) -> None:
        """Feed a recorder, and its successors, until `stop` is called and everything is done."""
        pause = FIRST_PAUSE_SECONDS
        while self.pending or not self._stopping:
            started = time.monotonic()
            try:
                await self._run_recorder()
            except OSError as error:
                log.error("the recorder cannot be started: %s", error)  # noqa: TRY400 - one line
            except Exception:  # the boundary: another recorder may succeed
                log.exception("the recorder cannot be fed")
            if self.pending or not self._stopping:
                self._note_death()
                # One that lived that long had worked; its death is no reason to wait longer for the
                # next.
                if time.monotonic() - started > LONGEST_PAUSE_SECONDS:
                    pause = FIRST_PAUSE_SECONDS
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def stop(self) -> None:
        """Let `run` end when the recorder is done with everything."""
        self._stopping = True
        self._changed.set()

    async def _run_recorder(self) -> None:
        """Start a recorder and feed it until it ends.

        Raises:
            OSError: it cannot be started.
        """
        starting = asyncio.create_task(self._start())
        try:
            process, pipe = await asyncio.shield(starting)
        except asyncio.CancelledError:  # it took too long; to be ended, it must have started
            with suppress(OSError):
                process, pipe = await starting
                pipe.close()
                process.kill()
                await process.wait()
            raise
        assert process.stdout is not None
        feeding = asyncio.create_task(self._feed(pipe))
        try:
            async for line in process.stdout:
                self.take_report(line)
        finally:  # it has ended, or this task was cancelled because it took too long
            feeding.cancel()
            if not process.stdout.at_eof():
                process.kill()
            await asyncio.gather(feeding, return_exceptions=True)
            await process.wait()

    async def _start(self) -> tuple[asyncio.subprocess.Process, asyncio.StreamWriter]:
        """Start a recorder, and open the pipe that it reads."""
        read_end, write_end = large_pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=read_end,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        return process, await writer_of(write_end)

    async def _feed(self, pipe: asyncio.StreamWriter) -> None:
        """Write what waits, as fast as the recorder reads; close the pipe after `stop`."""
        # `drain` then waits for the pipe: what waits is bounded and counted here, not in asyncio.
        pipe.transport.set_write_buffer_limits(high=0)
        pipe.write(self._config)
        try:
            while self._waiting or not self._stopping:
                await self._changed.wait()
                if not self._stopping:
                    await asyncio.sleep(GATHER_SECONDS)
                # Cleared before the queue is emptied: what is added meanwhile sets it again.
                self._changed.clear()
                while self._waiting:
                    pipe.write(self._chunk())
                    await pipe.drain()
        except ConnectionError:
            return  # it died, which ends the loop over its reports too
        finally:
            pipe.close()

    def _chunk(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._waiting and size < CHUNK_BYTES:
            part = self._waiting.popleft()
            # Before it is written: if the recorder dies meanwhile, the next one gets it.
            self._sent.append(part)
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def take_report(self, line: bytes) -> None:
        """Drop the exchanges that the recorder is done with."""
        try:
            report = msgspec.json.decode(line, type=RecorderReport)
        except msgspec.DecodeError:  # it died while writing
            return
        for _ in range(report.done - self._report.done):
            self._bytes -= len(self._sent.popleft())
        self.judged.add(
            *(now - before for now, before in zip(report.labels, self._report.labels, strict=True))
        )
        self._report = report

    def _note_death(self) -> None:
        """Queue for the next recorder what the dead one has not done."""
        log.warning("the recorder died; starting another")
        self.restarts += 1
        self._fruitless = 0 if self._report.done or not self._sent else self._fruitless + 1
        self._past, self._report = _sum_reports(self._past, self._report), RecorderReport()
        if self._fruitless == FATAL:
            log.error(
                "%d recorders died over the same %d exchanges, which are lost",
                FATAL,
                len(self._sent),
            )
            self._fruitless = 0
            self.dropped += len(self._sent)
            self._bytes -= sum(map(len, self._sent))
            self._sent.clear()
        # extendleft turns the order round, so this keeps it.
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        if self._waiting:
            self._changed.set()


def _sum_reports(past: RecorderReport, present: RecorderReport) -> RecorderReport:
    stages = sorted({*past.labels_by_stage, *present.labels_by_stage})
    reports = (past, present)
    return msgspec.structs.replace(
        present,
        **{name: sum(getattr(report, name) for report in reports) for name in COUNTS},
        labels_by_stage={
            stage: add_labels(*(report.labels_by_stage.get(stage, NO_LABELS) for report in reports))
            for stage in stages
        },
    )
