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
    func,
    inspect,
    text,
    true,
    type_coerce,
    update,
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
    # SQLAlchemy's cache key holds the attribute named as the argument of `__init__`: `kind`.
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
    Column("policy", Text, nullable=False, server_default=""),
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
    Column("policy", Text, nullable=False, server_default=""),
)
Index(
    # Unique among the open ones only, so that at most one release is open.
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


def _name_overrefusals(connection: Connection) -> None:
    """Rewrite the metric and the limit that version 5 called needless."""
    for table in TABLES.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, JsonColumn):
                stored = type_coerce(column, Text)
                renamed = func.replace(stored, '"needless":', '"overrefusal":')
                renamed = func.replace(renamed, '"needless_limit":', '"overrefusal_limit":')
                named = stored.contains('"needless')
                connection.execute(update(table).where(named).values({column.name: renamed}))


def _add_policies(connection: Connection) -> None:
    """Add the columns for the names of policies, which tables of an older version lack."""
    for table in (BUNDLES, RELEASES):
        names = {column["name"] for column in inspect(connection).get_columns(table.name)}
        if "policy" not in names:
            connection.execute(
                text(f"ALTER TABLE {table.name} ADD COLUMN policy TEXT NOT NULL DEFAULT ''")
            )


RELEASE = TableGroup(
    TABLES,
    {"releases: policies": _add_policies, "releases: over-refusals": _name_overrefusals},
)
