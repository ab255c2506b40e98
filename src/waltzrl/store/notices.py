"""Events that every replica must learn of.

The table only grows. Each gateway reads the new rows and copies them to its own audit log.
"""

import time
from collections.abc import Collection, Mapping

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    Table,
    Text,
    func,
    insert,
    select,
    text,
)

from waltzrl.store.database import decode_row, reading

NOTICES = Table(
    "notices",
    MetaData(),
    # SQLite numbers only an INTEGER PRIMARY KEY by itself.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("time", Float, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", JSON, nullable=False),
)


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """An event, told once to all replicas."""

    id: int
    time: float
    """Seconds since the epoch."""
    kind: str
    """The kind of notice, named after the package that wrote it, such as `release`."""
    body: dict[str, str | int | float | bool | None]
    """Names no person and holds no content."""


def give_notice(
    connection: Connection, kind: str, body: Mapping[str, str | float | bool | None]
) -> None:
    """Add a notice, in the transaction of the event itself."""
    if connection.dialect.name == "postgresql":
        # Without the lock a smaller id could be committed after a larger one was read.
        connection.execute(text("LOCK TABLE notices IN SHARE ROW EXCLUSIVE MODE"))
    row = {"time": time.time(), "kind": kind, "body": dict(body)}
    connection.execute(insert(NOTICES).values(row))


def notices_after(engine: Engine, last: int) -> list[Notice]:
    """Return the notices with ids above `last`, the oldest first."""
    query = select(NOTICES).where(NOTICES.c.id > last).order_by(NOTICES.c.id)
    with reading(engine) as connection:
        rows = connection.execute(query)
        return [decode_row(row, Notice) for row in rows]


def newest_notices(
    engine: Engine, count: int, *, of: Collection[str] = (), but: Collection[str] = ()
) -> list[Notice]:
    """Return the last notices, the newest first.

    Args:
        engine: of the database.
        count: how many at most.
        of: only those of these kinds; empty for all.
        but: none of these kinds.
    """
    query = select(NOTICES).where(NOTICES.c.kind.not_in(but))
    if of:
        query = query.where(NOTICES.c.kind.in_(of))
    with reading(engine) as connection:
        rows = connection.execute(query.order_by(NOTICES.c.id.desc()).limit(count))
        return [decode_row(row, Notice) for row in rows]


def last_notice(engine: Engine) -> int:
    """Return the id of the newest notice; 0 when there is none."""
    with reading(engine) as connection:
        return connection.execute(select(func.max(NOTICES.c.id))).scalar() or 0
