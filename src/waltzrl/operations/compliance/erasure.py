"""Erases a person from the memory, from exports, and from the contents beside audit logs.

find -> erase -> wait for pending writes -> erase those -> compact -> look for what is left

The log of decisions holds a keyed digest of the person and no content; it is never touched.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from waltzrl.operations.compliance.exports import drop_rows
from waltzrl.operations.compliance.residue import choose_sentences, residual_text
from waltzrl.operations.compliance.subject import (
    SearchedPlaces,
    SubjectRecord,
    copies_with,
    missing_exports,
    notify_idle_logs,
    present_exports,
    records_of,
    records_of_others,
)
from waltzrl.operations.release.answered import forget_subject
from waltzrl.store.audit.contents import content_files, erase_contents
from waltzrl.store.audit.keys import signing_key
from waltzrl.store.memory.erasure import compact_files, erase_subject

WRITE_BEHIND_SECONDS = 2.0
"""The longest time that a served collaboration takes to reach the disk. Those that arrive even
later are recognised by their time, and the memory rejects them."""


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
    """The places where something of the subject is left, and what; empty if the erasure was
    complete."""

    @property
    def records(self) -> int:
        return sum(self.found.values())


def find_records(places: SearchedPlaces) -> ErasureResult:
    """Count the records of a subject, and change nothing.

    Raises:
        InputError: a file is damaged.
        StorageError: the database is unavailable.
    """
    return _count_records(places, list(records_of(places)))


def wait_for_writes() -> None:
    """Wait until what was served before an erasure has reached the disk."""
    time.sleep(WRITE_BEHIND_SECONDS)


def erase_records(
    places: SearchedPlaces, wait: Callable[[], None] = wait_for_writes
) -> ErasureResult:
    """Erase the records, notify all gateways and audit logs, and look for what is left.

    Args:
        places: where to look.
        wait: returns when what gateways were still writing is written.

    Raises:
        InputError: a file is damaged; if it was so at the start, nothing was erased.
        StorageError: the database is unavailable, or too busy to be compacted.
        AuditError: one of the logs was altered; the erasure itself is done.
    """
    if not (places.digest or places.requests):
        return _count_records(places, ())  # no request has these words
    before = list(records_of(places))
    _erase_once(places)
    wait()
    # Gateways may still have been writing what they had served before.
    late = list(records_of(places))
    if late:
        _erase_once(places)
    # Deleted rows stay readable in the database's files until these are rewritten.
    compact_files(places.memory)
    erasure = replace(
        _count_records(places, before + late), left=_find_remains(places, before + late)
    )
    notify_idle_logs(places, "erasure", erasure.records)
    return erasure


def _erase_once(places: SearchedPlaces) -> None:
    """Erase files first, because the notice in the memory's transaction states their counts."""
    requests = places.requests
    contents = sum(
        erase_contents(path, signing_key(places.log_keys[path]), digest, requests)
        for path, digest in places.logs.items()
    )
    rows = sum(drop_rows(path, places.digest, requests) for path in present_exports(places))
    counts = {"contents": contents, "exports": rows}
    erase_subject(places.memory, places.digest, counts, requests)
    forget_subject(places.memory, places.digest)


def _count_records(places: SearchedPlaces, records: Sequence[SubjectRecord]) -> ErasureResult:
    return ErasureResult(
        subject=places.digest,
        requests=tuple(sorted(places.requests)),
        found=dict(Counter(record.location for record in records)),
        missing=missing_exports(places),
    )


def _find_remains(places: SearchedPlaces, erased: Sequence[SubjectRecord]) -> tuple[str, ...]:
    """Look for records of the subject, and for its sentences in the bytes of every file."""
    records = {
        f"{record.location}: a record in the {record.store}" for record in records_of(places)
    }
    quotes = choose_sentences(record.value for record in erased)
    others = partial(records_of_others, places)
    kept = [f"{folder}: {kind}; delete it" for folder, kind in copies_with(places)]
    return (*sorted(records), *kept, *residual_text(_list_searchable_files(places), quotes, others))


def _list_searchable_files(places: SearchedPlaces) -> list[Path]:
    """Return the files that can be searched; those of PostgreSQL cannot be read."""
    database = places.memory.url.database if places.memory.dialect.name == "sqlite" else None
    # The write-ahead log holds pages that are not in the database's file yet.
    of_database = [Path(f"{database}{end}") for end in ("", "-wal", "-shm")] if database else []
    of_logs = [path for folder in places.logs for path in content_files(folder)]
    return [*of_database, *present_exports(places), *of_logs]
