"""Collaborations stored beside the log: one line per decision, which can be erased.

{"id": "req-1", "subject": "5d0c...", "time": 1760000000.0, "collaboration": {...}}
{"erased": true, "id": "req-1", "at": 1770000000.0, "why": "erasure", "signature": "..."}

An erased line is overwritten in place by a tombstone of the same length, so a gateway may append to
the file meanwhile. The log's key signs tombstones, which tell what was erased from what was never
kept. The log of decisions is never touched.
"""

import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from waltzrl.errors import InputError
from waltzrl.foundation.files import whole_lines, write_bytes
from waltzrl.records import Collaboration
from waltzrl.store.audit.note import NoteError, PublicKey, SigningKey, read_signed_text
from waltzrl.store.audit.record import encode_json

CONTENTS = "contents-{:06}.jsonl"
ERASED = b'{"erased":true'
Cause = Literal["erasure", "expiry"]
"""The reason why contents are gone: a person was erased, or the time for which they are kept has
passed."""


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The collaboration behind one decision, and whose it is."""

    id: str
    """The id of the request."""
    subject: str
    """Digest, as in the decision's record; empty if the client named no subject."""
    time: float = 0.0
    """Seconds since the epoch; the writer sets it, as it does that of the decision's record."""
    collaboration: Collaboration

    @property
    def line(self) -> bytes:
        return encode_json(self) + b"\n"


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of contents that were removed; it holds none of them."""

    id: str
    """The id of the request."""
    at: float
    """Seconds since the epoch."""
    why: Cause
    signature: str
    """The signature of `text` by the log's key: the last line of a signed note."""

    @classmethod
    def sign(cls, key: SigningKey, id_: str, at: float, why: Cause) -> "Tombstone":
        """Return a signed one."""
        unsigned = cls(id=id_, at=at, why=why, signature="")
        signature = key.sign(unsigned.text).removeprefix(f"{unsigned.text}\n").strip()
        return msgspec.structs.replace(unsigned, signature=signature)

    @property
    def text(self) -> str:
        """What is signed."""
        # A float comes back from JSON as it was, so that `repr` spells the signed text again.
        return f"contents removed\n{json.dumps(self.id)}\n{self.at!r}\n{self.why}\n"

    def is_signed_by(self, key: PublicKey) -> bool:
        """Return whether the holder of the log's key wrote it."""
        try:
            return read_signed_text(f"{self.text}\n{self.signature}\n", key) == self.text
        except NoteError:
            return False


def content_files(folder: Path) -> list[Path]:
    """Return the files with contents, the newest last; only the newest may still grow."""
    return sorted(folder.glob("contents-*.jsonl"))


def read_contents(path: Path) -> Iterator[tuple[int, bytes, Content]]:
    """Yield offset, bytes and content of every line that is complete and not erased.

    Raises:
        InputError: a line is damaged.
    """
    start = 0
    for number, line in _read_lines(path):
        if not line.startswith(ERASED):
            yield start, line, _parse_content(line, f"{path}:{number}")
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
    # Decoding every line would take far longer than this search for bytes.
    marker = b'"id":' + encode_json(record_id)
    found = [
        _parse_content(line, f"{path}:{number}")
        for path in content_files(folder)
        for number, line in _read_lines(path)
        if marker in line and not line.startswith(ERASED)
    ]
    # Prompts and calls of tools, whose ids clients choose, have the same bytes.
    return [content.collaboration for content in found if content.id == record_id]


def tombstone_for(folder: Path, record_id: str) -> Tombstone | None:
    """Return what is left of the contents of a decision; None if they are kept, or never were.

    Raises:
        InputError: a tombstone is damaged.
    """
    marker = b'"id":' + encode_json(record_id)
    for line, where in _read_tombstones(folder):
        if marker in line:
            try:
                return msgspec.json.decode(line, type=Tombstone)
            except msgspec.DecodeError as error:
                raise InputError(f"{where}: not a tombstone ({error})") from None
    return None


