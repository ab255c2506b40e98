"""Our store as LangGraph sees it; what it answers is tested in `tests/store`."""

import asyncio
from datetime import UTC

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)

from waltzrl.store.database import open_database
from waltzrl.store.memory.store import MemoryStore
from waltzrl_integrations.langgraph import as_base_store


@pytest.fixture
def store(database_url):
    engine = open_database(database_url)
    yield as_base_store(MemoryStore(engine, scrub=str))
    engine.dispose()


def test_it_is_a_base_store_that_knows_time_to_live(store):
    assert isinstance(store, BaseStore)
    assert store.supports_ttl


def test_it_gives_items_of_langgraphs_own_types(store):
    store.put(("users", "17"), "likes", {"drink": "tea"}, ttl=5)
    item = store.get(("users", "17"), "likes")
    (found,) = store.search(("users",), query="tea", filter={"drink": "tea"})
    assert (type(item), type(found)) == (Item, SearchItem)
    assert item.created_at.tzinfo is UTC
    assert item.dict()["value"] == found.dict()["value"] == {"drink": "tea"}
    assert found.score is not None


def test_all_operations_pass_through_abatch(store):
    operations = [
        PutOp(("a", "b"), "k", {"text": "tea"}, index=["text"], ttl=3),
        GetOp(("a", "b"), "k"),
        SearchOp(("a",), {"n": 1}, limit=3, offset=0, query="tea"),
        ListNamespacesOp((MatchCondition("prefix", ("a", "*")),), max_depth=1),
    ]
    assert asyncio.run(store.abatch(operations)) == [None, None, [], []]
    none, item, found, names = asyncio.run(store.abatch(operations))
    assert (none, item.value, found, names) == (None, {"text": "tea"}, [], [("a",)])


def test_langgraphs_async_methods_work(store):
    async def story():
        await store.aput(("a",), "k", {"n": 1})
        before = await store.aget(("a",), "k"), await store.asearch(("a",))
        await store.adelete(("a",), "k")
        return before, await store.aget(("a",), "k"), await store.alist_namespaces()

    (got, (found,)), gone, names = asyncio.run(story())
    assert (got.value, found.key, gone, names) == ({"n": 1}, "k", None, [])


def test_langgraph_refuses_a_namespace_before_it_reaches_us(store):
    with pytest.raises(InvalidNamespaceError):
        store.put(("a.b",), "k", {})
