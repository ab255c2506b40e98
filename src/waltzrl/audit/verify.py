"""Checks a log by its folder and the public key alone.

This file, `merkle.py` and `note.py` need nothing of the rest of the house: an auditor can read
them in an hour and run them apart. The log is read once, in constant memory.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import Literal

from waltzrl.audit.merkle import Frontier, leaf_hash
from waltzrl.audit.note import Checkpoint, NoteError, PublicKey, read_notes, signed_text

CHECKPOINTS = "checkpoints"
SEGMENT = "decisions-{:06}.jsonl"
SEGMENT_NAME = re.compile(r"decisions-(\d{6,})\.jsonl")
NO_LINE = "0" * 64
"""What the first line gives as the hash of the line before."""

Kind = Literal[
    "flipped", "dropped", "reordered", "truncated", "forked", "bad-signature", "missing-segment"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFault:
    """The first thing that is wrong with a log."""

    kind: Kind
    record: int
    """Number (`seq`) of the first record concerned."""
    message: str

    def __str__(self) -> str:
        return f"fault: {self.kind}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLog:
    """A log in which nothing is wrong."""

    records: int
    signed: int
    """Records that the newest checkpoint vouches for; the rest is only chained yet."""
    checkpoints: int
    root: str
    """Merkle root over all records, in hex."""

    def __str__(self) -> str:
        tail = self.records - self.signed
        newer = f"; the newest {tail} are not signed yet" if tail else ""
        return f"ok: {self.records} records, {self.checkpoints} signed checkpoints{newer}"


@dataclass(slots=True, kw_only=True)
class LogPosition:
    """How far a log has been followed."""

    frontier: Frontier = field(default_factory=Frontier)
    head: str = NO_LINE
    """SHA-256 of the last line, in hex."""
    segment: int = 1
    offset: int = 0
    """Bytes of the segment that hold whole lines."""
    signed: int = 0
    """Size of the last checkpoint that was met and fits."""
    checkpoints: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    raw: bytes
    """Without its newline."""
    segment: int
    end: int
    """Offset of the next line."""
    seq: int | None
    """None when the line cannot be read."""
    prev: str

    @property
    def hash(self) -> str:
        return sha256(self.raw).hexdigest()


def verify(folder: Path, key: PublicKey, trusted: Path | None = None) -> VerifiedLog | LogFault:
    """Check every record and every checkpoint.

    Args:
        folder: of the log.
        key: of the log.
        trusted: checkpoints of the log that were kept elsewhere, one or many in a file; they
            show a log that its key's holder wrote anew, or that was cut with its checkpoints.

    Returns:
        What was verified, or the first fault.

    Raises:
        FileNotFoundError: there is no log.
        OSError: a file cannot be read.
    """
    if not segments(folder) and not (folder / CHECKPOINTS).exists() and trusted is None:
        raise FileNotFoundError(f"{folder} holds no audit log; need {SEGMENT.format(1)} in it")
    position = LogPosition()
    fault = follow(folder, key, position, trusted)
    return fault or VerifiedLog(
        records=position.frontier.size,
        signed=position.signed,
        checkpoints=position.checkpoints,
        root=position.frontier.root().hex(),
    )


def follow(
    folder: Path, key: PublicKey, position: LogPosition, trusted: Path | None = None
) -> LogFault | None:
    """Advance `position` to the log's last whole line, and stop at the first fault."""
    with ExitStack() as opened:
        own = folder / CHECKPOINTS
        files = [*([own] if own.exists() else []), *([trusted] if trusted else [])]
        start = position.frontier.size
        streams = [_checkpoints(path, key, start, opened) for path in files]
        try:
            return _walk(folder, merge(*streams, key=_size), position)
        except NoteError as error:
            return _fault("bad-signature", position.signed, f"a checkpoint is no evidence: {error}")


def segments(folder: Path) -> dict[int, Path]:
    """Return the log's files by number, in order."""
    found = ((SEGMENT_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(name[1]), path) for name, path in found if name))


class _Lines:
    """The whole lines of all segments from a position on, with one line of foresight."""

    def __init__(self, folder: Path, start: LogPosition) -> None:
        self._lines = _read(folder, start.segment, start.offset)
        self.ahead = next(self._lines, None)

    def take(self) -> _Line | None:
        line, self.ahead = self.ahead, next(self._lines, None)
        return line


