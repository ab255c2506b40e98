"""The one namespaced store: LangGraph's BaseStore signature, on SQLite or PostgreSQL.

    put(("users", "17"), "likes", {"tea": True})  ->  get, search, list_namespaces, delete

A batch is one transaction: its reads see what was there before it, then its puts are made.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from waltzrl.errors import InputError
from waltzrl.memory import writes
from waltzrl.memory.items import (
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
    SearchItem,
    SearchOp,
    check,
)
from waltzrl.memory.scrubbing import scrubbed
from waltzrl.memory.search import answer, get
from waltzrl.memory.vectors import Embed, nearest, packed
from waltzrl.memory.words import texts_of
from waltzrl.storage.database import reading, writing
from waltzrl.storage.migrations import prepare


@dataclass(frozen=True, slots=True)
class Scrubbed(PutOp):
    """A put whose value has been scanned; only `MemoryStore.scrubbed` makes it."""


class MemoryStore:
    """Items under namespaces, kept in a database."""

    def __init__(
        self, engine: Engine, *, scrub: Callable[[str], str], embed: Embed | None = None
    ) -> None:
        """Open the store, and bring its tables up to date.

        Args:
            engine: from `waltzrl.storage.database.open_database`.
            scrub: takes out of a text what must not be kept; every text goes through it once.
            embed: turns texts into vectors; None when `nearest` is never asked.

        Raises:
            StorageError: the database cannot be reached, or is of a newer version.
        """
        self.engine = engine
        self.scrub = scrub
        self._embed = embed
        prepare(engine)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do all of it, or nothing.

        Returns:
            [ops] an item or None for a get, a list for a search or a list of namespaces, None
            for a put.

        Raises:
            InputError: a name or a filter is wrong.
            StorageError: the database failed.
        """
        ops = list(ops)
        for op in ops:
            check(op)
        put = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}  # the last wins
        puts = [self.scrubbed(op) for _, op in sorted(put.items())]  # in one order: no deadlocks
        vectors = self._embedded(puts)
        now = time.time()
        read: list[int] = []
        with (writing if puts else reading)(self.engine) as connection:
            results = [answer(connection, op, now, read) for op in ops]
            writes.forget(connection, puts)
            writes.keep(connection, puts, now)
            writes.keep_vectors(connection, vectors)
        if read:
            with writing(self.engine) as connection:
                writes.prolong(connection, read, now)
        return results

    def get(self, namespace: Namespace, key: str, *, refresh_ttl: bool = True) -> Item | None:
        """Return an item; None when there is none, or it has expired."""
        found = self.batch([GetOp(namespace, key, refresh_ttl)])[0]
        assert found is None or isinstance(found, Item)
        return found

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
    ) -> list[SearchItem]:
        """Return the items under a namespace that fit: the best first, without a query the newest.

        Raises:
            InputError: the filter has an unknown operator, or the page is none.
        """
        asked = SearchOp(namespace_prefix, filter, limit, offset, query, refresh_ttl)
        found = self.batch([asked])[0]
        assert isinstance(found, list)
        return [one for one in found if isinstance(one, SearchItem)]

    def put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Json],
        index: Index = None,
        *,
        ttl: float | None = None,
    ) -> None:
        """Keep a value, in the place of any before it.

        Raises:
            InputError: the namespace or the key is no name.
        """
        self.batch([PutOp(namespace, key, value, index, ttl)])

    def delete(self, namespace: Namespace, key: str) -> None:
        """Forget an item, if it is there."""
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
        asked = []
        if prefix:
            asked.append(MatchCondition("prefix", prefix))
        if suffix:
            asked.append(MatchCondition("suffix", suffix))
        found = self.batch([ListNamespacesOp(tuple(asked), max_depth, limit, offset)])[0]
        assert isinstance(found, list)
        return [one for one in found if isinstance(one, tuple)]

    def amend(self, namespace: Namespace, key: str, changes: Mapping[str, Json]) -> bool:
        """Replace top-level fields of a value; when the item expires stays as it is.

        Returns:
            Whether the item was there.
        """
        op = GetOp(namespace, key)
        check(op)
        clean = scrubbed(namespace, changes, self.scrub)
        now = time.time()
        with writing(self.engine) as connection:
            found = get(connection, op, now, locked=True)
            if found is None:
                return False
            writes.amend(connection, found.id, {**found.value, **clean}, now)
        return True

    def nearest(self, namespace: Namespace, text: str, *, limit: int = 10) -> list[SearchItem]:
        """Return the items under a namespace that mean most nearly the same as a text.

        Raises:
            InputError: the store has no embedding model.
        """
        if self._embed is None:
            raise InputError("nearest needs vectors; open the MemoryStore with `embed`")
        (vector,) = packed(self._embed([self.scrub(text)]))
        with reading(self.engine) as connection:
            return nearest(connection, namespace, vector, limit, time.time())

    @property
    def embeds(self) -> bool:
        """Whether `nearest` can be asked."""
        return self._embed is not None

    def sweep(self, now: float) -> int:
        """Delete what has expired by `now`, seconds since the epoch; return how many items."""
        with writing(self.engine) as connection:
            return writes.sweep(connection, now)

    def scrubbed(self, put: PutOp) -> PutOp:
        """Return a put whose value has been scanned."""
        if put.value is None or isinstance(put, Scrubbed):
            return put
        value = scrubbed(put.namespace, put.value, self.scrub)
        return Scrubbed(put.namespace, put.key, value, put.index, put.ttl, put.expires_at)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Like `batch`, in a thread."""
        return await asyncio.to_thread(self.batch, ops)

    async def aget(
        self, namespace: Namespace, key: str, *, refresh_ttl: bool = True
    ) -> Item | None:
        """Like `get`, in a thread."""
        return await asyncio.to_thread(self.get, namespace, key, refresh_ttl=refresh_ttl)

    async def asearch(
        self,
        namespace_prefix: Namespace,
        /,
        *,
        query: str | None = None,
        filter: Filter | None = None,  # noqa: A002 - LangGraph's name
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool = True,
    ) -> list[SearchItem]:
        """Like `search`, in a thread."""
        return await asyncio.to_thread(
            self.search,
            namespace_prefix,
            query=query,
            filter=filter,
            limit=limit,
            offset=offset,
            refresh_ttl=refresh_ttl,
        )

    async def aput(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Json],
        index: Index = None,
        *,
        ttl: float | None = None,
    ) -> None:
        """Like `put`, in a thread."""
        await asyncio.to_thread(self.put, namespace, key, value, index, ttl=ttl)

    async def adelete(self, namespace: Namespace, key: str) -> None:
        """Like `delete`, in a thread."""
        await asyncio.to_thread(self.delete, namespace, key)

    async def alist_namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Namespace]:
        """Like `list_namespaces`, in a thread."""
        return await asyncio.to_thread(
            self.list_namespaces,
            prefix=prefix,
            suffix=suffix,
            max_depth=max_depth,
            limit=limit,
            offset=offset,
        )

    def _embedded(self, puts: Sequence[PutOp]) -> list[tuple[PutOp, bytes | None]]:
        """Return a vector for each value with texts to be found by, and None for the others."""
        if self._embed is None:
            return []
        texts = [(put, texts_of(put.value, put.index)) for put in puts if put.value is not None]
        wordy = [text for _, text in texts if text]
        vectors = iter(packed(self._embed(wordy)) if wordy else ())
        return [(put, next(vectors) if text else None) for put, text in texts]
