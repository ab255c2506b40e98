"""Finds every record of a person: what `waltzrl access` shows and `waltzrl erase` erases.

    memory, releases, exports, contents beside audit logs -> records_of

The log of decisions holds a keyed digest of the person and no content; it is no record here.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from waltzrl.errors import InputError
from waltzrl.operations.compliance.exports import ExportRow, exchange_of, is_of, read_rows
from waltzrl.operations.compliance.residue import find_quotes, has_quotes
from waltzrl.operations.release.answered import yield_counted
from waltzrl.operations.release.tables import RELEASE
from waltzrl.store.audit.contents import ERASED, content_files, read_contents
from waltzrl.store.audit.keys import default_key, digest_under, in_use, signing_key
from waltzrl.store.audit.log import LogSettings
from waltzrl.store.audit.note import NoteError
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.verify import CHECKPOINTS, list_segments
from waltzrl.store.audit.writer import LocalLog
from waltzrl.store.database import Engine, existing_database
from waltzrl.store.memory.erasure import (
    find_remembered,
    find_remembered_of_others,
    list_copies,
    list_exports,
    require_key,
)
from waltzrl.store.memory.items import Json
from waltzrl.store.memory.schemas import COACHING, EVALUATIONS, TRAINING
from waltzrl.store.memory.tables import MEMORY
from waltzrl.store.migrations import prepare_tables
from waltzrl.store.privacy.digest import key_in, subject_digest

NAMESPACES = tuple(".".join(namespace) for namespace in (EVALUATIONS, COACHING, TRAINING))
Store: TypeAlias = Literal["memory", "releases", "exports", "contents"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsOf:
    """Whose records to look for; exactly one of the three."""

    subject: str = ""
    """The client's own name for its user."""
    request: str = ""
    """Id of a request, ours or the client's."""
    words: str = ""
    """A quotation of the person, in their own words; for requests that name nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPlaces:
    """Where to look for records, and what marks them in each place."""

    memory: Engine
    digest: str
    """The subject's digest in the memory and in exports; empty if none is looked for."""
    requests: frozenset[str]
    """Ids of requests; empty if a subject is looked for."""
    logs: Mapping[Path, str]
    """Folder of each audit log -> digest there."""
    log_keys: Mapping[Path, Path]
    """Folder of each audit log -> its private key."""


class SubjectRecord(NamedTuple):
    """A record of the subject."""

    store: Store
    location: str
    """Namespace, table, file or folder."""
    value: Mapping[str, Json]
    expires_at: float | None = None
    """Seconds since the epoch, as the memory knows it; None where the place does not say."""


@contextmanager
def open_places(
    whose: RecordsOf, url: str, subject_key: Path, logs: Mapping[Path, Path | None]
) -> Iterator[SearchedPlaces]:
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
            f"got {' and '.join(given) or 'nobody'} to look for; give the client's own name for "
            "its user, the id of a request, or words that the person said"
        )
    # `key_in` would create a missing key, under which nobody would be found.
    if not subject_key.is_file():
        raise InputError(
            f"{subject_key} is missing; without the memory's key nobody can be found; give the "
            "gateway's memory.subject_key"
        )
    engine = existing_database(url)
    digest = subject_digest(key_in(subject_key))
    name = whose.subject
    keys = {folder: key or default_key(folder) for folder, key in logs.items()}
    digests = {folder: _digest_in(folder, key, name) for folder, key in keys.items()}
    places = SearchedPlaces(
        memory=engine,
        digest=digest(name) if name else "",
        requests=frozenset(),
        # Without a name they were computed only to check the keys.
        logs=digests if name else dict.fromkeys(digests, ""),
        log_keys=keys,
    )
    try:
        prepare_tables(engine, MEMORY, RELEASE)
        require_key(engine, digest(""), subject_key)
        if whose.request:
            places = replace(places, requests=_requests_named(places, whose.request))
        elif whose.words:
            places = replace(places, requests=_requests_with(places, whose.words))
        yield places
    finally:
        engine.dispose()


def present_exports(places: SearchedPlaces) -> list[Path]:
    """Return the exports that are where they were written."""
    return [path for path in list_exports(places.memory) if path.exists()]


def missing_exports(places: SearchedPlaces) -> tuple[str, ...]:
    """Return the exports that no longer are where they were written."""
    return tuple(str(path) for path in list_exports(places.memory) if not path.exists())


