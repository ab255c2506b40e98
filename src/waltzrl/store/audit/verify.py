"""Verifies a log with nothing but its folder and the public key.

This file, `merkle.py` and `note.py` import nothing else of the package: an auditor can read them in
an hour and run them separately. The log is read once, in constant memory.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import merge
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Literal

from waltzrl.store.audit.merkle import Frontier, leaf_hash
from waltzrl.store.audit.note import Checkpoint, NoteError, PublicKey, read_notes, read_signed_text

CHECKPOINTS = "checkpoints"
SEGMENT = "decisions-{:06}.jsonl"
SEGMENT_NAME = re.compile(r"decisions-(\d{6,})\.jsonl")
get_size = attrgetter("size")
NO_LINE = "0" * 64
"""The first line's value for the hash of the line before."""

Kind = Literal[
    "flipped", "dropped", "reordered", "truncated", "forked", "bad-signature", "missing-segment"
]


@dataclass(frozen=True, slots=True)
class LogFault:
    """The first fault of a log."""

    kind: Kind
    record: int
    """Number (`seq`) of the first record concerned."""
    message: str

    def __str__(self) -> str:
        return f"fault: {self.kind}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLog:
    """A log without a fault."""

    records: int
    signed: int
    """Records that the newest checkpoint covers; the rest is only chained yet."""
    checkpoints: int
    root: str
    """Merkle root over all records, in hex."""

    def __str__(self) -> str:
        tail = self.records - self.signed
        newer = f"; the newest {tail} are not signed yet" if tail else ""
        return f"ok: {self.records} records, {self.checkpoints} signed checkpoints{newer}"


@dataclass(slots=True, kw_only=True)
class LogPosition:
    """How far a log has been read and verified."""

    frontier: Frontier = field(default_factory=Frontier)
    head: str = NO_LINE
    """SHA-256 of the last line, in hex."""
    segment: int = 1
    offset: int = 0
    """Bytes of the segment up to the end of the last line."""
    note: int = 0
    """Bytes of the log's checkpoints before the one from which they are read."""
    signed: int = 0
    """Records covered by the last checkpoint that was reached and matches."""
    checkpoints: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    raw: bytes
    """The bytes of the line without its newline."""
    segment: int
    end: int
    """Offset of the next line."""
    seq: int | None
    """The record's number; None if the line cannot be parsed."""
    prev: str

    @property
    def hash(self) -> str:
        return sha256(self.raw).hexdigest()


def verify(folder: Path, key: PublicKey, trusted: Path | None = None) -> VerifiedLog | LogFault:
    """Verify every record and every checkpoint.

    Args:
        folder: of the log.
        key: of the log.
        trusted: file with one or more checkpoints of the log that were kept elsewhere; they reveal
            a log that the holder of the key rewrote, or that was truncated with its checkpoints.

    Returns:
        The verified log, or its first fault.

    Raises:
        FileNotFoundError: there is no log.
        OSError: a file cannot be read.
    """
    if not list_segments(folder) and not (folder / CHECKPOINTS).exists() and trusted is None:
        raise FileNotFoundError(f"{folder} holds no audit log; need {SEGMENT.format(1)} in it")
    if trusted is not None and not _has_checkpoints(trusted):
        return LogFault("bad-signature", 0, f"{trusted} holds no checkpoint to compare with")
    position = LogPosition()
    fault = follow_log(folder, key, position, trusted)
    return fault or VerifiedLog(
        records=position.frontier.size,
        signed=position.signed,
        checkpoints=position.checkpoints,
        root=position.frontier.root().hex(),
    )


def follow_log(
    folder: Path, key: PublicKey, position: LogPosition, trusted: Path | None = None
) -> LogFault | None:
    """Advance `position` to the end of the log, or return the first fault."""
    with ExitStack() as opened:
        own, start = folder / CHECKPOINTS, position.frontier.size
        notes = _read_checkpoints(own, key, start, opened, position.note)
        streams = [notes] if own.exists() else []
        try:
            if trusted:  # it may have been put together from several files, in any order
                kept = _read_checkpoints(trusted, key, start, opened)
                streams.append(iter(sorted(kept, key=get_size)))
            return _walk_log(folder, merge(*streams, key=get_size), position)
        except NoteError as error:
            return LogFault("bad-signature", position.signed, f"a checkpoint is invalid: {error}")


