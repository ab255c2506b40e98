"""The log of decisions: requests append to a queue, a thread of its own writes to the disk.

append: hash, queue -> every 50 ms: write, one fsync -> every 1,000 entries or 10 s: checkpoint
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeAlias

from msgspec import structs

from waltzrl.audit.contents import Content
from waltzrl.audit.keys import LogKeys
from waltzrl.audit.note import NoteError, PublicKey
from waltzrl.audit.record import DecisionRecord, encode
from waltzrl.audit.store import LogFolder, LogLine
from waltzrl.errors import AuditError, InputError
from waltzrl.records import Collaboration

logger = logging.getLogger(__name__)

Clock: TypeAlias = Callable[[], float]
"""Wall clock: seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How a log is kept; only `on_failure` has no default."""

    on_failure: Literal["refuse", "serve"]
    """While the disk fails: refuse requests, or answer them unaudited and count them."""
    contents: Callable[[Collaboration], Collaboration] | None = None
    """Scrubs the collaborations to be stored beside the log, in the writer's thread; None stores
    no collaborations."""
    commit_seconds: float = 0.05
    """How long an accepted record may be in memory only."""
    commit_records: int = 256
    """Waiting records that start a commit at once."""
    checkpoint_records: int = 1000
    checkpoint_seconds: float = 10.0
    segment_bytes: int = 64 << 20
    """A file of this size is followed by a new one."""
    queue_records: int = 10_000
    """Records that may wait for a slow disk; beyond this `on_failure` decides."""


class Log:
    """A tamper-evident, append-only log; one thread of one process appends to it."""

    def __init__(self, keys: LogKeys, writer: "Writer", settings: LogSettings) -> None:
        """Append through a running writer; `Log.open` creates everything that is needed."""
        self.digest = keys.digest
        """HMAC-SHA256 under this log's digest key, in hex."""
        self._keys, self._writer, self._settings = keys, writer, settings
        self._closed = False

    @classmethod
    def open(
        cls, folder: Path, *, key: Path, settings: LogSettings, clock: Clock = time.time
    ) -> Self:
        """Continue the log in a folder, or start one; remove what a crash left half-written.

        Args:
            folder: of the log; one process writes to it.
            key: file with the private key, created if missing, see `LogKeys`. Keep it outside
                the folder.
            settings: how the log is kept.
            clock: stamps the entries; may jump.

        Raises:
            AuditError: the log was altered, belongs to another key, or is in use.
            InputError: a file is not a key, or cannot be read or written.
        """
        try:
            keys = LogKeys(key)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                writer = Writer(LogFolder.open(folder, keys.signing), settings, clock)
                writer.start()
            except (AuditError, OSError):
                keys.close()
                raise
        except NoteError as error:
            raise InputError(f"{key}: {error}; move it away to get new keys") from None
        except OSError as error:
            raise InputError(
                f"cannot keep an audit log in {folder}: {error}; free the disk or choose another"
            ) from error
        return cls(keys, writer, settings)

    @property
    def public_key(self) -> PublicKey:
        return self._keys.signing.public

    @property
    def failed(self) -> str | None:
        """Why records cannot be written; None while they can."""
        return self._writer.failed

    @property
    def unaudited(self) -> int:
        """Decisions since the log was opened that it does not and will not contain."""
        return self._writer.dropped

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
            if self._writer.full:
                raise AuditError("too many records wait for the audit log's disk; try again later")

    def append(self, record: DecisionRecord, collaboration: Collaboration | None = None) -> None:
        """Accept a record; it is on the disk after `commit_seconds` and one write.

        Args:
            record: of the decision, made by `record_of`.
            collaboration: stored beside the log if contents are.

        Raises:
            AuditError: as `ready`; the record was not accepted.
        """
        if not self._has_room():
            return
        body = b'"event":"decision","decision":' + encode(record)
        content = None
        if collaboration is not None and self._settings.contents:
            content = Content(id=record.id, subject=record.subject, collaboration=collaboration)
        self._writer.put(body, content)

    def notice(self, body: Mapping[str, str | float | bool | None]) -> None:
        """Accept an event of the gateway itself: a release that moved, an erasure.

        Raises:
            AuditError: as `ready`.
        """
        if self._has_room():
            self._writer.put(b'"event":"notice","notice":' + encode(dict(body)))

    def flush(self) -> None:
        """Wait until all accepted records are on the disk; not for use in an event loop.

        Raises:
            AuditError: they cannot be written.
        """
        self._writer.flush()

    def close(self) -> None:
        """Write and sign what waits, and end; closing again does nothing.

        Raises:
            AuditError: it cannot be written; the message gives the number of lost records.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.stop()
        finally:
            self._keys.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _has_room(self) -> bool:
        """Whether the queue has room; if it is full and `on_failure` is `serve`, count the loss."""
        self.ready()
        if self._writer.full:
            self._writer.dropped += 1
            return False
        return True


class Writer:
    """Commits queued entries in groups, signs them, and keeps trying while the disk fails."""

    def __init__(self, store: LogFolder, settings: LogSettings, clock: Clock) -> None:
        """Take over an open store; `start` begins to write."""
        self.failed: str | None = None
        """Why entries cannot be written; None while they can."""
        self.dropped = 0
        """Decisions for which the queue had no room; a `gap` entry reports them afterwards."""
        self._reported = 0
        self._store, self._settings, self._clock = store, settings, clock
        self._queue: deque[LogLine | threading.Event] = deque()
        self._batch: list[LogLine] = []
        self._contents: list[bytes] = []
        """Of the batch, scrubbed."""
        self._flushed: list[threading.Event] = []
        self._order = threading.Lock()
        """Held while a line gets its position and is queued, so that both orders are the same."""
        self._wake = threading.Event()
        self._stopping = False
        self._signed_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        """Write and sign that the log was opened, then start the thread.

        Raises:
            OSError: it cannot be written.
        """
        self.put(b'"event":"opened"')
        self._take()
        self._commit()
        self._sign()
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether the queue has reached its limit."""
        return len(self._queue) >= self._settings.queue_records

    def put(self, body: bytes, content: Content | None = None) -> None:
        """Queue an entry; see `LogFolder.line`."""
        with self._order:
            self._queue.append(self._store.line(self._clock(), body, content))
        if len(self._queue) >= self._settings.commit_records and not self._wake.is_set():
            self._wake.set()

    def flush(self) -> None:
        """Wait until everything queued is on the disk.

        Raises:
            AuditError: it cannot be written.
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
            AuditError: it cannot be written; the message gives the number of lost entries.
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
            if not self._stopping:  # a bug of ours: from now on nothing is written
                self._report("the writing thread has died")

    def _write(self) -> None:
        """Try once; what cannot be written stays for the next time."""
        try:
            self._take()
            self._commit()
            if self._checkpoint_due():
                self._sign()
            self._store.rotate(self._settings.segment_bytes)
        except OSError as error:
            self._report(f"{self._store.folder}: {error.strerror or error}")
            return
        self._report(None)
        for event in self._flushed:
            event.set()
        self._flushed.clear()

    def _take(self) -> None:
        """Move all that waits into the next batch, unless the last one is still unwritten."""
        if self._batch:
            return
        if missing := self.dropped - self._reported:
            self._reported += missing
            self.put(b'"event":"gap","unaudited":%d' % missing)
        while self._queue:
            item = self._queue[0]
            if isinstance(item, threading.Event):
                self._flushed.append(item)
            else:
                if item.content is not None and self._settings.contents:
                    scrubbed = self._settings.contents(item.content.collaboration)
                    content = structs.replace(item.content, collaboration=scrubbed)
                    self._contents.append(content.line)
                self._batch.append(item)
            # Removed last, so that an entry whose scrubbing fails still counts as lost.
            self._queue.popleft()

    def _commit(self) -> None:
        if self._batch:
            self._store.commit(self._batch, b"".join(self._contents))
            self._batch, self._contents = [], []

    def _checkpoint_due(self) -> bool:
        unsigned = self._store.unsigned
        old = time.monotonic() - self._signed_at >= self._settings.checkpoint_seconds
        full = unsigned >= self._settings.checkpoint_records
        return unsigned > 0 and (full or old or self._stopping)

    def _sign(self) -> None:
        self._store.checkpoint()
        self._signed_at = time.monotonic()

    def _report(self, failure: str | None) -> None:
        """Log a change of state, once."""
        if failure == self.failed:
            return
        if failure is None:
            logger.warning("the audit log is written again")
        else:
            logger.error("the audit log cannot be written: %s", failure)
        self.failed = failure
