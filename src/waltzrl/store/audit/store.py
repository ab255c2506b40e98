"""The log's folder: segments of lines, checkpoints and, separate from them, contents.

decisions-000001.jsonl ...   one line per entry
contents-000001.jsonl ...    collaborations, if contents are stored
checkpoints                  signed notes, the newest last
frontier.json                state of the tree at the newest checkpoint, so that opening is fast
"""

import errno
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import monotonic_ns
from typing import NamedTuple, Self

from waltzrl.errors import AuditError
from waltzrl.foundation.files import sync_to_disk
from waltzrl.store.audit.contents import CONTENTS
from waltzrl.store.audit.merkle import Frontier, leaf_hash
from waltzrl.store.audit.note import SIGNATURE, Checkpoint, SigningKey
from waltzrl.store.audit.verify import CHECKPOINTS, SEGMENT, LogPosition, follow_log, list_segments

FRONTIER = "frontier.json"
NOTE_BYTES = 1 << 16
"""More than a note has."""


class LogLine(NamedTuple):
    """An entry on its way to the disk, with its position in the log."""

    raw: bytes
    hash: str
    """SHA-256 of `raw`, in hex; the next line repeats it."""
    leaf: bytes
    """The line's hash in the Merkle tree."""


class LogFolder:
    """Writes entries and checkpoints; not thread-safe."""

    def __init__(self, folder: Path, key: SigningKey, position: LogPosition) -> None:
        self.folder = folder
        self._key = key
        self._position = position
        self._next = position.frontier.size
        self._last = position.head
        self._checkpoints = GrowingFile(folder / CHECKPOINTS, _length_of_notes(folder))
        self._open_segment(position.offset)

    @classmethod
    def open(cls, folder: Path, key: SigningKey) -> Self:
        """Continue the log in the folder, or start one.

        Raises:
            AuditError: the log does not match its checkpoints, or belongs to another key.
            OSError: the folder cannot be read.
        """
        if not list_segments(folder) and not _length_of_notes(folder):
            store = cls(folder, key, LogPosition())
            store.checkpoint()  # of an empty log: from now on, missing checkpoints show a deletion
            return store
        position = _find_position(folder)
        # A stale or forged snapshot is no fault of the log, which is then read from its start.
        if follow_log(folder, key.public, position) is not None:
            position = LogPosition()
            if fault := follow_log(folder, key.public, position):
                raise AuditError(
                    f"{folder}: {fault.message} ({fault.kind}); keep it as evidence and open a "
                    "log in another folder"
                )
        return cls(folder, key, position)

    @property
    def unsigned(self) -> int:
        """Entries that no checkpoint covers yet."""
        return self._position.frontier.size - self._position.signed

    def line(self, seconds: float, body: bytes) -> LogLine:
        """Give an entry the next position. All lines must be committed, in this order.

        Args:
            seconds: wall clock, since the epoch.
            body: the line's keys from `event` on, as JSON without braces.
        """
        when = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
        raw = b'{"seq":%d,"prev":"%b","time":"%b","monotonic_ns":%d,%b}' % (
            self._next,
            self._last.encode(),
            when.encode(),
            monotonic_ns(),
            body,
        )
        self._next += 1
        self._last = sha256(raw).hexdigest()
        return LogLine(raw, self._last, leaf_hash(raw))

    def commit(self, lines: Sequence[LogLine], contents: bytes) -> None:
        """Append lines and their contents; everything is on the disk when this returns.

        Raises:
            OSError: the disk is full or fails; no line was appended.
        """
        # Contents first: a decision that is on the disk then has its contents there too.
        self._segment.require_place()
        before = self._contents.length
        if contents:
            self._contents.append(contents)
        try:
            self._segment.append(b"\n".join([*[line.raw for line in lines], b""]))
        except OSError:
            self._contents.shorten(before)
            raise
        for line in lines:
            self._position.frontier.append(line.leaf)
        # Only now: after a failure the same lines are committed again from the old position.
        self._position.head, self._position.offset = lines[-1].hash, self._segment.length

    def checkpoint(self) -> None:
        """Sign the current state of the log.

        Raises:
            OSError: the disk is full or fails.
        """
        frontier = self._position.frontier
        now = Checkpoint(origin=self._key.name, size=frontier.size, root=frontier.root())
        self._checkpoints.require_place()
        self._position.note = self._checkpoints.length
        self._checkpoints.append(f"{self._key.sign(now.text)}\n".encode())
        self._position.signed = frontier.size
        with suppress(OSError):  # without a snapshot the log only opens more slowly
            _write_snapshot(self.folder, self._position)

    def rotate(self, longest: int) -> None:
        """Start a new segment, after a checkpoint, if this one has `longest` bytes or more.

        Raises:
            OSError: the disk is full or fails.
        """
        if self._position.offset < longest:
            return
        if self.unsigned:
            self.checkpoint()
        self._segment.close()
        self._contents.close()
        self._position.segment += 1
        self._position.offset = 0
        self._open_segment(0)

    def close(self) -> None:
        for file in (self._segment, self._contents, self._checkpoints):
            file.close()

    def _open_segment(self, length: int) -> None:
        number = self._position.segment
        contents = self.folder / CONTENTS.format(number)
        self._segment = GrowingFile(self.folder / SEGMENT.format(number), length)
        self._contents = GrowingFile(contents, _complete_length(contents), 0o600)


