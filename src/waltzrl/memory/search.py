"""What the store can be asked: one item, the items that fit, and which namespaces there are."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    literal_column,
    or_,
    select,
    true,
)

from waltzrl.memory.filters import conditions
from waltzrl.memory.items import (
    GetOp,
    Item,
    ListNamespacesOp,
    Namespace,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)
from waltzrl.memory.tables import ITEMS
from waltzrl.memory.words import ranked

Found = Row[tuple[object, ...]]
"""One row with the columns of `COLUMNS`; of a search also its `score`."""
COLUMNS = tuple(
    ITEMS.c[name] for name in ("id", "namespace", "key", "value", "created_at", "updated_at", "ttl")
)


def alive(now: float) -> ColumnElement[bool]:
    """Leave out what has expired, swept or not."""
    return or_(ITEMS.c.expires_at.is_(None), ITEMS.c.expires_at > now)


def within(prefix: Namespace) -> ColumnElement[bool]:
    """Keep to a namespace and all below it."""
    if not prefix:
        return true()
    name = ".".join(prefix)
    below = and_(ITEMS.c.namespace > f"{name}.", ITEMS.c.namespace < f"{name}/")  # "/" follows "."
    return or_(ITEMS.c.namespace == name, below)


def answer(connection: Connection, op: Op, now: float, read: list[int]) -> Result:
    """Answer one operation; note in `read` the items whose time to live begins anew.

    Raises:
        InputError: a filter is wrong.
    """
    match op:
        case GetOp():
            row = get(connection, op, now)
            _note([row] if row else [], op, read)
            return item_of(row) if row else None
        case SearchOp():
            rows = search(connection, op, now)
            _note(rows, op, read)
            return [search_item_of(row, row.score) for row in rows]
        case ListNamespacesOp():
            return list(namespaces(connection, op, now))
        case PutOp():
            return None


def get(connection: Connection, op: GetOp, now: float, *, locked: bool = False) -> Found | None:
    """Return one item, if it is there; `locked` until the transaction ends."""
    named = (ITEMS.c.namespace == ".".join(op.namespace), ITEMS.c.key == op.key)
    query = select(*COLUMNS).where(*named, alive(now))
    return connection.execute(query.with_for_update() if locked else query).one_or_none()


def search(connection: Connection, op: SearchOp, now: float) -> Sequence[Found]:
    """Return the items that fit: the best first when there is a query, else the newest first.

    Raises:
        InputError: the filter is wrong.
    """
    dialect = connection.dialect.name
    fits = conditions(op.filter or {}, dialect)
    query = select(*COLUMNS).where(within(op.namespace_prefix), alive(now), *fits)
    order = [ITEMS.c.updated_at.desc(), ITEMS.c.id.desc()]
    score: ColumnElement[float] = literal_column("NULL")
    if op.query is not None:
        query, score = ranked(query, op.query, dialect)
        order = [score.desc(), *order]
    query = query.add_columns(score.label("score"))
    return connection.execute(query.order_by(*order).limit(op.limit).offset(op.offset)).all()


def namespaces(connection: Connection, op: ListNamespacesOp, now: float) -> list[Namespace]:
    """Return the namespaces that meet all conditions, in order."""
    rows = connection.execute(select(ITEMS.c.namespace).where(alive(now)).distinct())
    all_of_them = (tuple(name.split(".")) for (name,) in rows)
    wanted = op.match_conditions or ()
    fitting = {
        namespace[: op.max_depth]
        for namespace in all_of_them
        if all(condition.holds_for(namespace) for condition in wanted)
    }
    return sorted(fitting)[op.offset : op.offset + op.limit]


def item_of(row: Found) -> Item:
    """Return a row as an item."""
    return Item(
        namespace=tuple(row.namespace.split(".")),
        key=row.key,
        value=row.value,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        updated_at=datetime.fromtimestamp(row.updated_at, UTC),
    )


def search_item_of(row: Found, score: float | None) -> SearchItem:
    """Return a row as an item that was searched for."""
    item = item_of(row)
    return SearchItem(
        namespace=item.namespace,
        key=item.key,
        value=item.value,
        created_at=item.created_at,
        updated_at=item.updated_at,
        score=score,
    )


def _note(rows: Sequence[Found], op: GetOp | SearchOp, read: list[int]) -> None:
    if op.refresh_ttl:
        read.extend(row.id for row in rows if row.ttl is not None)