def list_segments(folder: Path) -> dict[int, Path]:
    """Return the log's files by number, in order."""
    matches = ((SEGMENT_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


class _Lines:
    """The lines of all segments from a position on, with one line of lookahead."""

    def __init__(self, folder: Path, start: LogPosition) -> None:
        self._lines = _read_log_lines(folder, start.segment, start.offset)
        # That a record was changed shows only in the link of the next one.
        self.ahead = next(self._lines, None)

    def take(self) -> _Line | None:
        line, self.ahead = self.ahead, next(self._lines, None)
        return line


def _walk_log(
    folder: Path, checkpoints: Iterator[Checkpoint], position: LogPosition
) -> LogFault | None:
    # The checkpoints are read first: a growing log then only has more lines than they cover.
    checkpoint = next(checkpoints, None)
    if checkpoint is None:
        return LogFault("bad-signature", position.signed, "there is no checkpoint")
    lines = _Lines(folder, position)
    while True:
        while checkpoint is not None and checkpoint.size <= position.frontier.size:
            if fault := _find_mismatch(checkpoint, position, lines.ahead):
                return fault
            position.signed, position.checkpoints = checkpoint.size, position.checkpoints + 1
            checkpoint = next(checkpoints, None)
        if (line := lines.take()) is None:
            break
        if fault := _find_broken_link(line, lines, position):
            return fault
        position.frontier.append(leaf_hash(line.raw))
        position.head, position.segment, position.offset = line.hash, line.segment, line.end
    if checkpoint is None:
        return None
    size, signed = position.frontier.size, max(map(get_size, chain([checkpoint], checkpoints)))
    return LogFault("truncated", size, f"the log ends before record {size}; {signed} were signed")


def _find_mismatch(
    checkpoint: Checkpoint, position: LogPosition, after: _Line | None
) -> LogFault | None:
    """Return the fault if a signed checkpoint does not match the records it covers."""
    size = position.frontier.size
    # `merge` yields a smaller size late only if the log's own checkpoints are out of order.
    if checkpoint.size < size:
        return LogFault(
            "reordered",
            checkpoint.size,
            f"the checkpoint of {checkpoint.size} records stands after one of {position.signed}",
        )
    if checkpoint.root == position.frontier.root():
        return None
    last = size - 1
    # The next record's link tells a changed record from a chain that was rewritten.
    chain_breaks = after is not None and after.seq == size and after.prev != position.head
    if size == position.signed:
        return LogFault(
            "forked", position.signed, f"two signed checkpoints of {size} records differ"
        )
    if chain_breaks or position.signed == last:
        return LogFault("flipped", last, f"record {last} is not the one that was signed")
    return LogFault(
        "forked",
        position.signed,
        f"records {position.signed} to {last} are chained, but are not those that were signed: "
        "one of them was changed and the chain was rewritten",
    )


def _find_broken_link(line: _Line, lines: _Lines, position: LogPosition) -> LogFault | None:
    """Return the fault if a line does not continue the chain."""
    expected = position.frontier.size
    if line.seq == expected and line.prev == position.head:
        return None
    if line.segment > position.segment + 1 or (expected == 0 and line.segment > 1):
        return LogFault("missing-segment", expected, f"the file with record {expected} is missing")
    # With the right link the line stands in the right place, so its number is what was changed.
    if line.seq is None or line.prev == position.head:
        return LogFault(
            "flipped", expected, f"record {expected} was changed: its number is not {expected}"
        )
    if line.seq == expected:
        return _tell_changed(line, lines.ahead, position)
    return _tell_misplaced(line.seq, lines, expected)


def _tell_misplaced(actual: int, lines: _Lines, expected: int) -> LogFault:
    """Tell whether the expected record stands later in the log, or is missing."""
    if actual < expected:
        return LogFault(
            "reordered", expected, f"record {actual} stands in place of record {expected}"
        )
    if any(later.seq == expected for later in iter(lines.take, None)):
        return LogFault("reordered", expected, f"record {expected} stands after record {actual}")
    return LogFault("dropped", expected, f"record {expected} is missing; record {actual} follows")


def _tell_changed(line: _Line, after: _Line | None, position: LogPosition) -> LogFault:
    """Tell whether the previous record was changed, or this one's link to it."""
    expected = position.frontier.size
    # The record before is signed, or the next link is broken too: this one was changed.
    if position.signed == expected or (after is not None and after.prev != line.hash):
        return LogFault("flipped", expected, f"record {expected} was changed: its link is broken")
    last = expected - 1
    return LogFault(
        "flipped", last, f"record {last} was changed: record {expected} has another hash"
    )


def _read_log_lines(folder: Path, first: int, offset: int) -> Iterator[_Line]:
    for number, path in list_segments(folder).items():
        if number < first:
            continue
        with path.open("rb") as file:
            file.seek(offset if number == first else 0)
            end = file.tell()
            for raw in file:
                end += len(raw)
                if raw.endswith(b"\n"):  # else a crash tore it before it was committed
                    yield _parse_line(raw[:-1], number, end)


def _parse_line(raw: bytes, segment: int, end: int) -> _Line:
    seq, prev = None, ""
    try:
        content = json.loads(raw)
    # A line of thousands of brackets must be a fault of the log, not the end of the verifier.
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        seq, prev = content.get("seq"), str(content.get("prev"))
    return _Line(
        raw=raw, segment=segment, end=end, seq=seq if type(seq) is int else None, prev=prev
    )


def _read_checkpoints(
    path: Path, key: PublicKey, start: int, opened: ExitStack, offset: int = 0
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of `start` records or more that the file holds now, from an offset."""
    file = opened.enter_context(path.open("rb"))
    file.seek(offset)
    length = path.stat().st_size
    for note in read_notes(file, length):
        # Signatures are slow to verify, and the walk needs only those from `start` on.
        if Checkpoint.parse(note).size < start:
            continue
        checkpoint = Checkpoint.parse(read_signed_text(note, key))
        if checkpoint.origin != key.name:
            raise NoteError(f"it belongs to the log {checkpoint.origin!r}, not to {key.name!r}")
        yield checkpoint


def _has_checkpoints(path: Path) -> bool:
    with path.open("rb") as file:
        return next(read_notes(file, path.stat().st_size), None) is not None
