"""Erases a person from the memory, from exports, and from the contents beside audit logs.

find -> erase -> wait for pending writes -> erase those -> compact -> look for what is left

The log of decisions holds a keyed digest of the person and no content; it is never touched.
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

from waltzrl.audit import LocalLog, LogSettings, contents_of, erase_contents, read_entries
from waltzrl.audit.contents import content_files, read_contents
from waltzrl.audit.keys import digest_under, in_use
from waltzrl.audit.note import NoteError, PublicKey
from waltzrl.audit.verify import CHECKPOINTS, segments
from waltzrl.compliance.exports import drop_rows, exchange_of, is_of, read_rows
from waltzrl.compliance.residue import quoted, residual_text, says, sentences
from waltzrl.errors import InputError
from waltzrl.memory.erasure import (
    backups,
    compact,
    erase_subject,
    exports,
    remembered_of,
    remembered_of_others,
    require_key,
)
from waltzrl.memory.items import Json
from waltzrl.memory.schemas import COACHING, EVALUATIONS, TRAINING
from waltzrl.memory.tables import MEMORY
from waltzrl.privacy.digest import key_in, subject_digest
from waltzrl.release.answered import forget_subject
from waltzrl.storage.database import Engine, existing_database
from waltzrl.storage.migrations import prepare

NAMESPACES = tuple(".".join(namespace) for namespace in (EVALUATIONS, COACHING, TRAINING))
WRITE_BEHIND_SECONDS = 2.0
"""How long a served collaboration may take to reach the disk. Those that arrive even later are
recognised by their time, and the memory rejects them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsOf:
    """Whose records to look for; exactly one of the three."""

    subject: str = ""
    """The client's own name for its user."""
    request: str = ""
    """Id of a request, ours or the client's."""
    words: str = ""
    """What somebody said, in the person's own words; for requests that name nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureTargets:
    """Where to look for records, and what marks them in each place."""

    memory: Engine
    digest: str
    """Of the subject in the memory and in exports; empty if none is looked for."""
    requests: frozenset[str]
    """Ids of requests; empty if a subject is looked for."""
    logs: Mapping[Path, str]
    """Folder of each audit log -> digest there."""
    log_keys: Mapping[Path, Path]
    """Folder of each audit log -> its private key."""


class SubjectRecord(NamedTuple):
    """A record of the subject."""

    store: str
    """`memory`, `exports` or `contents`."""
    location: str
    """Namespace, file or folder."""
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult:
    """What was found of a subject, and what is left."""

    subject: str
    """Digest in the memory; empty if requests were looked for."""
    requests: tuple[str, ...] = ()
    """Ids of the requests that were looked for."""
    found: Mapping[str, int]
    """Number of records in each namespace, file and folder that had any."""
    missing: tuple[str, ...]
    """Exports that no longer are where they were written."""
    left: tuple[str, ...] = ()
    """What is left of the subject, and where; empty if the erasure was complete."""

    @property
    def records(self) -> int:
        return sum(self.found.values())


@contextmanager
def open_targets(
    whose: RecordsOf, url: str, subject_key: Path, logs: Mapping[Path, Path | None]
) -> Iterator[ErasureTargets]:
    """Open everything that may hold records of a subject; creates nothing.

    Args:
        whose: records of a subject, of one request, or with somebody's words.
        url: of the memory's database.
        subject_key: file with the key of the memory's digests.
        logs: folder of each audit log -> its private key; None means the folder's name plus `.key`.

    Raises:
        InputError: not exactly one of the three is given, or too few words; the memory,
            a key or a log is missing; a key does not match.
        StorageError: the database is unavailable.
    """
    given = [name for name in ("subject", "request", "words") if getattr(whose, name)]
    if len(given) != 1:
        raise InputError(
            f"got {' and '.join(given) or 'nobody'} to erase; give the client's own name for its "
            "user, the id of a request, or words that the person said"
        )
    if not subject_key.is_file():
        raise InputError(
            f"{subject_key} is missing; without the memory's key nobody can be found; give the "
            "gateway's memory.subject_key"
        )
    engine = existing_database(url)
    digest = subject_digest(key_in(subject_key))
    name = whose.subject
    keys = {folder: key or folder.with_name(f"{folder.name}.key") for folder, key in logs.items()}
    digests = {folder: _digest_in(folder, key, name) for folder, key in keys.items()}
    targets = ErasureTargets(
        memory=engine,
        digest=digest(name) if name else "",
        requests=frozenset(),
        logs=digests if name else dict.fromkeys(digests, ""),
        log_keys=keys,
    )
    try:
        prepare(engine, MEMORY)
        require_key(engine, digest(""), subject_key)
        if whose.request:
            targets = replace(targets, requests=_requests_named(targets, whose.request))
        elif whose.words:
            targets = replace(targets, requests=_requests_with(targets, whose.words))
        yield targets
    finally:
        engine.dispose()


def find_records(targets: ErasureTargets) -> ErasureResult:
    """Count the records of a subject, and change nothing.

    Raises:
        InputError: a file is damaged.
        StorageError: the database is unavailable.
    """
    return _counted(targets, list(_records(targets)))


def erase_records(
    targets: ErasureTargets, wait_seconds: float = WRITE_BEHIND_SECONDS
) -> ErasureResult:
    """Erase the records, notify all gateways and audit logs, and look for what is left.

    Raises:
        InputError: a file is damaged; if it was so at the start, nothing was erased.
        StorageError: the database is unavailable, or too busy to be compacted.
        AuditError: one of the logs was altered; the erasure itself is done.
    """
    if not (targets.digest or targets.requests):
        return _counted(targets, ())  # no request has these words
    before = list(_records(targets))
    _erase_once(targets)
    time.sleep(wait_seconds)
    late = list(_records(targets))
    if late:
        _erase_once(targets)
    compact(targets.memory)
    erasure = replace(_counted(targets, before + late), left=_left(targets, before + late))
    _notify_idle_logs(targets, erasure)
    return erasure


def _records(targets: ErasureTargets) -> Iterator[SubjectRecord]:
    """Yield all records that carry the subject's digest or the id of a request."""
    for folder, digest in targets.logs.items():
        for content in contents_of(folder, digest, targets.requests):
            yield SubjectRecord("contents", str(folder), msgspec.to_builtins(content))
    for path in _exports(targets):
        for row in read_rows(path):
            if is_of(row, targets.digest, targets.requests):
                yield SubjectRecord("exports", str(path), msgspec.to_builtins(row))
    for remembered in remembered_of(targets.memory, targets.digest, targets.requests):
        yield SubjectRecord("memory", remembered.namespace, remembered.value)


