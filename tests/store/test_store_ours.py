"""What our store does beyond BaseStore, or where LangGraph's own stores differ."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from support.stores import our_store
from waltzrl.errors import InputError
from waltzrl.store.memory.items import GetOp, ListNamespacesOp, PutOp, SearchOp
from waltzrl.store.memory.store import SWEPT_AT_ONCE
from waltzrl.store.memory.tables import ITEMS

NS = ("notes",)
MILLISECOND = 1 / 60_000
"""In minutes, in which a time to live is given."""


def keys(found):
    return [item.key for item in found]


def until(holds, seconds=30.0):
    """Wait for something to hold."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends


def expiry(store):
    with store.engine.connect() as connection:
        return connection.execute(select(ITEMS.c.expires_at)).scalar()


def test_of_several_that_add_an_item_one_does(store):
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda n: store.add(NS, "a", {"n": n}, None), range(8)))
    assert sum(added) == 1
    assert store.get(NS, "a").value == {"n": added.index(True)}
    assert store.search(NS, query="n") == []


def test_an_item_is_added_in_place_of_one_that_has_expired(store):
    assert store.add(NS, "a", {"n": 1}, time.time() - 1)
    assert store.add(NS, "a", {"n": 2}, time.time() + 60)
    assert not store.add(NS, "a", {"n": 3}, None)
    assert store.get(NS, "a").value == {"n": 2}
    with pytest.raises(InputError, match="cannot be a key"):
        store.add(NS, "\0", {}, None)


def test_without_a_query_the_newest_come_first(store):
    for key in "abc":
        store.put(NS, key, {})
    store.put(NS, "a", {"again": True})
    assert keys(store.search(NS)) == ["a", "c", "b"]


def test_numbers_are_compared_by_value_and_texts_by_code_points(store):
    for key, value in {"9": 9, "10": 10, "ten": "10", "none": None, "yes": True}.items():
        store.put(NS, key, {"n": value, "stage": value})
    for field in ("n", "stage"):
        assert keys(store.search(NS, filter={field: {"$gt": 9}})) == ["10"]
        assert keys(store.search(NS, filter={field: {"$lte": 9.5}})) == ["9"]
        assert keys(store.search(NS, filter={field: {"$gte": "1"}})) == ["ten"]
    store.put(NS, "accent", {"n": "é"})
    assert keys(store.search(NS, filter={"n": {"$gt": "z"}})) == ["accent"]


@pytest.mark.parametrize("field", ["safe", "other"])
def test_a_missing_field_is_null_and_differs_from_any_value(store, field):
    for key, value in {"no": {field: False}, "null": {field: None}, "missing": {}}.items():
        store.put(NS, key, value)
    assert sorted(keys(store.search(NS, filter={field: None}))) == ["missing", "null"]
    assert sorted(keys(store.search(NS, filter={field: {"$ne": False}}))) == ["missing", "null"]
    assert keys(store.search(NS, filter={field: {"$ne": None}})) == ["no"]


@pytest.mark.parametrize("field", ["label", "stage", "other"])
def test_equal_values_of_different_types_are_told_apart(store, field):
    values = {"one": 1, "text": "1", "yes": True, "list": [1], "long": "1" * 500, "big": 2**60}
    for key, value in values.items():
        store.put(NS, key, {field: value})
    for key, value in values.items():
        assert keys(store.search(NS, filter={field: value})) == [key]
    assert keys(store.search(NS, filter={field: 1.0})) == ["one"]


def test_a_filter_reaches_into_objects(store):
    store.put(NS, "a", {"verdict": {"unsafe": True, "score": 3}})
    store.put(NS, "b", {"verdict": {"unsafe": False, "score": 9}})
    store.put(NS, "c", {"verdict": "unsafe"})
    assert keys(store.search(NS, filter={"verdict": {"unsafe": True}})) == ["a"]
    assert keys(store.search(NS, filter={"verdict": {"score": {"$gt": 3}}})) == ["b"]


