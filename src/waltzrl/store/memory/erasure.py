"""Removes everything of one subject, and knows the files that hold copies of it.

Tables derived from items follow them by triggers and foreign keys. What a deletion leaves in a
database's files is removed by `compact_files`.
"""

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    delete,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError

from waltzrl.errors import InputError, StorageError
from waltzrl.store.database import reading, writing
from waltzrl.store.memory.items import Json, PutOp
from waltzrl.store.memory.schemas import BACKUP_MANIFEST
from waltzrl.store.memory.tables import EXPORTS, ITEMS, SUBJECT_KEY
from waltzrl.store.notices import NOTICES, give_notice

_RECORDS = "safety.waltzrl."
"""Beginning of the namespaces whose keys are ids of exchanges."""
CHECKPOINTS = 3
"""Times that SQLite is asked to fold its write-ahead log in; each waits for readers to end."""
SNAPSHOT_CHECKS = 200
"""Times that PostgreSQL is asked, every 50 ms, whether older transactions have ended."""
# The ids of transactions wrap around, so they are compared by their age.
OLDER_TRANSACTIONS = text(
    "SELECT pid FROM pg_stat_activity, CAST(CAST(:first AS xid8) AS xid) AS first "
    "WHERE pid <> pg_backend_pid() AND (age(backend_xid) > age(first) OR age(backend_xmin) > "
    "age(first) AND coalesce(datname, current_database()) = current_database())"
)
"""The processes with a transaction from before the first one that is not over; the snapshot of a
vacuum reaches back to such a one in whatever database, and keeps the rows that it sees.
"""
ACCESS_MANIFEST = "access.json"
COPIES = {BACKUP_MANIFEST: "a backup", ACCESS_MANIFEST: "a copy for the person"}
"""The file in a copy that is recorded like an export, and what the copy is: a folder that is
deleted, never rewritten."""


class Remembered(msgspec.Struct, frozen=True):
    """A value of the memory, and where it is kept."""

    namespace: str
    value: dict[str, Json]
    expires_at: float | None
    """Seconds since the epoch; None for what is kept until it is erased."""


class KeptOf(NamedTuple):
    """How much of one kind is remembered of a subject, and when it expires."""

    namespace: str
    records: int
    first_expires: float | None
    """Seconds since the epoch; None if none of them expires."""
    last_expires: float | None


def bind_key(engine: Engine, mark: str, file: Path) -> None:
    """Bind a memory to the key of its subjects' digests, unless it is bound already.

    There is one key for each memory: what is kept under another, `waltzrl erase` never finds.

    Args:
        engine: of a memory whose tables exist.
        mark: the digest of the empty name under the key.
        file: of the key, for the message.

    Raises:
        InputError: the memory is bound to another key.
        StorageError: the database is unavailable.
    """
    # Of several gateways that start at once, the primary key lets one bind it.
    with suppress(IntegrityError), writing(engine) as connection:  # it is bound already
        connection.execute(insert(SUBJECT_KEY).values(id=1, mark=mark))
    require_key(engine, mark, file)


def require_key(engine: Engine, mark: str, file: Path) -> None:
    """Refuse a key that is not the memory's; arguments and errors are those of `bind_key`."""
    with reading(engine) as connection:
        bound = connection.execute(select(SUBJECT_KEY.c.mark)).scalar()
    if bound not in (None, mark):
        raise InputError(
            f"{file} is not the key under which {engine.url.render_as_string()} keeps names; give "
            "each gateway and `waltzrl erase` the same memory.subject_key; if it is lost, start "
            "a new memory"
        )


def note_export(engine: Engine, path: Path) -> None:
    """Record that a file holds remembered records, so that erasing reaches it.

    Call it before the file is written: a missing file is skipped.
    """
    with writing(engine) as connection:
        _record_export(connection, path)


def note_access(engine: Engine, path: Path, digest: str, requests: int, records: int) -> None:
    """Record a person's copy like an export, and give notice of it, in one transaction.

    Args:
        engine: of the memory.
        path: of the copy's manifest, which is not written yet.
        digest: of the subject; empty if requests were looked for.
        requests: number of these.
        records: number of records in the copy.
    """
    whose = {"subject": digest} if digest else {"requests": requests}
    with writing(engine) as connection:
        _record_export(connection, path)
        give_notice(connection, "access", {**whose, "records": records})