def _records_of_others(targets: ErasureTargets) -> Iterator[Json]:
    for folder, digest in targets.logs.items():
        of_subject = {content.id for content in contents_of(folder, digest, targets.requests)}
        for path in content_files(folder):
            for _, _, content in read_contents(path):
                if content.id not in of_subject:
                    yield msgspec.to_builtins(content)
    for path in _exports(targets):
        yield from (
            msgspec.to_builtins(row)
            for row in read_rows(path)
            if not is_of(row, targets.digest, targets.requests)
        )
    others = remembered_of_others(targets.memory, targets.digest, targets.requests)
    yield from (item.value for item in others)


def _requests_named(targets: ErasureTargets, name: str) -> frozenset[str]:
    """Return the ids of the requests with an id, which may be the client's own."""
    logged = (entry.decision for folder in targets.logs for entry in read_entries(folder))
    ids = {record.id for record in logged if record and record.client_request_id == name}
    for remembered in remembered_of_others(targets.memory, ""):
        if remembered.value.get("client_request_id") == name:
            ids.add(str(remembered.value["id"]))
    return frozenset(id_.partition("/")[0] for id_ in (*ids, name))


def _requests_with(targets: ErasureTargets, words: str) -> frozenset[str]:
    """Return the ids of the requests in whose records somebody said these words."""
    quotes = quoted(words)
    ids: set[str] = set()
    for folder in targets.logs:
        for path in content_files(folder):
            for _, _, content in read_contents(path):
                if says(msgspec.to_builtins(content), quotes):
                    ids.add(content.id)
    for path in _exports(targets):
        ids |= {
            exchange_of(row) for row in read_rows(path) if says(msgspec.to_builtins(row), quotes)
        }
    for remembered in remembered_of_others(targets.memory, ""):
        if remembered.namespace in NAMESPACES and says(remembered.value, quotes):
            ids.add(exchange_of(remembered.value))
    return frozenset(id_.partition("/")[0] for id_ in ids)


