"""The thread that writes the log, so that requests do not wait for the disk."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from msgspec import structs

from waltzrl.audit.contents import Content
from waltzrl.audit.settings import LogSettings
from waltzrl.audit.store import LogFolder, LogLine
from waltzrl.errors import AuditError

logger = logging.getLogger(__name__)

Clock: TypeAlias = Callable[[], float]
"""Wall clock: seconds since the epoch."""


class Writer:
    """Commits in groups what is handed over, signs it, and keeps trying while the disk fails."""

    def __init__(self, store: LogFolder, settings: LogSettings, clock: Clock) -> None:
        """Take over an open store; `start` begins."""
        self.failed: str | None = None
        """Why the disk does not take entries; None while it does."""
        self.dropped = 0
        """Decisions that found no room; the log tells of them when there is room again."""
        self._told = 0
        self._store, self._settings, self._clock = store, settings, clock
        self._queue: deque[LogLine | threading.Event] = deque()
        self._batch: list[LogLine] = []
        self._contents: list[bytes] = []
        """Of the batch, scrubbed."""
        self._flushed: list[threading.Event] = []
        self._order = threading.Lock()
        """Lines are queued in the order in which they get their places."""
        self._wake = threading.Event()
        self._stopping = False
        self._signed_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        """Write and sign that the log was opened, then go on beside the caller.

        Raises:
            OSError: the disk does not take it.
        """
        self.put(b'"event":"opened"')
        self._take()
        self._commit()
        self._sign()
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether as many entries wait as may."""
        return len(self._queue) >= self._settings.queue_records

    def put(self, body: bytes, content: Content | None = None) -> None:
        """Hand over an entry; see `LogFolder.line`."""
        with self._order:
            self._queue.append(self._store.line(self._clock(), body, content))
        if len(self._queue) >= self._settings.commit_records and not self._wake.is_set():
            self._wake.set()

    def flush(self) -> None:
        """Wait until everything handed over is on the disk.

        Raises:
            AuditError: the disk does not take it.
        """
        done = threading.Event()
        self._queue.append(done)
        self._wake.set()
        while not done.wait(self._settings.commit_seconds):
            if self.failed is not None:
                raise AuditError(f"the audit log cannot be written: {self.failed}")

    def stop(self) -> None:
        """Write and sign what waits, then that the log was closed, and end.

        Raises:
            AuditError: the disk does not take it; the message tells how many entries are lost.
        """
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._store.close()
        if lost := len(self._batch) + len(self._queue):
            raise AuditError(f"{lost} entries of the audit log are lost: {self.failed}")

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.wait(self._settings.commit_seconds)
                self._wake.clear()
                self._write()
            self._write()
            if self.failed is None:
                self.put(b'"event":"closed"')
                self._write()
        finally:
            if not self._stopping:  # a mistake of ours: nothing is written any more
                self._tell("the writing thread has died")

    def _write(self) -> None:
        """Try once; what the disk does not take stays for the next time."""
        try:
            self._take()
            self._commit()
            if self._due():
                self._sign()
            self._store.rotate(self._settings.segment_bytes)
        except OSError as error:
            self._tell(f"{self._store.folder}: {error.strerror or error}")
            return
        self._tell(None)
        for event in self._flushed:
            event.set()
        self._flushed.clear()

    def _take(self) -> None:
        """Make the next group of all that waits, unless the last one is still to be written."""
        if self._batch:
            return
        if missing := self.dropped - self._told:
            self._told += missing
            self.put(b'"event":"gap","unaudited":%d' % missing)
        while self._queue:
            item = self._queue[0]
            if isinstance(item, threading.Event):
                self._flushed.append(item)
            else:
                self._scrub(item.content)
                self._batch.append(item)
            self._queue.popleft()

    def _scrub(self, content: Content | None) -> None:
        if content is not None and self._settings.contents:
            said = self._settings.contents(content.collaboration)
            self._contents.append(structs.replace(content, collaboration=said).line)

    def _commit(self) -> None:
        if self._batch:
            self._store.commit(self._batch, b"".join(self._contents))
            self._batch, self._contents = [], []

    def _due(self) -> bool:
        unsigned = self._store.unsigned
        old = time.monotonic() - self._signed_at >= self._settings.checkpoint_seconds
        full = unsigned >= self._settings.checkpoint_records
        return unsigned > 0 and (full or old or self._stopping)

    def _sign(self) -> None:
        self._store.checkpoint()
        self._signed_at = time.monotonic()

    def _tell(self, failure: str | None) -> None:
        """Say once what changed."""
        if failure == self.failed:
            return
        if failure is None:
            logger.warning("the audit log is written again")
        else:
            logger.error("the audit log cannot be written: %s", failure)
        self.failed = failure