def records_of(places: SearchedPlaces) -> Iterator[SubjectRecord]:
    """Yield all records that carry the subject's digest or the id of a request.

    Raises:
        InputError: a file is damaged.
        StorageError: the database is unavailable.
    """
    for store, place, record in _kept_in_files(places):
        if _is_subjects(places, place, record):
            yield SubjectRecord(store, str(place), msgspec.to_builtins(record))
    for remembered in find_remembered(places.memory, places.digest, places.requests):
        yield SubjectRecord("memory", remembered.namespace, remembered.value, remembered.expires_at)
    for table, row in yield_counted(places.memory, places.digest):
        yield SubjectRecord("releases", table, row)


def records_of_others(places: SearchedPlaces) -> Iterator[Json]:
    """Yield what is kept of everybody else; the errors are those of `records_of`."""
    for _, place, record in _kept_in_files(places):
        if not _is_subjects(places, place, record):
            yield msgspec.to_builtins(record)
    others = find_remembered_of_others(places.memory, places.digest, places.requests)
    yield from (item.value for item in others)


def notify_idle_logs(places: SearchedPlaces, kind: str, records: int) -> None:
    """Write a notice to logs without a running gateway; a running one copies the memory's.

    Raises:
        AuditError: one of the logs was altered.
    """
    whose = {"subject": places.digest} if places.digest else {"requests": len(places.requests)}
    for folder, key in places.log_keys.items():
        if not in_use(folder, key):
            with LocalLog.open(folder, key=key, settings=LogSettings(on_failure="refuse")) as log:
                log.notice({"kind": kind, **whose, "records": records})


def _kept_in_files(places: SearchedPlaces) -> Iterator[tuple[Store, Path, ExportRow]]:
    """Yield the contents beside logs and the rows of exports, with the log or the export."""
    for folder in places.logs:
        for path in content_files(folder):
            for _, _, content in read_contents(path):
                yield "contents", folder, structs.asdict(content)
    for path in present_exports(places):
        for row in read_rows(path):
            yield "exports", path, row


def _is_subjects(places: SearchedPlaces, place: Path, record: ExportRow) -> bool:
    return is_of(record, places.logs.get(place, places.digest), places.requests)


def _requests_named(places: SearchedPlaces, name: str) -> frozenset[str]:
    """Return the ids of the requests with an id, which may be the client's own."""
    logged = (entry.decision for folder in places.logs for entry in read_entries(folder))
    ids = {record.id for record in logged if record and record.client_request_id == name}
    # Others than nobody: everything that is remembered.
    for remembered in find_remembered_of_others(places.memory, ""):
        if remembered.value.get("client_request_id") == name:
            ids.add(str(remembered.value["id"]))
    return frozenset(id_.partition("/")[0] for id_ in (*ids, name))


def _requests_with(places: SearchedPlaces, words: str) -> frozenset[str]:
    """Return the ids of the requests in whose records somebody said these words."""
    quotes = find_quotes(words)
    in_files = (record for _, _, record in _kept_in_files(places))
    remembered = (
        item.value
        for item in find_remembered_of_others(places.memory, "")
        if item.namespace in NAMESPACES
    )
    return frozenset(
        exchange_of(record).partition("/")[0]
        for record in chain(in_files, remembered)
        if has_quotes(msgspec.to_builtins(record), quotes)
    )


def copies_with(places: SearchedPlaces) -> Iterator[tuple[Path, str]]:
    """Yield folder and kind of the copies that hold records of the subject or of the requests."""
    digests = {digest for digest in (places.digest, *places.logs.values()) if digest}
    marks = [digest.encode() for digest in digests]
    # The quote ends an id, the slash begins a choice's number; without them req-1 would match
    # req-10.
    marks += [f'"{request}{end}'.encode() for request in places.requests for end in '"/']
    for folder, kind in list_copies(places.memory):
        files = [*folder.glob("tables/items.jsonl"), *folder.glob("records.jsonl")]
        files += content_files(folder / "audit")
        if any(_contains_mark(path, marks) for path in files):
            yield folder, kind


def _contains_mark(path: Path, marks: Sequence[bytes]) -> bool:
    with path.open("rb") as file:
        # A tombstone names its request, and holds nothing else of it.
        kept = (line for line in file if not line.startswith(ERASED))
        return any(mark in line for line in kept for mark in marks)


def _digest_in(folder: Path, key: Path, subject: str) -> str:
    if not folder.is_dir() or not list_segments(folder):
        raise InputError(f"{folder} holds no audit log; give the folder that the gateway writes to")
    try:
        # Under the digests of another log's key nobody would be found. The private key, because it
        # signs notices and tombstones: without it nothing is copied or erased.
        name = signing_key(key).public.name
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
