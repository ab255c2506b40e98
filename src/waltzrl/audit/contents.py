"""Collaborations stored beside the log: one line per decision, which can be erased.

{"id": "req-1", "subject": "5d0c...", "time": 1760000000.0, "collaboration": {...}}

An erased line is overwritten in place by one of the same length, so a gateway may append to the
file meanwhile. The log of decisions is never touched.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from waltzrl.audit.record import encode
from waltzrl.errors import InputError
from waltzrl.records import Collaboration, load
from waltzrl.telemetry.files import whole_lines

CONTENTS = "contents-{:06}.jsonl"
ERASED = b'{"erased":true'


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The collaboration behind one decision, and whose it is."""

    id: str
    """Of the request."""
    subject: str = ""
    """Digest, as in the decision's record; empty if the client named no subject."""
    time: float = 0.0
    """Seconds since the epoch; 0 in files of versions that stored none."""
    collaboration: Collaboration

    @property
    def line(self) -> bytes:
        return encode(self) + b"\n"


def content_files(folder: Path) -> list[Path]:
    """Return the files with contents, the newest last; only the newest may still grow."""
    return sorted(folder.glob("contents-*.jsonl"))


def read_contents(path: Path) -> Iterator[tuple[int, bytes, Content]]:
    """Yield offset, bytes and content of every line that is complete and not erased.

    Raises:
        InputError: a line is damaged.
    """
    start = 0
    for number, line in enumerate(whole_lines(path), start=1):
        if not line.startswith(ERASED):
            yield start, line, _content(line, f"{path}:{number}")
        start += len(line)


def read_collaborations(folder: Path) -> Iterator[tuple[str, Collaboration]]:
    """Yield the id and the collaboration of each decision, in the order of the log.

    Erased lines, and a line that is still being written, are skipped.

    Raises:
        InputError: there are no contents, or a line is damaged.
    """
    paths = content_files(folder)
    if not paths:
        raise InputError(
            f"{folder} holds no contents: none were stored, or all have expired; "
            "set contents = true for the log to store them"
        )
    for path in paths:
        for _offset, _line, content in read_contents(path):
            yield content.id, content.collaboration


def contents_for(folder: Path, record_id: str) -> list[Collaboration]:
    """Return the collaborations of one request, one per choice; none if they are not kept.

    Raises:
        InputError: a line is damaged.
    """
    marker = b'"id":' + encode(record_id)
    return [
        _content(line, f"{path}:{number}").collaboration
        for path in content_files(folder)
        for number, line in enumerate(whole_lines(path), start=1)
        if marker in line and not line.startswith(ERASED)
    ]


def contents_of(
    folder: Path, digest: str, requests: Collection[str] = frozenset()
) -> list[Content]:
    """Return the contents of one subject, and of the requests with these ids.

    Raises:
        InputError: a line is damaged.
    """
    return [
        content
        for path in content_files(folder)
        for _offset, _line, content in read_contents(path)
        if _is_of(content, digest, requests)
    ]


def erase_contents(folder: Path, digest: str, requests: Collection[str] = frozenset()) -> int:
    """Overwrite the contents of one subject; they are gone from the files when this returns.

    Args:
        folder: of the log.
        digest: of the subject, under this log's digest key; may be empty if there are requests.
        requests: ids of requests whose contents are overwritten too.

    Returns:
        The number of erased contents.

    Raises:
        InputError: a line is damaged, so its subject is unknown.
        OSError: a file cannot be read or written.
    """
    assert digest or requests, "an empty digest would match everyone who named no subject"
    return sum(
        _overwrite(path, lambda content: _is_of(content, digest, requests))
        for path in content_files(folder)
    )


def expire_contents(folder: Path, before: float) -> int:
    """Erase contents from before a time, and delete files in which nothing else is left.

    Args:
        folder: of the log.
        before: seconds since the epoch. A line without a time counts as older.

    Returns:
        The number of erased contents.

    Raises:
        InputError: a line is damaged.
        OSError: a file cannot be read, written or deleted.
    """
    erased = 0
    paths = content_files(folder)
    for path in paths:
        erased += _overwrite(path, lambda content: content.time < before)
        if path != paths[-1] and next(read_contents(path), None) is None:
            path.unlink()
    return erased


def _is_of(content: Content, digest: str, requests: Collection[str]) -> bool:
    """Return whether contents are a subject's, or of a choice of one of the requests."""
    of_subject = bool(digest) and content.subject == digest
    return of_subject or content.id.partition("/")[0] in requests


def _overwrite(path: Path, is_expired: Callable[[Content], bool]) -> int:
    spans = [
        (start, len(line)) for start, line, content in read_contents(path) if is_expired(content)
    ]
    if spans:
        with path.open("r+b") as file:
            for start, length in spans:
                file.seek(start)
                file.write(ERASED + b" " * (length - len(ERASED) - 2) + b"}\n")
            file.flush()
            os.fsync(file.fileno())
    return len(spans)


def _content(line: bytes, where: str) -> Content:
    try:
        # json, not msgspec.json: an agent may write a lone surrogate, and only json accepts it
        return load(json.loads(line), Content)
    except ValueError as error:
        raise InputError(
            f"{where}: not contents of an audit log ({error}); delete the line"
        ) from None
