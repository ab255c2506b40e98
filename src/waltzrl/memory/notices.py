"""What all replicas must hear of: releases that move, subjects that are erased.

The table only grows. Every gateway reads it on, and writes each notice into its own audit log.
"""

import time
from collections.abc import Mapping
from typing import Literal

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    Table,
    Text,
    func,
    insert,
    select,
)

from waltzrl.memory.database import TABLES, reading

Kind = Literal["release", "erasure"]

NOTICES = Table(
    "notices",
    TABLES,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("time", Float, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", JSON, nullable=False),
)


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened once, for all replicas."""

    id: int
    time: float
    """Seconds since the epoch."""
    kind: Kind
    body: dict[str, str | float | bool | None]
    """Names no person and holds no content."""


def give_notice(
    connection: Connection, kind: Kind, body: Mapping[str, str | float | bool | None]
) -> None:
    """Add a notice, in the transaction of what it tells of."""
    row = {"time": time.time(), "kind": kind, "body": dict(body)}
    connection.execute(insert(NOTICES).values(row))


def notices_after(engine: Engine, last: int) -> list[Notice]:
    """Return the notices behind `last`, the oldest first."""
    query = select(NOTICES).where(NOTICES.c.id > last).order_by(NOTICES.c.id)
    with reading(engine) as connection:
        return [
            msgspec.convert(dict(row._mapping), Notice)  # noqa: SLF001 - SQLAlchemy's own name
            for row in connection.execute(query)
        ]


def last_notice(engine: Engine) -> int:
    """Return the id of the newest notice; 0 when there is none."""
    with reading(engine) as connection:
        return connection.execute(select(func.max(NOTICES.c.id))).scalar() or 0