def _walk(folder: Path, due: Iterator[Checkpoint], at: LogPosition) -> LogFault | None:
    checkpoint = next(due, None)  # before the first line is read: a log may grow meanwhile
    if checkpoint is None:
        return _fault("bad-signature", at.signed, "no checkpoint vouches for any record")
    lines = _Lines(folder, at)
    while True:
        while checkpoint is not None and checkpoint.size <= at.frontier.size:
            if fault := _misfit(checkpoint, at, lines.ahead):
                return fault
            at.signed, at.checkpoints = checkpoint.size, at.checkpoints + 1
            checkpoint = next(due, None)
        if (line := lines.take()) is None:
            break
        if fault := _broken(line, lines, at):
            return fault
        at.frontier.append(leaf_hash(line.raw))
        at.head, at.segment, at.offset = line.hash, line.segment, line.end
    if checkpoint is None:
        return None
    size, signed = at.frontier.size, max(map(_size, chain([checkpoint], due)))
    return _fault("truncated", size, f"the log ends before record {size}; {signed} were signed")


def _misfit(checkpoint: Checkpoint, at: LogPosition, after: _Line | None) -> LogFault | None:
    """Compare a signed checkpoint with the records it speaks of."""
    size = at.frontier.size
    if checkpoint.size < size:
        return _fault(
            "reordered",
            checkpoint.size,
            f"the checkpoint of {checkpoint.size} records stands behind one of {at.signed}",
        )
    if checkpoint.root == at.frontier.root():
        return None
    last = size - 1
    chain_breaks = after is not None and after.seq == size and after.prev != at.head
    if size == at.signed:
        return _fault("forked", at.signed, f"two signed checkpoints of {size} records differ")
    if chain_breaks or at.signed == last:
        return _fault("flipped", last, f"record {last} is not the one that was signed")
    return _fault(
        "forked",
        at.signed,
        f"records {at.signed} to {last} are chained, but are not those that were signed: "
        "one of them was changed and the chain written anew",
    )


def _broken(line: _Line, lines: _Lines, at: LogPosition) -> LogFault | None:
    """Say what is wrong with a line that does not continue the chain."""
    due = at.frontier.size
    if line.seq == due and line.prev == at.head:
        return None
    if line.segment > at.segment + 1 or (due == 0 and line.segment > 1):
        return _fault("missing-segment", due, f"the file with record {due} is missing")
    if line.seq is None or line.prev == at.head:
        return _fault("flipped", due, f"record {due} was changed: its number is not {due}")
    if line.seq == due:
        return _flipped(line, lines.ahead, at)
    return _misplaced(line.seq, lines, due)


def _misplaced(found: int, lines: _Lines, due: int) -> LogFault:
    """Tell whether the due record stands elsewhere, or nowhere."""
    if found < due:
        return _fault("reordered", due, f"record {found} stands in the place of record {due}")
    if any(later.seq == due for later in iter(lines.take, None)):
        return _fault("reordered", due, f"record {due} stands behind record {found}")
    return _fault("dropped", due, f"record {due} is missing; record {found} follows")


def _flipped(line: _Line, after: _Line | None, at: LogPosition) -> LogFault:
    """Tell whether the record before was changed, or this one's link to it."""
    due = at.frontier.size
    if at.signed == due or (after is not None and after.prev != line.hash):
        return _fault("flipped", due, f"record {due} was changed: its link is broken")
    last = due - 1
    return _fault("flipped", last, f"record {last} was changed: record {due} has another hash")


def _read(folder: Path, first: int, offset: int) -> Iterator[_Line]:
    for number, path in segments(folder).items():
        if number < first:
            continue
        with path.open("rb") as file:
            file.seek(offset if number == first else 0)
            end = file.tell()
            for raw in file:
                end += len(raw)
                if raw.endswith(b"\n"):  # else a crash tore it: it was never committed
                    yield _line(raw[:-1], number, end)


def _line(raw: bytes, segment: int, end: int) -> _Line:
    seq, prev = None, ""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        seq, prev = content.get("seq"), str(content.get("prev"))
    return _Line(
        raw=raw, segment=segment, end=end, seq=seq if type(seq) is int else None, prev=prev
    )


def _checkpoints(path: Path, key: PublicKey, start: int, opened: ExitStack) -> Iterator[Checkpoint]:
    """Read the checkpoints of `start` records or more that the file holds now."""
    file = opened.enter_context(path.open("rb"))
    length = path.stat().st_size
    for note in read_notes(file, length):
        if Checkpoint.parse(note).size < start:
            continue
        checkpoint = Checkpoint.parse(signed_text(note, key))
        if checkpoint.origin != key.name:
            raise NoteError(f"it is of the log {checkpoint.origin!r}, not of {key.name!r}")
        yield checkpoint


def _size(checkpoint: Checkpoint) -> int:
    return checkpoint.size


def _fault(kind: Kind, record: int, message: str) -> LogFault:
    return LogFault(kind=kind, record=record, message=message)
