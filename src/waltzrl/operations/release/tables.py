"""The tables of releases, in the database that all replicas share."""

from typing import Generic, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    inspect,
    true,
)

from waltzrl.gateway.description import BundleDescription
from waltzrl.operations.release.decision import Decision, Test
from waltzrl.operations.release.evidence import Evidence
from waltzrl.operations.release.plan import Metric, ReleasePlan
from waltzrl.store.migrations import TableGroup

Stored = TypeVar("Stored")

TABLES = MetaData()


class JsonColumn(TypeDecorator[Stored], Generic[Stored]):
    """A column that stores a value of `kind` as JSON."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[Stored]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Stored | None, dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Stored | None:
        return None if value is None else msgspec.json.decode(value, type=self.kind)


NUMBER = BigInteger().with_variant(Integer, "sqlite")
"""Assigned by the database, in ascending order, where it is the primary key."""

BUNDLES = Table(
    "bundles",
    TABLES,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("recipe", Text, nullable=False),
    Column("base_since", Float),
    Column("description", JsonColumn(BundleDescription)),
    Column("by", Text, nullable=False, server_default=""),
    Column("added", Float),
)
"""See `StoredBundle`; `recipe` is what a gateway opens, with everything that it needs."""

RELEASES = Table(
    "releases",
    TABLES,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("secret", Text, nullable=False),
    Column("candidate", Text, nullable=False),
    Column("serving", Text, nullable=False),
    Column("plan", JsonColumn(ReleasePlan), nullable=False),
    Column("state", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("held", Boolean, nullable=False),
    Column("since", Float, nullable=False),
    Column("version", Integer, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("evidence", JsonColumn(Evidence), nullable=False),
    Column("decision", JsonColumn(Decision)),
)
Index(
    "one_open_release",
    RELEASES.c.is_open,
    unique=True,
    sqlite_where=RELEASES.c.is_open == true(),
    postgresql_where=RELEASES.c.is_open == true(),
)

TRANSITIONS = Table(
    "transitions",
    TABLES,
    Column("number", NUMBER, primary_key=True),
    Column("release", Text, nullable=False, index=True),
    Column("time", Float, nullable=False),
    Column("action", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("percentage", Float, nullable=False),
    Column("decision", JsonColumn(Decision)),
)

OBSERVATIONS = Table(
    "observations",
    TABLES,
    Column("number", NUMBER, primary_key=True),
    Column("release", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("outcomes", JsonColumn(dict[Metric, bool]), nullable=False),
    Column("rejudged", JsonColumn(dict[Metric, bool]), nullable=False, server_default="{}"),
    Column("subject", Text, nullable=False, server_default=""),
)
"""Observations that are not counted yet."""

ANSWERED = Table(
    "answered",
    TABLES,
    Column("release", Text, primary_key=True),
    Column("arm", Text, primary_key=True),
    Column("subject", Text, primary_key=True, index=True),
    Column("answers", Integer, nullable=False),
)
"""Answers of each named user in each arm, since the release's step began."""

CURVE_POINTS = Table(
    "curve_points",
    TABLES,
    Column("number", NUMBER, primary_key=True),
    Column("release", Text, nullable=False, index=True),
    Column("time", Float, nullable=False),
    Column("e_value", Float, nullable=False),
    Column("e_values", JsonColumn(dict[Test, float]), nullable=False),
)


def _drop_counted(connection: Connection) -> None:
    """Delete counted observations, which databases of versions 1 to 3 kept."""
    if "counted" not in {c["name"] for c in inspect(connection).get_columns(OBSERVATIONS.name)}:
        return
    for statement in (
        "DROP INDEX uncounted_observations",
        "DELETE FROM observations WHERE counted",
        "ALTER TABLE observations DROP COLUMN counted",
    ):
        connection.exec_driver_sql(statement)


def _add_subject(connection: Connection) -> None:
    """Add the second judge and the user, which observations of versions 1 to 5 lack."""
    columns = {c["name"] for c in inspect(connection).get_columns(OBSERVATIONS.name)}
    for name, default in (("rejudged", "{}"), ("subject", "")):
        if name not in columns:
            connection.exec_driver_sql(
                f"ALTER TABLE observations ADD COLUMN {name} TEXT NOT NULL DEFAULT '{default}'"
            )


def _add_description(connection: Connection) -> None:
    """Add what a bundle is and who made it, which bundles of versions 1 to 5 lack."""
    columns = {c["name"] for c in inspect(connection).get_columns(BUNDLES.name)}
    for name, kind in (
        ("description", "TEXT"),
        ("by", "TEXT NOT NULL DEFAULT ''"),
        ("added", "FLOAT"),
    ):
        if name not in columns:
            connection.exec_driver_sql(f'ALTER TABLE bundles ADD COLUMN "{name}" {kind}')


RELEASE = TableGroup(TABLES, (_drop_counted, _add_subject, _add_description))
