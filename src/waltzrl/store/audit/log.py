"""The log of decisions: processes append to pipes, a thread of one process writes to the disk.

append: encode, pipe -> LogWriter: digests, hashes; every 50 ms one write, one fsync, acknowledge
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from waltzrl.errors import AuditError
from waltzrl.foundation.pipes import FrameWriter
from waltzrl.records import Collaboration, Prompt, ServedExchange
from waltzrl.store.audit.note import PublicKey
from waltzrl.store.audit.record import LogEvent, encode_event

LONGEST_FAILURE = 1000
APPENDERS = 256
"""Most processes that append to one log at the same time."""
# A counter of 8 bytes for each process, the length of the failure's text, and the text.
STATUS_BYTES = 8 * APPENDERS + 8 + LONGEST_FAILURE


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How a log is kept; only `on_failure` has no default."""

    on_failure: Literal["refuse", "serve"]
    """While the disk fails: refuse requests, or answer them unaudited and count them."""
    contents: Callable[[Collaboration], Collaboration] | None = None
    """Scrubs the collaborations to be stored beside the log, in the writer's thread; None stores
    no collaborations."""
    commit_seconds: float = 0.05
    """The longest time an accepted record waits for others, to be written with them."""
    checkpoint_records: int = 1000
    checkpoint_seconds: float = 10.0
    segment_bytes: int = 64 << 20
    """A file of this size is followed by a new one."""
    queue_records: int = 10_000
    """Records of one process that may wait for a slow disk; beyond this `on_failure` decides."""


class LogStatus:
    """What the writer tells the processes that append, in `STATUS_BYTES` of shared memory."""

    def __init__(self, memory: memoryview) -> None:
        """Use the memory, in which every byte is zero at first."""
        self.written = memory[: 8 * APPENDERS].cast("q")
        """The number of events that are on the disk, for each process that appends."""
        self._length = memory[8 * APPENDERS : 8 * APPENDERS + 8].cast("q")
        self._text = memory[8 * APPENDERS + 8 : STATUS_BYTES]

    @property
    def failed(self) -> str | None:
        """Why records cannot be written; None while they can."""
        length = self._length[0]
        return bytes(self._text[:length]).decode(errors="replace") if length else None

    @failed.setter
    def failed(self, failure: str | None) -> None:
        text = (failure or "").encode()[:LONGEST_FAILURE]
        # The length comes last: a reader in another process never sees more than is written.
        self._text[: len(text)] = text
        self._length[0] = len(text)


class Log:
    """A tamper-evident, append-only log; one thread of a process appends through it."""

    def __init__(
        self,
        pipe: int,
        status: LogStatus,
        number: int,
        settings: LogSettings,
        public_key: PublicKey,
    ) -> None:
        """Append to the log of a writer, which may be in another process.

        Args:
            pipe: file descriptor of a pipe's end; the writer reads from the other.
            status: the writer's.
            number: of this process, below `APPENDERS`.
            settings: the writer's.
            public_key: verifies the log.
        """
        self.public_key = public_key
        self.unaudited = 0
        """Decisions since the log was opened that it does not and will not contain."""
        self._pipe = FrameWriter(pipe)
        self._status, self._number, self._settings = status, number, settings
        self._sent = 0
        self._reported = 0
        """The part of `unaudited` that a `gap` entry reports."""
        # `_alone` becomes true when the pipe is broken: nobody reads it, so the writer has ended.
        self._closed = self._alone = False

    @property
    def failed(self) -> str | None:
        """Why records cannot be written; None while they can."""
        return "the process that writes it has ended" if self._alone else self._status.failed

    @property
    def waiting(self) -> int:
        """Accepted records that are not on the disk yet."""
        return self._sent - self._status.written[self._number]

    def ready(self) -> None:
        """Return if the next decision can be logged, or need not be.

        Raises:
            AuditError: it cannot be logged, and `on_failure` is `refuse`; or the log is closed.
        """
        if self._closed:
            raise AuditError("the audit log is closed; open it again to continue")
        if self._settings.on_failure == "refuse":
            if self.failed is not None:
                raise AuditError(f"the audit log cannot be written: {self.failed}")
            if self._is_full:
                raise AuditError("too many records wait for the audit log's disk; try again later")

    def append(self, exchange: ServedExchange, prompt: Prompt) -> None:
        """Accept a decision; it is on the disk after `commit_seconds` and one write.

        Args:
            exchange: as it was served, or ended early.
            prompt: of the request, whose id the record bears.

        Raises:
            AuditError: as `ready`; the decision was not accepted.
        """
        if self._has_room():
            said = exchange.said
            # The prompt is mostly in the exchange already; sending it twice would double the pipe's
            # load.
            known = said is not None and said.prompt is prompt
            self._send(LogEvent(exchange=exchange, prompt=None if known else prompt), decisions=1)

    def notice(
        self, body: Mapping[str, str | float | bool | None], number: int | None = None
    ) -> None:
        """Accept an event of the gateway itself: a release that moved, an erasure.

        Args:
            body: what happened.
            number: of the event, in ascending order; if several processes report an event, it is
                logged once. None logs it anyway.

        Raises:
            AuditError: as `ready`.
        """
        if self._has_room():
            self._send(LogEvent(notice=dict(body), number=number))

    def flush(self) -> None:
        """Wait until all accepted records are on the disk; not for use in an event loop.

        Raises:
            AuditError: they cannot be written.
        """
        self._wait()
        self._report_gap()
        self._wait()

    def close(self) -> None:
        """Hand what was accepted to the writer, and end; closing again does nothing.

        Raises:
            AuditError: records are lost, because the writer has ended.
        """
        if self._closed:
            return
        self._closed = True
        # Only now is there room in the queue for the entry that reports the gap.
        self._report_gap()
        self._push()
        self._pipe.close()
        if self._alone:
            raise AuditError(f"{self.waiting} entries of the audit log may be lost: {self.failed}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _is_full(self) -> bool:
        return self.waiting >= self._settings.queue_records

    def _has_room(self) -> bool:
        """Whether the queue has room; if it is full and `on_failure` is `serve`, count the loss."""
        self.ready()
        # While the disk fails and the queue has room, records are accepted: the writer tries again.
        if self._settings.on_failure == "serve" and (self._is_full or self._alone):
            self.unaudited += 1
            return False
        self._report_gap()
        return True

    def _wait(self) -> None:
        while self.waiting:
            if self.failed is not None:
                raise AuditError(f"the audit log cannot be written: {self.failed}")
            self._push()
            time.sleep(self._settings.commit_seconds / 4)

    def _report_gap(self) -> None:
        # Gaps go out before the next decision, so that they stand in the log where records are
        # missing.
        missing = self.unaudited - self._reported
        if missing and not self._is_full and not self._alone:
            self._reported = self.unaudited
            self._send(LogEvent(unaudited=missing))

    def _send(self, event: LogEvent, decisions: int = 0) -> None:
        try:
            self._pipe.send(encode_event(event))
        except BrokenPipeError:
            self._alone = True
            # Counted first: `ready` raises where a decision must not be served unaudited.
            self.unaudited += decisions
            self.ready()
        else:
            self._sent += 1

    def _push(self) -> None:
        try:
            self._pipe.flush()
        except BrokenPipeError:
            self._alone = True
