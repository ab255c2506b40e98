"""Everything of one subject, removed for good; and the files that copies of it went to.

Derived tables follow their items by triggers and foreign keys. What a deletion leaves in a
database's files is removed by `compact`.
"""

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Float,
    Table,
    Text,
    delete,
    func,
    or_,
    select,
)

from waltzrl.errors import StorageError
from waltzrl.memory.items import Json, PutOp
from waltzrl.memory.tables import ITEMS
from waltzrl.storage.database import TABLES, reading, writing
from waltzrl.storage.notices import NOTICES, give_notice

EXPORTS = Table(
    "exports",
    TABLES,
    Column("path", Text, primary_key=True),
    Column("created", Float, nullable=False),
)
"""Files that hold what was remembered."""

CHECKPOINTS = 3
"""Times that SQLite is asked to fold its write-ahead log in; each waits for readers to end."""


class Remembered(msgspec.Struct, frozen=True):
    """A value of the memory, and where it is kept."""

    namespace: str
    value: dict[str, Json]


def note_export(engine: Engine, path: Path) -> None:
    """Remember that a file holds what was remembered, so that erasing reaches it.

    Call it before the file is written: a file that is not there is passed over.
    """
    with writing(engine) as connection:
        EXPORTS.create(connection, checkfirst=True)
        connection.execute(delete(EXPORTS).where(EXPORTS.c.path == str(path.resolve())))
        row = {"path": str(path.resolve()), "created": time.time()}
        connection.execute(EXPORTS.insert().values(row))


def withdraw_export(engine: Engine, path: Path) -> None:
    """Forget a file that was noted and could not be written."""
    with writing(engine) as connection:
        connection.execute(delete(EXPORTS).where(EXPORTS.c.path == str(path.resolve())))


def exports(engine: Engine) -> list[Path]:
    """Return the files that were noted, the oldest first."""
    query = select(EXPORTS.c.path).order_by(EXPORTS.c.created)
    with reading(engine) as connection:
        return [Path(path) for path in connection.execute(query).scalars()]


def remembered_of(engine: Engine, digest: str) -> Iterator[Remembered]:
    """Yield what is remembered of a subject."""
    return _remembered(engine, ITEMS.c.subject == digest)


def remembered_of_others(engine: Engine, digest: str) -> Iterator[Remembered]:
    """Yield what is remembered of everybody else, and of nobody in particular."""
    return _remembered(engine, or_(ITEMS.c.subject != digest, ITEMS.c.subject.is_(None)))


def erase_subject(
    engine: Engine, digest: str, elsewhere: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Delete what is remembered of a subject and give notice of it, in one transaction.

    Args:
        engine: of the memory.
        digest: of the subject; never empty.
        elsewhere: for the notice, how much was erased in other places.

    Returns:
        Rows deleted in each namespace.

    Raises:
        StorageError: the database does not take it; then nothing was deleted.
    """
    assert digest, "who named no subject cannot be told from others who did not"
    mine = ITEMS.c.subject == digest
    with writing(engine) as connection:
        count = select(ITEMS.c.namespace, func.count()).where(mine).group_by(ITEMS.c.namespace)
        deleted = {str(namespace): int(rows) for namespace, rows in connection.execute(count)}
        connection.execute(delete(ITEMS).where(mine))
        counts = {"memory": sum(deleted.values()), **(elsewhere or {})}
        give_notice(connection, "erasure", {"subject": digest, **counts})
    return deleted


def spared(connection: Connection, puts: Sequence[PutOp]) -> list[PutOp]:
    """Leave out records of a subject from before it was erased, which were long on their way."""
    subjects = {_subject(put) for put in puts} - {""}
    erased = _erased_at(connection, subjects) if subjects else {}
    return [put for put in puts if _happened(put) > erased.get(_subject(put), float("-inf"))]


def compact(engine: Engine) -> None:
    """Rewrite the database's files, so that nothing of deleted rows is left in them.

    On PostgreSQL the table is locked meanwhile; its write-ahead log is the operator's.

    Raises:
        StorageError: somebody reads or writes all the time; nothing deleted has come back.
    """
    if engine.dialect.name == "postgresql":
        with reading(engine) as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            for table in ("items", "item_vectors"):
                connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {table}")
            connection.exec_driver_sql("VACUUM (FULL) pg_statistic")  # it quotes what was there
        return
    borrowed = engine.raw_connection()
    try:
        assert isinstance(borrowed.driver_connection, sqlite3.Connection)
        _compact_sqlite(borrowed.driver_connection)
    except sqlite3.OperationalError as error:
        raise StorageError(
            f"{engine.url.database} could not be compacted: {error}; what was deleted may still "
            "be in its files: run this again when the database is less busy"
        ) from error
    finally:
        borrowed.close()


def _compact_sqlite(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO item_words (item_words) VALUES ('optimize')")
    connection.execute("VACUUM")
    for _ in range(CHECKPOINTS):
        (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy:
            return
    raise sqlite3.OperationalError("readers keep its write-ahead log")


def _remembered(engine: Engine, which: ColumnElement[bool]) -> Iterator[Remembered]:
    query = select(ITEMS.c.namespace, ITEMS.c.value).where(which).order_by(ITEMS.c.id)
    with reading(engine) as connection:
        for namespace, value in connection.execute(query.execution_options(yield_per=500)):
            yield Remembered(namespace, value)


def _erased_at(connection: Connection, digests: Collection[str]) -> dict[str, float]:
    """Return when subjects were erased last, in seconds since the epoch, if they ever were."""
    subject = NOTICES.c.body["subject"].as_string()
    query = (
        select(subject, func.max(NOTICES.c.time))
        .where(NOTICES.c.kind == "erasure", subject.in_(digests))
        .group_by(subject)
    )
    return {str(digest): float(when) for digest, when in connection.execute(query)}


def _subject(put: PutOp) -> str:
    subject = (put.value or {}).get("subject")
    return subject if isinstance(subject, str) else ""


def _happened(put: PutOp) -> float:
    """Return when; now, where the value does not say."""
    value = put.value or {}
    happened = value.get("time", value.get("timestamp"))
    return float(happened) if isinstance(happened, int | float) else float("inf")
