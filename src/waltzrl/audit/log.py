"""The log of decisions: append here, on the way of a request; a thread of its own writes.

append: hash, queue -> every 50 ms: write, one fsync -> every 1,000 entries or 10 s: checkpoint
"""

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from waltzrl.audit.contents import Content
from waltzrl.audit.keys import LogKeys
from waltzrl.audit.note import NoteError, PublicKey
from waltzrl.audit.record import DecisionRecord, encode
from waltzrl.audit.settings import LogSettings
from waltzrl.audit.store import LogFolder
from waltzrl.audit.writer import Clock, Writer
from waltzrl.errors import AuditError, InputError
from waltzrl.records import Collaboration


class Log:
    """A tamper-evident log that only grows. One process, and in it one thread, appends to it."""

    def __init__(self, keys: LogKeys, writer: Writer, settings: LogSettings) -> None:
        """Append by a writer that runs; `Log.open` makes all that is needed."""
        self.digest = keys.digest
        """HMAC-SHA256 under this log's digest key, in hex."""
        self._keys, self._writer, self._settings = keys, writer, settings
        self._closed = False

    @classmethod
    def open(
        cls, folder: Path, *, key: Path, settings: LogSettings, clock: Clock = time.time
    ) -> Self:
        """Go on with the folder's log, or begin one; cut off what a crash left half-written.

        Args:
            folder: of the log; one process writes to it.
            key: file with the private key; made when it is missing, see `LogKeys`. Keep it away
                from the folder.
            settings: how the log is kept.
            clock: stamps the entries; may jump.

        Raises:
            AuditError: the log was altered, is another key's, or is in use.
            InputError: a file is no key, or cannot be read or written.
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
            raise InputError(f"{key}: {error}; move it away to have new keys made") from None
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
        """Why the disk does not take records; None while it does."""
        return self._writer.failed

    @property
    def unaudited(self) -> int:
        """Decisions since the log was opened that are not in it and never will be."""
        return self._writer.dropped

    def ready(self) -> None:
        """Return when the next decision can be logged, or need not be.

        Raises:
            AuditError: it can not, and the policy is to refuse; or the log is closed.
        """
        if self._closed:
            raise AuditError("the audit log is closed; open it again to go on")
        if self._settings.on_failure == "refuse":
            if self.failed is not None:
                raise AuditError(f"the audit log cannot be written: {self.failed}")
            if self._writer.full:
                raise AuditError("too many records wait for the audit log's disk; try again later")

    def append(self, record: DecisionRecord, said: Collaboration | None = None) -> None:
        """Accept a record; it is on the disk after `commit_seconds` and one write.

        Args:
            record: of the decision, made by `record_of`.
            said: kept beside the log when its contents are.

        Raises:
            AuditError: as `ready`; then the record was not accepted.
        """
        self.ready()
        if self._writer.full:
            self._writer.dropped += 1
            return
        body = b'"event":"decision","decision":' + encode(record)
        content = None
        if said is not None and self._settings.contents:
            content = Content(id=record.id, subject=record.subject, collaboration=said)
        self._writer.put(body, content)

    def notice(self, body: Mapping[str, str | float | bool | None]) -> None:
        """Accept what happened to the gateway itself: a release that moved, an erasure.

        Raises:
            AuditError: as `ready`.
        """
        self.ready()
        if self._writer.full:
            self._writer.dropped += 1
            return
        self._writer.put(b'"event":"notice","notice":' + encode(dict(body)))

    def flush(self) -> None:
        """Wait until all accepted records are on the disk; not for use in an event loop.

        Raises:
            AuditError: the disk does not take them.
        """
        self._writer.flush()

    def close(self) -> None:
        """Write what waits, sign it, and end; closing again does nothing.

        Raises:
            AuditError: the disk does not take it; the message tells how many records are lost.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
