"""What the store changes: rows that come, go, and live on because somebody read them."""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from waltzrl.memory.erasure import spared
from waltzrl.memory.items import Json, PutOp
from waltzrl.memory.tables import FIELDS, ITEMS, VECTORS, fields_of
from waltzrl.memory.words import texts_of, words_of

_REPLACED = ("value", "words", "updated_at", "expires_at", "ttl", *FIELDS)
_NAMED = (ITEMS.c.namespace == bindparam("in_namespace"), ITEMS.c.key == bindparam("with_key"))


def keep(connection: Connection, puts: Sequence[PutOp], now: float) -> None:
    """Insert items, or put them in the place of those that are there."""
    kept = spared(connection, puts)
    rows = [_row(put, put.value, now) for put in kept if put.value is not None]
    if not rows:
        return
    on_sqlite = connection.dialect.name == "sqlite"
    added = sqlite.insert(ITEMS) if on_sqlite else postgresql.insert(ITEMS)
    replaced = {name: added.excluded[name] for name in _REPLACED}
    connection.execute(
        added.on_conflict_do_update(index_elements=["namespace", "key"], set_=replaced), rows
    )


def keep_vectors(connection: Connection, vectors: Sequence[tuple[PutOp, bytes | None]]) -> None:
    """Give items that were just kept their vectors; None takes an old one away."""
    if not vectors:
        return
    mine = select(ITEMS.c.id).where(*_NAMED).scalar_subquery()
    old = delete(VECTORS).where(VECTORS.c.item == mine)
    connection.execute(old, [_name(put) for put, _ in vectors])
    rows = [{**_name(put), "vector": vector} for put, vector in vectors if vector is not None]
    if rows:
        new = select(ITEMS.c.id, bindparam("vector", type_=VECTORS.c.vector.type)).where(*_NAMED)
        connection.execute(insert(VECTORS).from_select(["item", "vector"], new), rows)


def forget(connection: Connection, puts: Sequence[PutOp]) -> None:
    """Delete the items of puts without a value."""
    names = [_name(put) for put in puts if put.value is None]
    if names:
        connection.execute(delete(ITEMS).where(*_NAMED), names)


def prolong(connection: Connection, ids: Iterable[int], now: float) -> None:
    """Start the time to live of items anew."""
    later = now + 60 * ITEMS.c.ttl
    connection.execute(update(ITEMS).where(ITEMS.c.id.in_(list(ids))).values(expires_at=later))


def amend(connection: Connection, id_: int, value: Mapping[str, Json], now: float) -> None:
    """Put a value in the place of another; when it expires and how it is found stay as they are."""
    new = {"value": dict(value), "updated_at": now, **fields_of(value)}
    connection.execute(update(ITEMS).where(ITEMS.c.id == id_).values(new))


def sweep(connection: Connection, now: float) -> int:
    """Delete what has expired; return how many items that were."""
    return connection.execute(delete(ITEMS).where(ITEMS.c.expires_at <= now)).rowcount


def _name(put: PutOp) -> dict[str, object]:
    return {"in_namespace": ".".join(put.namespace), "with_key": put.key}


def _row(put: PutOp, value: Mapping[str, Json], now: float) -> dict[str, object]:
    return {
        "namespace": ".".join(put.namespace),
        "key": put.key,
        "value": dict(value),
        "words": words_of(texts_of(value, put.index)),
        "created_at": now,
        "updated_at": now,
        "expires_at": put.expires_at if put.ttl is None else now + 60 * put.ttl,
        "ttl": put.ttl,
        **fields_of(value),
    }