@pytest.mark.parametrize(
    ("stored", "equal", "different"),
    [
        ({"b": 2, "a": 1}, {"a": 1, "b": 2}, {"a": True, "b": 2}),
        ([1.0, 1e20, 0.5], [1, 1e20, 0.5], [1e20, 1.0, 0.5]),
        ([{"ü": [None], "a": "1"}], [{"a": "1", "ü": [None]}], [{"a": 1, "ü": [None]}]),
    ],
)
def test_lists_and_objects_are_compared_by_value(store, stored, equal, different):
    store.put(NS, "a", {"field": stored})
    store.put(NS, "b", {"field": "text"})
    store.put(NS, "c", {})
    for wanted in (stored, equal):
        assert keys(store.search(NS, filter={"field": {"$eq": wanted}})) == ["a"]
        assert keys(store.search(NS, filter={"field": {"$ne": wanted}})) == ["c", "b"]
    assert store.search(NS, filter={"field": {"$eq": different}}) == []


@pytest.mark.parametrize(
    "wanted",
    [{"n": {"$in": [1]}}, {"n": {"$gt": True}}, {"n": {"$lt": None}}, {'a"b': 1}, {"n": 2**63}],
)
def test_a_filter_that_makes_no_sense_is_refused(store, wanted):
    with pytest.raises(InputError):
        store.search(NS, filter=wanted)


def test_a_hostile_field_name_finds_nothing_and_breaks_nothing(store):
    store.put(NS, "a", {"n": 1})
    for field in ("n') OR 1=1 --", "$.n", "n.m", "*", "[0]", "%s", ":x"):
        assert store.search(NS, filter={field: 1}) == []


def test_a_second_put_keeps_when_the_item_was_created(store):
    store.put(NS, "a", {"n": 1})
    first = store.get(NS, "a")
    store.put(NS, "a", {"n": 2})
    second = store.get(NS, "a")
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at


def test_what_has_expired_is_gone_at_once_and_swept_later(store):
    store.put(NS, "short", {"n": 1}, ttl=200 * MILLISECOND)
    store.put(NS, "long", {"n": 1}, ttl=60)
    assert keys(store.search(NS, refresh_ttl=False)) == ["long", "short"]
    until(lambda: store.get(NS, "short", refresh_ttl=False) is None)
    assert keys(store.search(NS)) == ["long"]
    assert store.sweep(time.time()) == 1
    assert store.sweep(time.time()) == 0
    assert store.get(NS, "long") is not None


def test_much_that_has_expired_is_swept_in_several_transactions(store):
    end = time.time() + 60
    store.batch([PutOp(NS, f"{n}", {}, expires_at=end) for n in range(SWEPT_AT_ONCE + 1)])
    assert [store.sweep(end + 1) for _ in range(3)] == [SWEPT_AT_ONCE, 1, 0]


def test_a_namespace_in_which_all_has_expired_is_not_listed(store):
    store.put(NS, "short", {}, ttl=MILLISECOND)
    until(lambda: store.list_namespaces() == [])


@pytest.mark.parametrize("read", ["get", "search"])
def test_reading_prolongs_the_life_of_what_has_a_time_to_live(store, read):
    def look(*, refresh_ttl):
        if read == "get":
            store.get(NS, "a", refresh_ttl=refresh_ttl)
        else:
            store.search(NS, refresh_ttl=refresh_ttl)

    store.put(NS, "a", {}, ttl=60)
    first = expiry(store)
    look(refresh_ttl=False)
    assert expiry(store) == first
    look(refresh_ttl=True)
    assert expiry(store) > first


def test_a_fixed_end_is_not_put_off_by_reading(store):
    end = time.time() + 60
    store.batch([PutOp(NS, "a", {}, expires_at=end)])
    assert store.get(NS, "a") is not None
    assert expiry(store) == pytest.approx(end)
    assert store.sweep(end + 1) == 1