def _record_export(connection: Connection, path: Path) -> None:
    connection.execute(delete(EXPORTS).where(EXPORTS.c.path == str(path.resolve())))
    row = {"path": str(path.resolve()), "created": time.time()}
    connection.execute(EXPORTS.insert().values(row))


def list_copies(engine: Engine) -> list[tuple[Path, str]]:
    """Return the folders of copies that still exist, and what each is."""
    paths = [path for path in _list_recorded(engine) if path.name in COPIES]
    return [(path.parent, COPIES[path.name]) for path in paths if path.parent.exists()]


def withdraw_export(engine: Engine, path: Path) -> None:
    """Remove the record of a file that could not be written."""
    with writing(engine) as connection:
        connection.execute(delete(EXPORTS).where(EXPORTS.c.path == str(path.resolve())))


def list_exports(engine: Engine) -> list[Path]:
    """Return the recorded files but those of copies, the oldest first."""
    return [path for path in _list_recorded(engine) if path.name not in COPIES]


def _list_recorded(engine: Engine) -> list[Path]:
    query = select(EXPORTS.c.path).order_by(EXPORTS.c.created)
    with reading(engine) as connection:
        return [Path(path) for path in connection.execute(query).scalars()]


def find_remembered(
    engine: Engine, digest: str, requests: Collection[str] = frozenset()
) -> Iterator[Remembered]:
    """Yield what is remembered of a subject, and of the requests with these ids."""
    with reading(engine) as connection:
        yield from _read_remembered(connection, _match_subject(connection, digest, requests))


def find_remembered_of_others(
    engine: Engine, digest: str, requests: Collection[str] = frozenset()
) -> Iterator[Remembered]:
    """Yield what is remembered of all others, and of requests that name no subject."""
    with reading(engine) as connection:
        yield from _read_remembered(connection, not_(_match_subject(connection, digest, requests)))


def count_kept(engine: Engine, digest: str) -> list[KeptOf]:
    """Count what is remembered of a subject in each namespace; an empty digest names nobody."""
    columns = (
        ITEMS.c.namespace,
        func.count(),
        func.min(ITEMS.c.expires_at),
        func.max(ITEMS.c.expires_at),
    )
    with reading(engine) as connection:
        query = select(*columns).where(_match_subject(connection, digest, ()))
        rows = connection.execute(query.group_by(ITEMS.c.namespace).order_by(ITEMS.c.namespace))
        return [KeptOf(*row) for row in rows]


def erase_subject(
    engine: Engine,
    digest: str,
    elsewhere: Mapping[str, int] | None = None,
    requests: Collection[str] = frozenset(),
) -> dict[str, int]:
    """Delete what is remembered of a subject, and add a notice, in one transaction.

    Args:
        engine: of the memory.
        digest: of the subject; may be empty if there are requests.
        elsewhere: for the notice, records erased in other places.
        requests: ids of requests of which everything is deleted too.

    Returns:
        Rows deleted in each namespace.

    Raises:
        StorageError: the database is unavailable; nothing was deleted.
    """
    assert digest or requests, "requests without a subject cannot be told apart"
    with writing(engine) as connection:
        of_subject = _match_subject(connection, digest, requests)
        count = (
            select(ITEMS.c.namespace, func.count()).where(of_subject).group_by(ITEMS.c.namespace)
        )
        deleted = {str(namespace): int(rows) for namespace, rows in connection.execute(count)}
        connection.execute(delete(ITEMS).where(of_subject))
        counts = {"memory": sum(deleted.values()), **(elsewhere or {})}
        whose = {"subject": digest} if digest else {"requests": len(requests)}
        give_notice(connection, "erasure", {**whose, **counts})
    return deleted


def without_erased(connection: Connection, puts: Sequence[PutOp]) -> list[PutOp]:
    """Leave out records of a subject from before its erasure that arrive only now."""
    subjects = {_find_subject(put) for put in puts} - {""}
    erased = _erasure_times(connection, subjects) if subjects else {}
    return [put for put in puts if _time_of(put) > erased.get(_find_subject(put), float("-inf"))]


