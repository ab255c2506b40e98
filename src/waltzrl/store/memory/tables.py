"""The memory's tables: items as JSON, with columns for what is looked up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    cast,
    event,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from waltzrl.store.memory.items import Json
from waltzrl.store.migrations import TableGroup

LONGEST_TEXT = 200
"""Characters of a text that is stored in a column; a longer one is only in the JSON."""

TABLES = MetaData()
Ordered: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")
"""Text in the order of its code points, on every machine."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a value that is also a column."""

    type: TypeEngine[str] | TypeEngine[bool] | TypeEngine[float]
    fits: Callable[[Json], bool]
    """Whether a value is stored in the column; others are only in the JSON."""


def _is_short(value: Json) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _is_exact_number(value: Json) -> bool:
    # Beyond 2 ** 53 a whole number is no longer the same one as a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**53


TEXT = Field(Ordered, _is_short)
TRUTH = Field(Boolean(), lambda value: isinstance(value, bool))
NUMBER = Field(Float(), _is_exact_number)

FIELDS: Mapping[str, Field] = {
    **dict.fromkeys(("request_hash", "subject", "interaction", "label", "category"), TEXT),
    **dict.fromkeys(("bundle", "release", "arm", "decision"), TEXT),
    **dict.fromkeys(("time", "stage"), NUMBER),
    "safe": TRUTH,
}
"""Top-level fields of a value that are also columns."""

ITEMS = Table(
    "items",
    TABLES,
    # SQLite numbers only an INTEGER PRIMARY KEY, which is its rowid and stays the same in a VACUUM.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("namespace", Ordered, nullable=False),
    Column("key", Ordered, nullable=False),
    Column("value", JSON().with_variant(JSONB(), "postgresql"), nullable=False),
    Column("words", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("ttl", Float),
    *[Column(name, field.type) for name, field in FIELDS.items()],
    UniqueConstraint("namespace", "key"),
)
"""Times are seconds since the epoch, `ttl` is in minutes, `words` is what a search matches."""

# Most items lack most of these fields, so the indexes hold only those that have them.
for _name in ("request_hash", "subject", "release", "label", "interaction", "expires_at"):
    Index(
        f"items_{_name}",
        ITEMS.c[_name],
        sqlite_where=ITEMS.c[_name].is_not(None),
        postgresql_where=ITEMS.c[_name].is_not(None),
    )
Index("items_time", ITEMS.c.namespace, ITEMS.c.time)
Index("items_updated", ITEMS.c.updated_at)
Index(
    "items_words",
    # Queries must spell this expression the same, or PostgreSQL does not use the index.
    func.to_tsvector(text("'simple'::regconfig"), ITEMS.c.words),
    postgresql_using="gin",
).ddl_if(dialect="postgresql")

EXPORTS = Table(
    "exports",
    TABLES,
    Column("path", Text, primary_key=True),
    Column("created", Float, nullable=False),
)
"""Files that hold remembered records."""

LEASES = Table(
    "leases",
    TABLES,
    Column("evaluation", Ordered, primary_key=True),
    Column("person", Text, nullable=False),
    Column("ends", Float, nullable=False),
)
"""Whom a queue has given an evaluation to, until when, in seconds since the epoch."""

SUBJECT_KEY = Table(
    "subject_key",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("mark", Text, nullable=False),
)
"""One row: the digest of the empty name under the memory's key; it does not reveal the key."""


def columns_of(value: Mapping[str, Json]) -> dict[str, Json]:
    """Return the fields of a value that are stored in columns."""
    return {
        name: value[name] if name in value and field.fits(value[name]) else None
        for name, field in FIELDS.items()
    }


@event.listens_for(ITEMS, "after_create")
def _create_word_table(_items: Table, connection: Connection, **_: object) -> None:
    """Create SQLite's full-text index, a table of its own; triggers keep it up to date."""
    if connection.dialect.name != "sqlite":
        return
    added = "INSERT INTO item_words (rowid, words) VALUES (new.id, new.words);"
    # FTS5 keeps no copy of the text, so that a deletion must name the old one.
    removed = (
        "INSERT INTO item_words (item_words, rowid, words) VALUES ('delete', old.id, old.words);"
    )
    for statement in (
        # `words_of` has removed accents already, in one way for both databases.
        "CREATE VIRTUAL TABLE item_words USING fts5 (words, content='items', content_rowid='id', "
        "tokenize='unicode61 remove_diacritics 0')",
        f"CREATE TRIGGER items_added AFTER INSERT ON items BEGIN {added} END",
        f"CREATE TRIGGER items_removed AFTER DELETE ON items BEGIN {removed} END",
        "CREATE TRIGGER items_reworded AFTER UPDATE OF words ON items WHEN old.words <> new.words "
        f"BEGIN {removed} {added} END",
    ):
        connection.exec_driver_sql(statement)


def _name_overrefusals(connection: Connection) -> None:
    """Rewrite the evaluations and queues of version 5, which called an over-refusal needless."""
    names = {
        "needless_refusal": "overrefusal",
        "needless refusal": "over-refusal",
        "needless": "overrefusal",
    }
    kinds = ("safety.waltzrl.evaluations", "desk.queues")
    holds_one = cast(ITEMS.c.value, Text).contains("needless")
    query = select(ITEMS.c.id).where(ITEMS.c.namespace.in_(kinds), holds_one)
    for id_ in connection.execute(query).scalars().all():
        row = ITEMS.c.id == id_
        value = connection.execute(select(ITEMS.c.value).where(row)).scalar_one()
        for fields in (value, value.get("filters", {}), *value.get("labels", ())):
            for name in fields.keys() & {"reply", "label", "judge", "reason"}:
                fields[name] = names.get(fields[name], fields[name])
        changed = {"value": value, "label": columns_of(value)["label"]}
        connection.execute(update(ITEMS).where(row).values(changed))


def _date_coaching(connection: Connection) -> None:
    """Fill the column `time` of coaching sessions, which older versions left empty."""
    undated = (ITEMS.c.namespace == "safety.waltzrl.coaching", ITEMS.c.time.is_(None))
    happened = ITEMS.c.value["timestamp"].as_float()
    connection.execute(update(ITEMS).where(*undated).values(time=happened))


MEMORY = TableGroup(
    TABLES,
    {
        "memory: over-refusals": _name_overrefusals,
        "memory: times of coaching sessions": _date_coaching,
    },
)
