"""Erases a person: from the memory, from exports, and from what was said beside audit logs.

find -> erase -> wait for what is still on its way -> erase that -> compact -> look for what is left

The log of decisions keeps a keyed digest of who asked, and no content; it is never touched.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from waltzrl.audit import Log, LogSettings, contents_of, erase_contents
from waltzrl.audit.contents import files, read_contents
from waltzrl.audit.keys import digest_under, in_use
from waltzrl.audit.note import NoteError, PublicKey
from waltzrl.audit.verify import CHECKPOINTS, segments
from waltzrl.compliance.exports import drop_rows, read_rows
from waltzrl.compliance.residue import residual_text, sentences
from waltzrl.errors import InputError
from waltzrl.memory.erasure import (
    compact,
    erase_subject,
    exports,
    remembered_of,
    remembered_of_others,
    require_key,
)
from waltzrl.memory.items import Json
from waltzrl.memory.tables import MEMORY
from waltzrl.privacy.digest import key_in, subject_digest
from waltzrl.storage.database import Engine, existing_database
from waltzrl.storage.migrations import prepare

WRITE_BEHIND_SECONDS = 2.0
"""So long what was served may be on its way to the disk. What the memory takes even longer for is
known there by its time, and not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureTargets:
    """Where a subject may be found, and by which name."""

    memory: Engine
    digest: str
    """In the memory, and in exports."""
    logs: Mapping[Path, str]
    """Folder of each audit log, and the digest there."""
    log_keys: Mapping[Path, Path]
    """Folder and private key."""


class SubjectRecord(NamedTuple):
    """A record of the subject."""

    place: str
    """`memory`, `exports` or `contents`."""
    where: str
    """Namespace, file or folder."""
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult:
    """What was found of a subject, and what is left of it."""

    subject: str
    """Digest in the memory."""
    found: Mapping[str, int]
    """Records in each namespace, file and folder where there were any."""
    missing: tuple[str, ...]
    """Exports that are not where they were written."""
    left: tuple[str, ...] = ()
    """Where something of the subject still is, and what; empty when all is well."""

    @property
    def records(self) -> int:
        return sum(self.found.values())


@contextmanager
def open_targets(
    subject: str, url: str, subject_key: Path, logs: Mapping[Path, Path | None]
) -> Iterator[ErasureTargets]:
    """Open what may hold something of a subject; nothing is made that is not there.

    Args:
        subject: the client's own name for its user.
        url: of the memory.
        subject_key: file of the key under which the memory keeps names.
        logs: folder of each audit log, and its private key; None is the folder's name and `.key`.

    Raises:
        InputError: the name is empty; the memory, a key or a log is not there; a key is another's.
        StorageError: the database does not answer.
    """
    if not subject:
        raise InputError("the subject is empty; give the name by which the client called its user")
    if not subject_key.is_file():
        raise InputError(
            f"{subject_key} is not there; without the key of the memory nobody is found in it: "
            "give the gateway's memory.subject_key"
        )
    engine = existing_database(url)
    digest = subject_digest(key_in(subject_key))
    keys = {folder: key or folder.with_name(f"{folder.name}.key") for folder, key in logs.items()}
    at = ErasureTargets(
        memory=engine,
        digest=digest(subject),
        logs={folder: _digest_in(folder, key, subject) for folder, key in keys.items()},
        log_keys=keys,
    )
    try:
        prepare(engine, MEMORY)
        require_key(engine, digest(""), subject_key)
        yield at
    finally:
        engine.dispose()


def find_records(at: ErasureTargets) -> ErasureResult:
    """Count what there is of a subject, and change nothing.

    Raises:
        InputError: a file is damaged.
        StorageError: the database does not answer.
    """
    return _counted(at, list(_records(at)))


def erase_records(at: ErasureTargets, wait_seconds: float = WRITE_BEHIND_SECONDS) -> ErasureResult:
    """Erase a subject, tell all gateways and audit logs, and look for what is left of it.

    Raises:
        InputError: a file is damaged; when it was before, nothing was erased.
        StorageError: the database does not answer, or is too busy to be compacted.
        AuditError: a log of the list was altered; the erasure itself is done.
    """
    before = list(_records(at))
    _erase_once(at)
    time.sleep(wait_seconds)
    late = list(_records(at))
    if late:
        _erase_once(at)
    compact(at.memory)
    erasure = replace(_counted(at, before + late), left=_left(at, before + late))
    _tell_idle_logs(at, erasure)
    return erasure


