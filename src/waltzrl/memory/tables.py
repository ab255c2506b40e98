"""Where the store keeps its items: as JSON, and what is looked up in columns of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from waltzrl.memory.items import Json
from waltzrl.storage.database import TABLES

LONGEST_TEXT = 200
"""Characters of a text that has its place in a column; a longer one is only in the JSON."""

Id = BigInteger().with_variant(Integer, "sqlite")
Ordered: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")
"""Text in the order of its code points, on every machine."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a value that is also a column."""

    type: TypeEngine[str] | TypeEngine[bool] | TypeEngine[float]
    holds: Callable[[Json], bool]
    """Whether a value has its place in the column; any other is in the JSON alone."""


def _is_short(value: Json) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**53


TEXT = Field(Ordered, _is_short)
TRUTH = Field(Boolean(), lambda value: isinstance(value, bool))
NUMBER = Field(Float(), _is_number)

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
    Column("id", Id, primary_key=True),
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
"""Times are seconds since the epoch, `ttl` is in minutes, `words` is what a search finds it by."""

for _name in ("request_hash", "subject", "release", "label", "interaction", "expires_at"):
    Index(
        f"items_{_name}",
        ITEMS.c[_name],
        sqlite_where=ITEMS.c[_name].is_not(None),
        postgresql_where=ITEMS.c[_name].is_not(None),
    )
Index("items_time", ITEMS.c.namespace, ITEMS.c.time)
Index("items_updated", ITEMS.c.updated_at)

VECTORS = Table(
    "item_vectors",
    TABLES,
    Column("item", Id, ForeignKey(ITEMS.c.id, ondelete="CASCADE"), primary_key=True),
    Column("vector", LargeBinary, nullable=False),
)
"""What an embedding model makes of an item's words: float32, in the machine's byte order."""


def fields_of(value: Mapping[str, Json]) -> dict[str, Json]:
    """Return what of a value stands in columns."""
    return {
        name: value[name] if name in value and field.holds(value[name]) else None
        for name, field in FIELDS.items()
    }
