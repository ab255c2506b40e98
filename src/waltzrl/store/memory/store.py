"""The one namespaced store: LangGraph's BaseStore signature, on SQLite or PostgreSQL.

    put(("users", "17"), "likes", {"tea": True})  ->  get, search, list_namespaces, delete

A batch is one transaction: its reads see the state before it, then its puts are applied.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from waltzrl.store.database import reading, writing
from waltzrl.store.memory.erasure import without_erased
from waltzrl.store.memory.items import (
    Filter,
    GetOp,
    Index,
    Item,
    Json,
    ListNamespacesOp,
    MatchCondition,
    Namespace,
    Op,
    PutOp,
    Result,
    SearchOp,
    check_operation,
)
from waltzrl.store.memory.scrubbing import scrub_value
from waltzrl.store.memory.search import answer_operation, get_item, join_indexed_text, words_of
from waltzrl.store.memory.tables import FIELDS, ITEMS, MEMORY, columns_of
from waltzrl.store.migrations import prepare_tables

SWEPT_AT_ONCE = 2_000
"""Items that one transaction of a sweep deletes: other writers wait for it."""

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Change: TypeAlias = Callable[[Connection, Mapping[str, Json]], Mapping[str, Json]]

_REPLACED = ("value", "words", "updated_at", "expires_at", "ttl", *FIELDS)


@dataclass(frozen=True, slots=True)
class Scrubbed(PutOp):
    """A put whose value has been scrubbed; only `MemoryStore.scrubbed` makes it."""


def _in_thread(
    method: Callable[Arguments, Returned],
) -> Callable[Arguments, Coroutine[None, None, Returned]]:
    """Return a method that does the same in a thread: the twin that LangGraph's interface has."""

    @wraps(method)
    async def twin(*args: Arguments.args, **options: Arguments.kwargs) -> Returned:
        return await asyncio.to_thread(method, *args, **options)

    return twin


