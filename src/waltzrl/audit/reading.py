"""Entries of a log, to look at; what they say is worth what `verify` says of the log."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waltzrl.audit.record import Entry
from waltzrl.audit.verify import segments
from waltzrl.errors import InputError

_decoder = msgspec.json.Decoder(Entry)


def read_entries(folder: Path) -> Iterator[Entry]:
    """Yield the log's entries in order; a line that is still being written is left out.

    Raises:
        InputError: there is no log, or a line is no entry.
    """
    for number, line, where in read_lines(folder):
        yield _entry(line, f"{where}:{number}")


def read_lines(folder: Path) -> Iterator[tuple[int, bytes, Path]]:
    """Yield number in its file, content and file of every whole line.

    Raises:
        InputError: there is no log.
    """
    for path in _files(folder):
        for number, line in _whole_lines(path):
            yield number, line, path


def latest(folder: Path, count: int) -> list[Entry]:
    """Return the last entries, the newest last; only the newest files are read.

    Raises:
        InputError: there is no log, or a line is no entry.
    """
    found: list[Entry] = []
    for path in reversed(_files(folder)):
        last = deque(_whole_lines(path), maxlen=count - len(found))
        found = [*(_entry(line, f"{path}:{number}") for number, line in last), *found]
        if len(found) == count:
            break
    return found


def find(folder: Path, record_id: str) -> list[Entry]:
    """Return the decisions of a request: one, or one for each choice it asked for.

    Raises:
        InputError: the log has none.
    """
    found = [
        entry
        for entry in read_entries(folder)
        if entry.decision is not None and entry.decision.id == record_id
    ]
    if not found:
        raise InputError(f"{folder} holds no decision {record_id!r}; give the id of a request")
    return found


def _files(folder: Path) -> list[Path]:
    files = segments(folder) if folder.is_dir() else {}
    if not files:
        raise InputError(f"{folder} holds no audit log; give the folder that the gateway writes to")
    return list(files.values())


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield number, line[:-1]


def _entry(line: bytes, place: str) -> Entry:
    try:
        return _decoder.decode(line)
    except ValueError as error:
        raise InputError(
            f"{place}: no entry of an audit log ({error}); run `waltzrl audit verify` on the folder"
        ) from None