def has_nameless_tombstones(folder: Path) -> bool:
    """Return whether contents were erased without a note of whose they were.

    A line that is too short for a signed note gets none.
    """
    return any(b'"id":' not in line for line, _where in _read_tombstones(folder))


def _read_tombstones(folder: Path) -> Iterator[tuple[bytes, str]]:
    # What expires meanwhile is in a file of the second kind before it leaves the first.
    for kind in ("contents-*.jsonl", "erased-*.jsonl"):
        for path in sorted(folder.glob(kind)):
            for number, line in _read_lines(path):
                if line.startswith(ERASED):
                    yield line, f"{path}:{number}"


def erase_contents(
    folder: Path, key: SigningKey, digest: str, requests: Collection[str] = frozenset()
) -> int:
    """Overwrite the contents of one subject; they are gone from the files when this returns.

    Args:
        folder: of the log.
        key: of the log; signs the tombstones.
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
        _overwrite_contents(
            path, lambda content: _is_content_of(content, digest, requests), key, "erasure"
        )
        for path in content_files(folder)
    )


def expire_contents(folder: Path, key: SigningKey, before: float) -> int:
    """Erase contents from before a time.

    Of files in which nothing else is left, only the tombstones stay, as `erased-*.jsonl`.

    Args:
        folder: of the log.
        key: of the log; signs the tombstones.
        before: seconds since the epoch.

    Returns:
        The number of erased contents.

    Raises:
        InputError: a line is damaged.
        OSError: a file cannot be read, written or deleted.
    """
    erased = 0
    paths = content_files(folder)
    for path in paths:
        erased += _overwrite_contents(path, lambda content: content.time < before, key, "expiry")
        # A gateway may be appending to the newest file.
        if path != paths[-1] and next(read_contents(path), None) is None:
            # The padding that kept the lengths is no longer needed.
            left = b"".join(line[:-2].rstrip(b" ") + b"}\n" for line in whole_lines(path))
            tombstones = path.with_name(path.name.replace("contents-", "erased-"))
            # First the new file, then the old one goes: a crash leaves tombstones twice, never
            # nowhere.
            write_bytes(tombstones, left, private=True)
            path.unlink()
    return erased


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of every complete line; none if the gateway has deleted the file.

    It does so when all contents have expired, also between the listing of the files and this.
    """
    with suppress(FileNotFoundError):
        yield from enumerate(whole_lines(path), start=1)


def _is_content_of(content: Content, digest: str, requests: Collection[str]) -> bool:
    """Return whether contents are a subject's, or of a choice of one of the requests."""
    of_subject = bool(digest) and content.subject == digest
    # Choices of one request are `id/0`, `id/1`, ...
    return of_subject or content.id.partition("/")[0] in requests


def _overwrite_contents(
    path: Path, is_removed: Callable[[Content], bool], key: SigningKey, why: Cause
) -> int:
    removed = [
        (start, len(line), content.id)
        for start, line, content in read_contents(path)
        if is_removed(content)
    ]
    if removed:
        now = time.time()
        with suppress(FileNotFoundError), path.open("r+b") as file:  # or all of it has expired
            for start, length, id_ in removed:
                file.seek(start)
                file.write(_build_erased_line(Tombstone.sign(key, id_, now, why), length))
            file.flush()
            os.fsync(file.fileno())
    return len(removed)


def _build_erased_line(tombstone: Tombstone, length: int) -> bytes:
    # Readers know a tombstone by the first bytes of its line, so `erased` must be its first key.
    line = ERASED + b"," + encode_json(tombstone)[1:-1]
    if len(line) + 2 > length:  # of a collaboration that is shorter than a signature
        line = ERASED
    return line + b" " * (length - len(line) - 2) + b"}\n"


def _parse_content(line: bytes, where: str) -> Content:
    try:
        # json, not msgspec.json: an agent may write a lone surrogate, and only json accepts it
        return msgspec.convert(json.loads(line), Content)
    except ValueError as error:
        raise InputError(
            f"{where}: not contents of an audit log ({error}); delete the line"
        ) from None