def compact_files(engine: Engine) -> None:
    """Rewrite the database's files, so that nothing of deleted rows is left in them.

    On PostgreSQL the tables are locked meanwhile; its write-ahead log is the operator's to purge.

    Raises:
        StorageError: other connections read or write all the time; the rows stay deleted.
    """
    if engine.dialect.name == "postgresql":
        with reading(engine) as connection:
            # VACUUM cannot run within a transaction.
            connection.execution_options(isolation_level="AUTOCOMMIT")
            _wait_for_transactions(connection)
            connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {ITEMS.name}")
            # The statistics quote common values, and whoever began meanwhile still sees the old.
            _wait_for_transactions(connection)
            connection.exec_driver_sql("VACUUM (FULL) pg_statistic")
        return
    # Without SQLAlchemy, which begins transactions: VACUUM cannot run in one.
    raw = engine.raw_connection()
    try:
        assert isinstance(raw.driver_connection, sqlite3.Connection)
        _compact_sqlite(raw.driver_connection)
    except sqlite3.OperationalError as error:
        raise StorageError(
            f"{engine.url.database} could not be compacted: {error}; deleted text may still "
            "be in its files: run this again when the database is less busy"
        ) from error
    finally:
        raw.close()


def _wait_for_transactions(connection: Connection) -> None:
    """Wait until nobody can still see the deleted rows, because a vacuum keeps those."""
    # The first id not given yet: transactions with lower ones may still see the rows.
    last = text("SELECT CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text)")
    first = connection.execute(last).scalar_one()
    for _ in range(SNAPSHOT_CHECKS):
        open_ones = connection.execute(OLDER_TRANSACTIONS, {"first": first}).scalars().all()
        if not open_ones:
            return
        connection.execute(text("SELECT pg_sleep(0.05)"))
    raise StorageError(
        f"the erased rows are still in the database's files, because {len(open_ones)} older "
        f"transaction(s) can see them (pid {', '.join(map(str, open_ones))} in "
        "pg_stat_activity): run this again when they have ended"
    )


def _compact_sqlite(connection: sqlite3.Connection) -> None:
    # The full-text index keeps deleted words until its parts are merged.
    connection.execute("INSERT INTO item_words (item_words) VALUES ('optimize')")
    connection.execute("VACUUM")
    # The log holds the old pages until it is truncated.
    for _ in range(CHECKPOINTS):
        (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy:
            return
    raise sqlite3.OperationalError("readers hold its write-ahead log")


def _match_subject(
    connection: Connection, digest: str, requests: Collection[str]
) -> ColumnElement[bool]:
    """Return the condition of what is a subject's, or of a choice of one of the requests."""
    # Without coalesce a missing subject makes this condition and its negation both null.
    of_subject = and_(literal(digest) != "", func.coalesce(ITEMS.c.subject, "") == digest)
    if not requests:
        return of_subject
    query = select(ITEMS.c.id, ITEMS.c.key, ITEMS.c.interaction)
    rows = connection.execute(query.where(ITEMS.c.namespace.startswith(_RECORDS)))
    # The key of a training sample is `ID:ROUND`; its exchange stands in `interaction`.
    ids = [id_ for id_, key, exchange in rows if (exchange or key).partition("/")[0] in requests]
    return or_(of_subject, ITEMS.c.id.in_(ids))


def _read_remembered(
    connection: Connection, condition: ColumnElement[bool]
) -> Iterator[Remembered]:
    columns = (ITEMS.c.namespace, ITEMS.c.value, ITEMS.c.expires_at)
    query = select(*columns).where(condition).order_by(ITEMS.c.id)
    for namespace, value, expires_at in connection.execute(query.execution_options(yield_per=500)):
        yield Remembered(namespace, value, expires_at)


def _erasure_times(connection: Connection, digests: Collection[str]) -> dict[str, float]:
    """Return when each subject was last erased, in seconds since the epoch."""
    subject = NOTICES.c.body["subject"].as_string()
    query = (
        select(subject, func.max(NOTICES.c.time))
        .where(NOTICES.c.kind == "erasure", subject.in_(digests))
        .group_by(subject)
    )
    return {str(digest): float(erased) for digest, erased in connection.execute(query)}


def _find_subject(put: PutOp) -> str:
    subject = (put.value or {}).get("subject")
    return subject if isinstance(subject, str) else ""


def _time_of(put: PutOp) -> float:
    """Return when it happened; infinity, as of what happens now, where the value does not say."""
    value = put.value or {}
    time_ = value.get("time", value.get("timestamp"))
    return float(time_) if isinstance(time_, int | float) else float("inf")
