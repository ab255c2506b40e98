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
    Select,
    Table,
    Text,
    func,
    insert,
    select,
    text,
)

from waltzrl.storage.database import TABLES, reading

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
    body: dict[str, str | int | float | bool | None]
    """Names no person and holds no content."""


def give_notice(
    connection: Connection, kind: Kind, body: Mapping[str, str | float | bool | None]
) -> None:
    """Add a notice, in the transaction of what it tells of."""
    if (
        connection.dialect.name == "postgresql"
    ):  # so that ids are seen in the order of their commits
        connection.execute(text("LOCK TABLE notices IN SHARE ROW EXCLUSIVE MODE"))
    row = {"time": time.time(), "kind": kind, "body": dict(body)}
    connection.execute(insert(NOTICES).values(row))


def notices_after(engine: Engine, last: int) -> list[Notice]:
    """Return the notices behind `last`, the oldest first."""
    return _notices(engine, select(NOTICES).where(NOTICES.c.id > last).order_by(NOTICES.c.id))


def last_notice(engine: Engine) -> int:
    """Return the id of the newest notice; 0 when there is none."""
    with reading(engine) as connection:
        return connection.execute(select(func.max(NOTICES.c.id))).scalar() or 0


def _notices(engine: Engine, query: Select[tuple[object, ...]]) -> list[Notice]:
    with reading(engine) as connection:
        rows = connection.execute(query)
        return [msgspec.convert(row, Notice, from_attributes=True) for row in rows]