def _erase_once(targets: ErasureTargets) -> None:
    """Erase files first, because the notice in the memory's transaction states their counts."""
    requests = targets.requests
    contents = sum(erase_contents(path, digest, requests) for path, digest in targets.logs.items())
    rows = sum(drop_rows(path, targets.digest, requests) for path in _exports(targets))
    counts = {"contents": contents, "exports": rows}
    erase_subject(targets.memory, targets.digest, counts, requests)
    forget_subject(targets.memory, targets.digest)


def _counted(targets: ErasureTargets, records: Sequence[SubjectRecord]) -> ErasureResult:
    missing = tuple(str(path) for path in exports(targets.memory) if not path.exists())
    counts = Counter(record.location for record in records)
    return ErasureResult(
        subject=targets.digest,
        requests=tuple(sorted(targets.requests)),
        found=dict(counts),
        missing=missing,
    )


def _left(targets: ErasureTargets, erased: Sequence[SubjectRecord]) -> tuple[str, ...]:
    """Look for records of the subject, and for its sentences in the bytes of every file."""
    records = {f"{record.location}: a record in the {record.store}" for record in _records(targets)}
    quotes = sentences(record.value for record in erased)
    others = partial(_records_of_others, targets)
    kept = [f"{folder}: a backup; delete it" for folder in _backups(targets)]
    return (*sorted(records), *kept, *residual_text(_files(targets), quotes, others))


def _backups(targets: ErasureTargets) -> Iterator[Path]:
    """Yield the backups that hold records of the subject or of the requests."""
    digests = {digest for digest in (targets.digest, *targets.logs.values()) if digest}
    marks = [digest.encode() for digest in digests]
    marks += [f'"{request}{end}'.encode() for request in targets.requests for end in '"/']
    for folder in backups(targets.memory):
        files = [*folder.glob("tables/items.jsonl"), *content_files(folder / "audit")]
        if any(_holds(path, marks) for path in files):
            yield folder


def _holds(path: Path, marks: Sequence[bytes]) -> bool:
    with path.open("rb") as file:
        return any(mark in line for line in file for mark in marks)


def _files(targets: ErasureTargets) -> list[Path]:
    """Return the files that can be searched; those of PostgreSQL cannot be read."""
    database = targets.memory.url.database if targets.memory.dialect.name == "sqlite" else None
    of_database = [Path(f"{database}{end}") for end in ("", "-wal", "-shm")] if database else []
    of_logs = [path for folder in targets.logs for path in content_files(folder)]
    return [*of_database, *_exports(targets), *of_logs]


def _exports(targets: ErasureTargets) -> list[Path]:
    return [path for path in exports(targets.memory) if path.exists()]


def _notify_idle_logs(targets: ErasureTargets, erasure: ErasureResult) -> None:
    """Write the notice to logs without a running gateway; a running one writes it itself."""
    requests = len(targets.requests)
    whose = {"subject": targets.digest} if targets.digest else {"requests": requests}
    for folder, key in targets.log_keys.items():
        if not in_use(key):
            with LocalLog.open(folder, key=key, settings=LogSettings(on_failure="refuse")) as log:
                log.notice({"kind": "erasure", **whose, "records": erasure.records})


def _digest_in(folder: Path, key: Path, subject: str) -> str:
    if not folder.is_dir() or not segments(folder):
        raise InputError(f"{folder} holds no audit log; give the folder that the gateway writes to")
    try:
        # Under the digests of another log's key nobody would be found.
        public = key.with_name(f"{key.name}.pub").read_text(encoding="utf-8")
        name = PublicKey.parse(public).name
        with (folder / CHECKPOINTS).open(encoding="utf-8", errors="replace") as notes:
            origin = notes.readline().strip()
        if origin != name:
            raise InputError(
                f"{key} is not the key of the log in {folder}: the log is {origin}, the key "
                f"belongs to {name}; give its key as FOLDER=KEY"
            )
        return digest_under(key, subject.encode("utf-8", "surrogatepass"))
    except (NoteError, OSError) as error:
        raise InputError(
            f"{key} is not the key of the log in {folder}: {error}; give its key as FOLDER=KEY"
        ) from None
