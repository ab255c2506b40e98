"""The log's folder: segments of lines, checkpoints, and, apart from them, contents.

decisions-000001.jsonl ...   one line per entry
contents-000001.jsonl ...    what was said, when contents are kept
checkpoints                  signed notes, the newest last
frontier.json                where the newest checkpoint stands, so that opening is quick
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import monotonic_ns
from typing import NamedTuple, Self

from msgspec import structs

from waltzrl.audit.contents import CONTENTS, Content
from waltzrl.audit.disk import ONLY_OWNER, GrowingFile, whole_lines
from waltzrl.audit.merkle import Frontier, leaf_hash
from waltzrl.audit.note import SIGNATURE, Checkpoint, SigningKey
from waltzrl.audit.verify import CHECKPOINTS, SEGMENT, LogPosition, follow, segments
from waltzrl.errors import AuditError

FRONTIER = "frontier.json"


class LogLine(NamedTuple):
    """An entry on its way to the disk, with its place in the log."""

    raw: bytes
    hash: str
    """SHA-256 of `raw`, in hex, which the next line repeats."""
    leaf: bytes
    """Its hash in the Merkle tree."""
    content: Content | None
    """What to keep beside the log, before it is scrubbed; None when contents are not kept."""


class LogFolder:
    """Writes entries and checkpoints; knows no thread and no policy."""

    def __init__(self, folder: Path, key: SigningKey, position: LogPosition) -> None:
        self.folder = folder
        self._key = key
        self._at = position
        self._next = position.frontier.size
        self._last = position.head
        self._checkpoints = GrowingFile(folder / CHECKPOINTS, _length_of_notes(folder))
        self._open_segment(position.offset)

    @classmethod
    def open(cls, folder: Path, key: SigningKey) -> Self:
        """Go on with the folder's log, or begin one.

        Raises:
            AuditError: the log is not what its checkpoints say, or another key's.
            OSError: the folder cannot be read.
        """
        if not segments(folder) and not _length_of_notes(folder):
            store = cls(folder, key, LogPosition())
            store.checkpoint()  # of no record: from now on a log without checkpoints was cut
            return store
        position = _snapshot(folder)
        if follow(folder, key.public, position) is not None:
            position = LogPosition()
            if fault := follow(folder, key.public, position):
                raise AuditError(
                    f"{folder}: {fault.message} ({fault.kind}); keep it as evidence and open a "
                    "log in another folder"
                )
        return cls(folder, key, position)

    @property
    def unsigned(self) -> int:
        """Entries that no checkpoint vouches for yet."""
        return self._at.frontier.size - self._at.signed

    def line(self, seconds: float, body: bytes, content: Content | None = None) -> LogLine:
        """Give an entry its place: the next one. Every line must be committed, in this order.

        The hashing is done here, entry by entry, and not in `commit`, where it would keep the
        other threads from running for a group's length.

        Args:
            seconds: wall clock, since the epoch.
            body: the line's keys from `event` on, as JSON without braces.
            content: what to keep beside the log; it gets the time.
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
        if content is not None:
            content = structs.replace(content, time=seconds)
        return LogLine(raw, self._last, leaf_hash(raw), content)

    def commit(self, lines: Sequence[LogLine], contents: bytes) -> None:
        """Append lines, and their contents beside them; all is on the disk when this returns.

        Raises:
            OSError: the disk is full or fails; none of them was appended.
        """
        before = self._contents.length
        if contents:
            self._contents.append(contents)
        try:
            self._segment.append(b"\n".join([*[line.raw for line in lines], b""]))
        except OSError:
            self._contents.shorten(before)
            raise
        for line in lines:
            self._at.frontier.append(line.leaf)
        self._at.head, self._at.offset = lines[-1].hash, self._segment.length

    def checkpoint(self) -> None:
        """Sign what the log is now.

        Raises:
            OSError: the disk is full or fails.
        """
        frontier = self._at.frontier
        now = Checkpoint(origin=self._key.name, size=frontier.size, root=frontier.root())
        self._checkpoints.append(f"{self._key.sign(now.text)}\n".encode())
        self._at.signed = frontier.size
        with suppress(OSError):  # without it, the log opens more slowly
            _keep_snapshot(self.folder, self._at)

    def rotate(self, longest: int) -> None:
        """Begin a new segment, behind a checkpoint, when this one has `longest` bytes or more.

        Raises:
            OSError: the disk is full or fails.
        """
        if self._at.offset < longest:
            return
        if self.unsigned:
            self.checkpoint()
        self._segment.close()
        self._contents.close()
        self._at.segment += 1
        self._at.offset = 0
        self._open_segment(0)

    def close(self) -> None:
        for file in (self._segment, self._contents, self._checkpoints):
            file.close()

    def _open_segment(self, length: int) -> None:
        number = self._at.segment
        contents = self.folder / CONTENTS.format(number)
        self._segment = GrowingFile(self.folder / SEGMENT.format(number), length)
        self._contents = GrowingFile(contents, whole_lines(contents), ONLY_OWNER)


def _length_of_notes(folder: Path) -> int:
    """Return how many bytes of the checkpoints are whole notes; a crash may have torn the last."""
    path = folder / CHECKPOINTS
    lines = path.read_bytes()[: whole_lines(path)] if path.exists() else b""
    signature = lines.rfind(f"\n{SIGNATURE}".encode())
    if signature < 0:
        return 0
    end = lines.index(b"\n", signature + 1) + 1
    return end + lines.startswith(b"\n", end)


def _snapshot(folder: Path) -> LogPosition:
    """Where the newest checkpoint stood; the log's begin when that is not known.

    It needs no trust: a root that is not a signed checkpoint's sends us back to the begin.
    """
    try:
        known = json.loads((folder / FRONTIER).read_bytes())
        at = LogPosition(
            frontier=Frontier(int(known["size"]), [bytes.fromhex(p) for p in known["peaks"]]),
            head=str(known["head"]),
            segment=int(known["segment"]),
            offset=int(known["offset"]),
        )
        whole = len(at.frontier.peaks) == at.frontier.size.bit_count()
        there = (folder / SEGMENT.format(at.segment)).stat().st_size >= at.offset
    except (OSError, ValueError, KeyError, TypeError):
        return LogPosition()
    return at if whole and there else LogPosition()


def _keep_snapshot(folder: Path, at: LogPosition) -> None:
    known = {
        "size": at.frontier.size,
        "head": at.head,
        "segment": at.segment,
        "offset": at.offset,
        "peaks": [peak.hex() for peak in at.frontier.peaks],
    }
    beside = folder / f".{FRONTIER}.part"
    beside.write_text(json.dumps(known))
    beside.replace(folder / FRONTIER)
