"""Writes the log: reads events from pipes, gives each its place, and commits them in groups.

pipes -> digests, hash chain, Merkle tree -> one write, one fsync -> acknowledge, checkpoint

It runs in a process that answers no requests, so that its work takes no time from them.
"""

import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeAlias

from msgspec import structs

from waltzrl.errors import AuditError, InputError
from waltzrl.foundation.pipes import FrameReader, large_pipe
from waltzrl.store.audit.contents import Content
from waltzrl.store.audit.keys import LogKeys
from waltzrl.store.audit.log import STATUS_BYTES, Log, LogSettings, LogStatus
from waltzrl.store.audit.note import NoteError, PublicKey
from waltzrl.store.audit.record import LogEvent, decode_event, encode_json, record_of
from waltzrl.store.audit.store import LogFolder, LogLine

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.01
"""The pause between two looks at busy pipes: many short turns, so that a worker that has to share
its core with this thread never waits for long."""

Clock: TypeAlias = Callable[[], float]
"""Wall clock: seconds since the epoch."""


class LogWriter:
    """Owns a log's folder and keys; a thread of its own appends what comes through the pipes."""

    def __init__(
        self,
        keys: LogKeys,
        store: LogFolder,
        settings: LogSettings,
        clock: Clock,
        status: LogStatus,
    ) -> None:
        """Take over an open store; `open` creates everything that is needed."""
        self.settings = settings
        self.status = status
        self.digest = keys.digest
        """HMAC-SHA256 under this log's digest key, in hex."""
        self._keys, self._store, self._clock = keys, store, clock
        self._lines: list[LogLine] = []
        """Lines that are not on the disk."""
        self._contents: list[bytes] = []
        """The contents to be stored beside these lines, scrubbed."""
        self._last_notice = -1
        self._signed_at = self._tried_at = time.monotonic()
        # `connect` runs in another thread; appending to and popping from a deque are atomic.
        self._new: deque[_Source] = deque()
        """Connected, for the thread to take over."""
        self._sources: list[_Source] = []
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        key: Path,
        settings: LogSettings,
        status: LogStatus | None = None,
        clock: Clock = time.time,
    ) -> Self:
        """Continue the log in a folder, or start one; remove what a crash left half-written.

        Args:
            folder: of the log; one process writes to it.
            key: file with the private key, created if missing, see `LogKeys`. Keep it outside
                the folder.
            settings: how the log is kept.
            status: in shared memory, if other processes append; None keeps it in this process.
            clock: stamps the entries; may jump.

        Raises:
            AuditError: the log was altered, belongs to another key, or is in use.
            InputError: a file is not a key, or cannot be read or written.
        """
        status = status or LogStatus(memoryview(bytearray(STATUS_BYTES)))
        try:
            keys = LogKeys(key)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                keys.lock_folder(folder)
                writer = cls(keys, LogFolder.open(folder, keys.signing), settings, clock, status)
                writer._start()
            # The locks would refuse the next attempt.
            except (AuditError, OSError):
                keys.close()
                raise
        except NoteError as error:
            raise InputError(f"{key}: {error}; move it away to get new keys") from None
        except OSError as error:
            raise InputError(
                f"cannot keep an audit log in {folder}: {error}; free the disk or choose another"
            ) from error
        return writer

    @property
    def public_key(self) -> PublicKey:
        return self._keys.signing.public

    def connect(self, number: int) -> int:
        """Return the end of a new pipe, to append to the log through a `Log` with this number."""
        reads, writes = large_pipe()
        # The number may have been that of a process that has ended.
        self.status.written[number] = 0
        self._new.append(_Source(reads, number))
        # Wakes the thread, which may be waiting for the pipes without a limit.
        os.write(self._wake, b"1")
        return writes

    def close(self) -> None:
        """When all pipes are closed, write and sign what they held, then the end of the log.

        Raises:
            AuditError: it cannot be written; the message gives the number of lost entries.
        """
        self._stopping.set()
        os.write(self._wake, b"1")
        self._thread.join()
        self._store.close()
        self._keys.close()
        for source in self._sources:
            source.pipe.close()
        for descriptor in (self._woken, self._wake):
            os.close(descriptor)
        self._selector.close()
        if self._lines:
            lost = len(self._lines)
            raise AuditError(f"{lost} entries of the audit log are lost: {self.status.failed}")

    def _start(self) -> None:
        """Write and sign that the log was opened, then start the thread.

        Raises:
            OSError: it cannot be written.
        """
        self._add(b'"event":"opened"')
        self._commit()
        self._sign()
        self._thread.start()

    def _run(self) -> None:
        finished = False
        try:
            while not (self._stopping.is_set() and all(s.pipe.ended for s in self._sources)):
                self._wait()
                self._read()
                waited = time.monotonic() - self._tried_at
                # Without lines it may still have to sign, start a new segment, or acknowledge an
                # ended pipe.
                if not self._lines or waited >= self.settings.commit_seconds:
                    self._write()
            self._write()
            if self.status.failed is None:
                self._add(b'"event":"closed"')
                self._write()
            finished = True
        finally:
            if not finished:  # a bug of ours: from now on nothing is written
                self._report("the writing thread has died")

    def _wait(self) -> None:
        """Wait until a pipe holds something, and then a moment for more of it."""
        # Records without a checkpoint need a signature even if nothing more comes.
        idle = not (self._lines or self._store.unsigned)
        ready = self._selector.select(None if idle else self.settings.commit_seconds)
        if any(key.fileobj == self._woken for key, _ in ready):
            os.read(self._woken, 1 << 10)
        while self._new:
            source = self._new.popleft()
            self._sources.append(source)
            self._selector.register(source.pipe.descriptor, selectors.EVENT_READ)
        if ready:
            # One write and one fsync then serve all that arrives during the pause.
            time.sleep(min(TURN_SECONDS, self.settings.commit_seconds))

    def _read(self) -> None:
        """Take what the pipes hold."""
        for source in self._sources:
            if source.pipe.ended:
                continue
            for text in source.pipe.read():
                source.taken += 1
                self._take(decode_event(text))
            if source.pipe.ended:
                self._selector.unregister(source.pipe.descriptor)

    def _take(self, event: LogEvent) -> None:
        if event.exchange is not None:
            self._add_decision(event)
        elif event.unaudited:
            self._add(b'"event":"gap","unaudited":%d' % event.unaudited)
        elif event.number is None or event.number > self._last_notice:
            # Every gateway process reports the same notices; their numbers rise, so repeats are
            # left out.
            self._last_notice = self._last_notice if event.number is None else event.number
            self._add(b'"event":"notice","notice":' + encode_json(event.notice))

    def _add_decision(self, event: LogEvent) -> None:
        exchange = event.exchange
        assert exchange is not None, "the caller has checked"
        collaboration = exchange.collaboration
        prompt = event.prompt
        if prompt is None:
            assert exchange.said is not None, "`Log.append` sends one of them"
            prompt = exchange.said.prompt
        record = record_of(exchange, prompt, self.digest)
        content = None
        if collaboration is not None and self.settings.contents is not None:
            content = Content(
                id=record.id,
                subject=record.subject,
                collaboration=self.settings.contents(collaboration),
            )
        self._add(b'"event":"decision","decision":' + encode_json(record), content)

    def _add(self, body: bytes, content: Content | None = None) -> None:
        seconds = self._clock()
        self._lines.append(self._store.line(seconds, body))
        if content is not None:
            self._contents.append(structs.replace(content, time=seconds).line)

    def _write(self) -> None:
        """Try once; what cannot be written stays for the next time."""
        self._tried_at = time.monotonic()
        try:
            self._commit()
            if self._checkpoint_due():
                self._sign()
            self._store.rotate(self.settings.segment_bytes)
        except OSError as error:
            self._report(f"{self._store.folder}: {error.strerror or error}")
        else:
            self._report(None)

    def _commit(self) -> None:
        if self._lines:
            self._store.commit(self._lines, b"".join(self._contents))
            self._lines, self._contents = [], []
        for source in self._sources:
            # The lines are on the disk only now; a process that was told earlier could lose
            # records.
            self.status.written[source.number] = source.taken
            if source.pipe.ended:
                source.pipe.close()
        self._sources = [source for source in self._sources if not source.pipe.ended]

    def _checkpoint_due(self) -> bool:
        unsigned = self._store.unsigned
        old = time.monotonic() - self._signed_at >= self.settings.checkpoint_seconds
        full = unsigned >= self.settings.checkpoint_records
        return unsigned > 0 and (full or old or self._stopping.is_set())

    def _sign(self) -> None:
        self._store.checkpoint()
        self._signed_at = time.monotonic()

    def _report(self, failure: str | None) -> None:
        """Log a change of state, once."""
        # A full disk fails twenty times a second.
        if failure == self.status.failed:
            return
        if failure is None:
            logger.warning("the audit log is written again")
        else:
            logger.error("the audit log cannot be written: %s", failure)
        self.status.failed = failure


class _Source:
    """A process that appends."""

    def __init__(self, descriptor: int, number: int) -> None:
        self.pipe = FrameReader(descriptor)
        self.number = number
        self.taken = 0
        """Events that were read."""


class LocalLog(Log):
    """A log whose writer is a thread of the same process."""

    def __init__(self, writer: LogWriter) -> None:
        """Append through a running writer; `LocalLog.open` creates everything that is needed."""
        super().__init__(writer.connect(0), writer.status, 0, writer.settings, writer.public_key)
        self.digest = writer.digest
        self._writer = writer

    @classmethod
    def open(
        cls, folder: Path, *, key: Path, settings: LogSettings, clock: Clock = time.time
    ) -> Self:
        """Do what `LogWriter.open` does, and append from this process."""
        return cls(LogWriter.open(folder, key=key, settings=settings, clock=clock))

    def close(self) -> None:
        """Write and sign what waits, and end; closing again does nothing.

        Raises:
            AuditError: it cannot be written; the message gives the number of lost records.
        """
        if self._closed:
            return
        super().close()
        self._writer.close()
        if self.waiting:
            lost = self.waiting
            raise AuditError(f"{lost} entries of the audit log are lost: {self.failed}")