def _records(at: ErasureTargets) -> Iterator[SubjectRecord]:
    """Yield everything that a subject is named with."""
    for folder, digest in at.logs.items():
        for content in contents_of(folder, digest):
            yield SubjectRecord("contents", str(folder), msgspec.to_builtins(content))
    for path in _exports(at):
        for row in read_rows(path):
            if row.get("subject") == at.digest:
                yield SubjectRecord("exports", str(path), msgspec.to_builtins(row))
    for remembered in remembered_of(at.memory, at.digest):
        yield SubjectRecord("memory", remembered.namespace, remembered.value)


def _records_of_others(at: ErasureTargets) -> Iterator[Json]:
    for folder, digest in at.logs.items():
        for path in files(folder):
            for _, _, content in read_contents(path):
                if content.subject != digest:
                    yield msgspec.to_builtins(content)
    for path in _exports(at):
        yield from (
            msgspec.to_builtins(r) for r in read_rows(path) if r.get("subject") != at.digest
        )
    yield from (one.value for one in remembered_of_others(at.memory, at.digest))


def _erase_once(at: ErasureTargets) -> None:
    """Erase files first: the memory's transaction tells everybody how much it was."""
    contents = sum(erase_contents(folder, digest) for folder, digest in at.logs.items())
    rows = sum(drop_rows(path, at.digest) for path in _exports(at))
    erase_subject(at.memory, at.digest, {"contents": contents, "exports": rows})


def _counted(at: ErasureTargets, found: Sequence[SubjectRecord]) -> ErasureResult:
    missing = tuple(str(path) for path in exports(at.memory) if not path.exists())
    counts = Counter(one.where for one in found)
    return ErasureResult(subject=at.digest, found=dict(counts), missing=missing)


def _left(at: ErasureTargets, found: Sequence[SubjectRecord]) -> tuple[str, ...]:
    """Look for records of the subject, and for its words in the bytes of every file."""
    records = {f"{one.where}: a record in the {one.place}" for one in _records(at)}
    said = sentences(one.value for one in found)
    others = partial(_records_of_others, at)
    return (*sorted(records), *residual_text(_files(at), said, others))


def _files(at: ErasureTargets) -> list[Path]:
    """Return the files that we can look into; PostgreSQL's are not ours to read."""
    database = at.memory.url.database if at.memory.dialect.name == "sqlite" else None
    of_database = [Path(f"{database}{end}") for end in ("", "-wal", "-shm")] if database else []
    of_logs = [path for folder in at.logs for path in files(folder)]
    return [*of_database, *_exports(at), *of_logs]


def _exports(at: ErasureTargets) -> list[Path]:
    return [path for path in exports(at.memory) if path.exists()]


def _tell_idle_logs(at: ErasureTargets, erasure: ErasureResult) -> None:
    """Write the notice into logs that no gateway writes to; a gateway does so by itself."""
    for folder, key in at.log_keys.items():
        if not in_use(key):
            with Log.open(folder, key=key, settings=LogSettings(on_failure="refuse")) as log:
                log.notice({"kind": "erasure", "subject": at.digest, "records": erasure.records})


def _digest_in(folder: Path, key: Path, subject: str) -> str:
    if not folder.is_dir() or not segments(folder):
        raise InputError(f"{folder} holds no audit log; give the folder that the gateway writes to")
    try:
        _require_signed_by(key, folder)
        return digest_under(key, subject.encode("utf-8", "surrogatepass"))
    except (NoteError, OSError) as error:
        raise InputError(
            f"{key} is no key of the log in {folder}: {error}; give the log's key as FOLDER=KEY"
        ) from None


def _require_signed_by(key: Path, folder: Path) -> None:
    """Refuse the key of another log: under its digests nobody would be found.

    Raises:
        NoteError: it is another's, or none.
        OSError: a file cannot be read.
    """
    name = PublicKey.parse(key.with_name(f"{key.name}.pub").read_text(encoding="utf-8")).name
    with (folder / CHECKPOINTS).open(encoding="utf-8", errors="replace") as notes:
        origin = notes.readline().strip()
    if origin != name:
        raise NoteError(f"the log is {origin}, the key that of {name}")