def _length_of_notes(folder: Path) -> int:
    """Return how many bytes of the checkpoints are complete notes; a crash may tear the last."""
    path = folder / CHECKPOINTS
    length = start = _complete_length(path)
    while start:
        # The last note is in the last bytes of a file that grows by the day.
        start = max(0, length - NOTE_BYTES) if start == length else 0
        with path.open("rb") as file:
            file.seek(start)
            lines = file.read(length - start)
        if (signature := lines.rfind(f"\n{SIGNATURE}".encode())) >= 0:
            end = lines.index(b"\n", signature + 1) + 1
            # The blank line that separates it from the next note belongs to it.
            return start + end + lines.startswith(b"\n", end)
    return 0


def _find_position(folder: Path) -> LogPosition:
    """Return the position of the newest checkpoint, or the start of the log if it is unknown.

    The file need not be trusted: if its root is not that of a signed checkpoint, the log is read
    from the start.
    """
    try:
        state = json.loads((folder / FRONTIER).read_bytes())
        position = LogPosition(
            frontier=Frontier(int(state["size"]), [bytes.fromhex(p) for p in state["peaks"]]),
            head=str(state["head"]),
            segment=int(state["segment"]),
            offset=int(state["offset"]),
            note=int(state.get("note", 0)),
        )
        # A shorter file was truncated since; reading from the start finds out where.
        is_consistent = (
            len(position.frontier.peaks) == position.frontier.size.bit_count()
            and 0 <= position.offset <= (folder / SEGMENT.format(position.segment)).stat().st_size
            and 0 <= position.note <= (folder / CHECKPOINTS).stat().st_size
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return LogPosition()
    return position if is_consistent else LogPosition()


def _write_snapshot(folder: Path, position: LogPosition) -> None:
    state = {
        "size": position.frontier.size,
        "head": position.head,
        "segment": position.segment,
        "offset": position.offset,
        "note": position.note,
        "peaks": [peak.hex() for peak in position.frontier.peaks],
    }
    temporary = folder / f".{FRONTIER}.part"
    # No fsync: a snapshot that a crash has torn is not trusted, and the log is read from its start.
    temporary.write_text(json.dumps(state))
    temporary.replace(folder / FRONTIER)


class GrowingFile:
    """A file to which an append either reaches the disk before it returns, or leaves no trace."""

    def __init__(self, path: Path, length: int, mode: int = 0o644) -> None:
        """Continue a file.

        Args:
            path: created by the first append if missing.
            length: bytes to keep; the first append truncates the file to them.
            mode: permissions of a new file.
        """
        self.path = path
        self.length = length
        self._mode = mode
        self._descriptor = -1

    def append(self, data: bytes) -> None:
        """Write and wait for the disk.

        Raises:
            OSError: the disk is full or fails; the file is truncated to its old length, now or,
                if that fails too, by the next append.
        """
        try:
            if self._descriptor < 0:
                self._open()
            remaining = memoryview(data)
            while remaining:
                # A disk that is nearly full takes a part of what is written.
                remaining = remaining[os.write(self._descriptor, remaining) :]
            os.fsync(self._descriptor)
        except OSError:
            self.shorten(self.length)
            raise
        self.length += len(data)

    def require_place(self) -> None:
        """Check that what was written is where it is looked for.

        Raises:
            OSError: the file was deleted, moved or replaced, or has lost its end.
        """
        if self.length:
            found = self.path.stat()
            same = self._descriptor < 0 or os.path.samestat(found, os.fstat(self._descriptor))
            if not same or found.st_size < self.length:
                raise OSError(errno.ESTALE, f"{self.path.name} is not the file that was written")

    def shorten(self, length: int) -> None:
        """Truncate the file, now or, if that fails, by the next append."""
        self.length = length
        if self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, length)
            self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, self._mode)
        self.length = min(self.length, os.fstat(self._descriptor).st_size)
        os.ftruncate(self._descriptor, self.length)
        os.lseek(self._descriptor, self.length, os.SEEK_SET)
        # The entry of a new file in its folder must reach the disk too.
        sync_to_disk(self.path.parent)


def _complete_length(path: Path) -> int:
    """Return how many bytes of a file are complete lines; a crash may have torn the last one."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - (1 << 16))
            file.seek(start)
            if newline := file.read(end - start).rfind(b"\n") + 1:
                return start + newline
            end = start
    return 0