@pytest.mark.promise(
    "Requirements", "MemoryComplianceLayer: before_write, delete_user_data, MemoryPIIFinding"
)
def test_nothing_enters_unscanned(database_url):
    mail = "ada@example.com"
    with our_store(database_url, scrub=lambda text: text.replace(mail, "[MAIL]")) as store:
        value = {mail: [mail, {"deep": [f"to {mail}!"]}], "id": mail, "n": 3}
        store.put(NS, "a", value)
        store.batch([PutOp(NS, "b", value)])
        asyncio.run(store.aput(NS, "c", value))
        store.amend(NS, "c", {"more": mail})
        clean = {"[MAIL]": ["[MAIL]", {"deep": ["to [MAIL]!"]}], "id": "[MAIL]", "n": 3}
        assert [store.get(NS, key).value for key in "ab"] == [clean, clean]
        assert store.get(NS, "c").value == clean | {"more": "[MAIL]"}
        assert store.search(NS, query="ada") == []


def test_in_records_of_ours_only_what_machines_made_is_left_alone(database_url):
    def value(id_, scanned):
        said = {"prompt": {"id": id_, "source": scanned}, "draft": {"id": scanned}}
        return {"id": id_, "request_hash": id_, "who": scanned, "collaboration": said}

    with our_store(database_url, scrub=lambda text: text.replace("77", "##")) as store:
        namespace = ("safety", "waltzrl", "evaluations")
        store.put(namespace, "a", value("77", "77"))
        assert store.get(namespace, "a").value == value("77", "##")


@pytest.mark.parametrize("value", [b"ada", {1, 2}, object(), GetOp(NS, "ada")])
def test_a_value_that_is_not_json_is_refused(store, value):
    with pytest.raises(InputError, match="the memory stores strings") as refused:
        store.put(NS, "a", {"x": [value]})
    assert "ada" not in str(refused.value)  # it may be somebody's


@pytest.mark.parametrize("value", ["tea", ["tea"], 7])
def test_a_value_without_fields_is_refused(store, value):
    with pytest.raises(InputError, match="a value must be an object, got"):
        store.put(NS, "a", value)


@pytest.mark.parametrize("namespace", ["users", ["users"]])
def test_a_namespace_that_is_no_tuple_is_refused(store, namespace):
    for ask in (store.search, lambda n: store.get(n, "a"), lambda n: store.put(n, "a", {})):
        with pytest.raises(InputError, match="tuple of labels"):
            ask(namespace)


def test_what_databases_cannot_hold_is_replaced(store):
    store.put(NS, "a", {"text": "nul \0, half \ud83d, whole \U0001f600"})
    assert store.get(NS, "a").value == {"text": "nul \ufffd, half \ufffd, whole \U0001f600"}


@pytest.mark.parametrize("key", ["nul\0", "half\ud800", "k" * 600])
def test_a_key_that_a_database_cannot_hold_is_refused(store, key):
    with pytest.raises(InputError, match="key"):
        store.put(NS, key, {})


def test_a_batch_is_whole_or_never_happened(store):
    with pytest.raises(InputError):
        store.batch([PutOp(NS, "a", {}), SearchOp(NS, filter={"n": {"$in": []}})])
    assert store.get(NS, "a") is None
    with pytest.raises(InputError, match="limit"):
        store.batch([ListNamespacesOp(limit=-1)])


def test_amending_changes_some_fields_and_neither_the_end_nor_the_words(store):
    store.batch([PutOp(NS, "a", {"n": 1, "text": "tea"}, expires_at=time.time() + 60)])
    before = expiry(store)
    assert store.amend(NS, "a", {"label": "unsafe", "n": 2})
    assert store.get(NS, "a").value == {"n": 2, "text": "tea", "label": "unsafe"}
    assert keys(store.search(NS, filter={"label": "unsafe"}, query="tea")) == ["a"]
    assert expiry(store) == before
    assert not store.amend(NS, "b", {"n": 2})


def test_the_async_twins_do_the_same(store):
    async def story():
        await store.aput(NS, "a", {"n": 1})
        got = await store.aget(NS, "a")
        (found,) = await store.asearch(NS, filter={"n": 1})
        listed = await store.alist_namespaces()
        (again,) = await store.abatch([GetOp(NS, "a")])
        await store.adelete(NS, "a")
        return got, found.value, listed, again, await store.aget(NS, "a")

    got, value, listed, again, gone = asyncio.run(story())
    assert got == again
    assert (value, listed, gone) == ({"n": 1}, [NS], None)