class MemoryStore:
    """Items under namespaces, kept in a database."""

    def __init__(self, engine: Engine, *, scrub: Callable[[str], str]) -> None:
        """Open the store, and bring its tables up to date.

        Args:
            engine: from `waltzrl.store.database.open_database`.
            scrub: removes from a text what must not be kept; every text passes through it once.

        Raises:
            StorageError: the database is unavailable, or of a newer version.
        """
        self.engine = engine
        self.scrub = scrub
        prepare_tables(engine, MEMORY)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Apply all operations, or none.

        Returns:
            [ops] an item or None for a get, a list for a search or a list of namespaces, None
            for a put.

        Raises:
            InputError: a name or a filter is invalid.
            StorageError: the database failed.
        """
        ops = list(ops)
        for op in ops:
            check_operation(op)
        put = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}  # the last wins
        puts = [self.scrubbed(op) for _, op in sorted(put.items())]  # in one order: no deadlocks
        now = time.time()
        read: list[int] = []
        with (writing if puts else reading)(self.engine) as connection:
            results = [answer_operation(connection, op, now, read) for op in ops]
            _delete_items(connection, puts)
            _upsert_items(connection, puts, now)
        # In a transaction of its own, so that searches that refresh nothing never wait for a
        # writer.
        if read:
            with writing(self.engine) as connection:
                later = now + 60 * ITEMS.c.ttl
                refreshed = update(ITEMS).where(ITEMS.c.id.in_(read)).values(expires_at=later)
                connection.execute(refreshed)
        return results

    def get(self, namespace: Namespace, key: str, *, refresh_ttl: bool = True) -> Item | None:
        """Return an item; None when it is missing or has expired."""
        item = self.batch([GetOp(namespace, key, refresh_ttl)])[0]
        assert item is None or isinstance(item, Item)
        return item

    def search(
        self,
        namespace_prefix: Namespace,
        /,
        *,
        query: str | None = None,
        filter: Filter | None = None,  # noqa: A002 - LangGraph's name
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool = True,
    ) -> list[Item]:
        """Return matching items under a namespace: with a query the best first, else the newest.

        Raises:
            InputError: the filter has an unknown operator, or a limit is negative.
        """
        op = SearchOp(namespace_prefix, filter, limit, offset, query, refresh_ttl)
        results = self.batch([op])[0]
        assert isinstance(results, list)
        return [item for item in results if isinstance(item, Item)]

    def put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Json],
        index: Index = None,
        *,
        ttl: float | None = None,
    ) -> None:
        """Store a value, in place of any before it.

        Raises:
            InputError: the namespace or the key is invalid.
        """
        self.batch([PutOp(namespace, key, value, index, ttl)])

    def add(
        self, namespace: Namespace, key: str, value: Mapping[str, Json], expires_at: float | None
    ) -> bool:
        """Store a value unless there is one; of several callers at once, one stores it.

        Args:
            namespace: of the item.
            key: of the item.
            value: is not searched by words.
            expires_at: seconds since the epoch.

        Returns:
            Whether it was stored.

        Raises:
            InputError: the namespace or the key is invalid.
            StorageError: the database failed.
        """
        put = PutOp(namespace, key, value, index=False, expires_at=expires_at)
        check_operation(put)
        put, now = self.scrubbed(put), time.time()
        expired = (ITEMS.c.namespace == ".".join(namespace), ITEMS.c.key == key)
        with writing(self.engine) as connection:
            # An expired row that is not swept yet would keep the new one out.
            connection.execute(delete(ITEMS).where(*expired, ITEMS.c.expires_at <= now))
            rows = _build_rows(connection, [put], now)
            if not rows:  # of a subject that was erased
                return False
            added = _insert_items(connection).on_conflict_do_nothing()
            return connection.execute(added.returning(ITEMS.c.id), rows[0]).first() is not None

    def prolong(self, namespace: Namespace, expires_at: float) -> None:
        """Let all items of a namespace expire at one time, seconds since the epoch."""
        items = ITEMS.c.namespace == ".".join(namespace)
        with writing(self.engine) as connection:
            connection.execute(update(ITEMS).where(items).values(expires_at=expires_at))

    def delete(self, namespace: Namespace, key: str) -> None:
        """Delete an item, if it exists."""
        self.batch([PutOp(namespace, key, None)])

    def list_namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Namespace]:
        """Return the namespaces in use, in order; `*` in a prefix or suffix is any label."""
        conditions = []
        if prefix:
            conditions.append(MatchCondition("prefix", prefix))
        if suffix:
            conditions.append(MatchCondition("suffix", suffix))
        results = self.batch([ListNamespacesOp(tuple(conditions), max_depth, limit, offset)])[0]
        assert isinstance(results, list)
        return [namespace for namespace in results if isinstance(namespace, tuple)]

    def amend(self, namespace: Namespace, key: str, changes: Mapping[str, Json]) -> bool:
        """Replace top-level fields of a value; its expiry and its indexed words stay.

        Returns:
            Whether the item exists.
        """
        clean = scrub_value(namespace, changes, self.scrub)
        return self.edit(namespace, key, lambda _connection, _value: clean)

    def edit(self, namespace: Namespace, key: str, change: Change) -> bool:
        """Replace top-level fields of a value as `amend`, by what depends on the value.

        Args:
            namespace: of the item.
            key: of the item.
            change: from the transaction, in which others cannot change the item, and its value to
                the new fields, already scrubbed.

        Returns:
            Whether the item exists.
        """
        op = GetOp(namespace, key)
        check_operation(op)
        now = time.time()
        with writing(self.engine) as connection:
            row = get_item(connection, op, now, locked=True)
            if row is None:
                return False
            # The row is locked, so nothing that others wrote since it was read is lost.
            value = {**row.value, **change(connection, row.value)}
            amended = {"value": value, "updated_at": now, **columns_of(value)}
            connection.execute(update(ITEMS).where(ITEMS.c.id == row.id).values(amended))
        return True

    def sweep(self, now: float) -> int:
        """Delete some of what has expired by `now`, seconds since the epoch; return how many."""
        return delete_some(self.engine, ITEMS.c.expires_at <= now)

    def scrubbed(self, put: PutOp) -> PutOp:
        """Return a put whose value has been scrubbed."""
        if put.value is None or isinstance(put, Scrubbed):
            return put
        value = scrub_value(put.namespace, put.value, self.scrub)
        return Scrubbed(put.namespace, put.key, value, put.index, put.ttl, put.expires_at)

    abatch = _in_thread(batch)
    aget = _in_thread(get)
    asearch = _in_thread(search)
    aput = _in_thread(put)
    adelete = _in_thread(delete)
    alist_namespaces = _in_thread(list_namespaces)


def _upsert_items(connection: Connection, puts: Sequence[PutOp], now: float) -> None:
    rows = _build_rows(connection, puts, now)
    if not rows:
        return
    added = _insert_items(connection)
    replaced = {name: added.excluded[name] for name in _REPLACED}
    connection.execute(
        added.on_conflict_do_update(index_elements=["namespace", "key"], set_=replaced), rows
    )


def _build_rows(
    connection: Connection, puts: Sequence[PutOp], now: float
) -> list[dict[str, object]]:
    return [
        {
            "namespace": ".".join(put.namespace),
            "key": put.key,
            "value": dict(put.value),
            "words": words_of(join_indexed_text(put.value, put.index)),
            "created_at": now,
            "updated_at": now,
            "expires_at": put.expires_at if put.ttl is None else now + 60 * put.ttl,
            "ttl": put.ttl,
            **columns_of(put.value),
        }
        for put in without_erased(connection, puts)
        if put.value is not None
    ]


def _insert_items(connection: Connection) -> "sqlite.Insert | postgresql.Insert":
    on_sqlite = connection.dialect.name == "sqlite"
    return sqlite.insert(ITEMS) if on_sqlite else postgresql.insert(ITEMS)


def _delete_items(connection: Connection, puts: Sequence[PutOp]) -> None:
    """Delete the items of puts without a value."""
    names = [
        {"in_namespace": ".".join(put.namespace), "with_key": put.key}
        for put in puts
        if put.value is None
    ]
    if names:
        named = (
            ITEMS.c.namespace == bindparam("in_namespace"),
            ITEMS.c.key == bindparam("with_key"),
        )
        connection.execute(delete(ITEMS).where(*named), names)


def delete_some(engine: Engine, *conditions: ColumnElement[bool]) -> int:
    """Delete `SWEPT_AT_ONCE` items for which all conditions hold, or all; return how many."""
    some = select(ITEMS.c.id).where(*conditions).limit(SWEPT_AT_ONCE)
    with writing(engine) as connection:
        return connection.execute(delete(ITEMS).where(ITEMS.c.id.in_(some))).rowcount
