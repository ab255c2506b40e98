"""What LangGraph's BaseStore promises: ours on two databases, and LangGraph's own stores.

Where LangGraph's stores disagree with each other `test_store_ours.py` says what ours do: order
without a query, comparing numbers (PostgresStore compares their spelling), `$ne` of a field that is
missing, `created_at` after a second put, and expiry (SqliteStore waits for its sweep).
"""

import time

import pytest
from langgraph.store.base import InvalidNamespaceError

from support.stores import op_classes
from waltzrl.errors import InputError

REFUSED = (InputError, InvalidNamespaceError)


def keys(found):
    return sorted(item.key for item in found)


def test_what_was_put_can_be_got(any_store):
    value = {"text": "tea", "n": 1, "x": 0.5, "yes": True, "none": None, "list": [1, {"a": "é"}]}
    any_store.put(("users", "17"), "likes", value)
    item = any_store.get(("users", "17"), "likes")
    assert (item.namespace, item.key, item.value) == (("users", "17"), "likes", value)
    assert abs(item.created_at.timestamp() - time.time()) < 60
    assert item.updated_at >= item.created_at


def test_what_was_never_put_is_none(any_store):
    any_store.put(("users",), "a", {"n": 1})
    assert any_store.get(("users",), "b") is None
    assert any_store.get(("users", "a"), "a") is None


def test_a_second_put_takes_the_place_of_the_first(any_store):
    any_store.put(("users",), "a", {"n": 1, "old": True})
    any_store.put(("users",), "a", {"n": 2})
    assert any_store.get(("users",), "a").value == {"n": 2}
    assert len(any_store.search(("users",))) == 1


def test_what_is_deleted_is_gone_and_deleting_again_does_no_harm(any_store):
    any_store.put(("users",), "a", {"n": 1})
    any_store.delete(("users",), "a")
    any_store.delete(("users",), "a")
    assert any_store.get(("users",), "a") is None
    assert any_store.search(("users",)) == []


def test_a_search_looks_below_its_namespace_and_not_beside_it(any_store):
    for namespace in [("a",), ("a", "b"), ("a", "b", "c"), ("a", "bc"), ("a-b",), ("A", "b")]:
        any_store.put(namespace, "/".join(namespace), {"n": 1})
    assert keys(any_store.search(("a", "b"))) == ["a/b", "a/b/c"]
    assert keys(any_store.search(("a",))) == ["a", "a/b", "a/b/c", "a/bc"]
    assert len(any_store.search(())) == 6


@pytest.mark.parametrize("label", ["50%", "a_b", "a*b", "[ab]", "ü", "two words", "it's"])
def test_a_label_means_itself_whatever_it_would_mean_in_a_pattern(any_store, label):
    any_store.put((label, "x"), "right", {})
    any_store.put(("50 percent", "x"), "wrong", {})
    any_store.put(("acb", "x"), "wrong", {})
    assert keys(any_store.search((label,))) == ["right"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"color": "red"}, ["a", "c"]),
        ({"color": {"$eq": "red"}}, ["a", "c"]),
        ({"color": {"$ne": "red"}}, ["b"]),
        ({"n": 2}, ["b"]),
        ({"n": {"$gt": 1}}, ["b", "c"]),
        ({"n": {"$gte": 2}}, ["b", "c"]),
        ({"n": {"$lt": 2}}, ["a"]),
        ({"n": {"$lte": 2}}, ["a", "b"]),
        ({"n": {"$gt": 1, "$lt": 3}}, ["b"]),
        ({"n": 3, "color": "red"}, ["c"]),
        ({"ok": True}, ["a"]),
        ({"color": "green"}, []),
        ({"safe": False, "label": "unsafe"}, ["b"]),
        ({"stage": {"$gte": 2}}, ["b", "c"]),
    ],
)
def test_a_filter_keeps_what_fits(any_store, wanted, expected):
    any_store.put(("f",), "a", {"color": "red", "n": 1, "ok": True, "safe": True, "stage": 1})
    blue = {"color": "blue", "n": 2, "ok": False, "safe": False, "stage": 2, "label": "unsafe"}
    any_store.put(("f",), "b", blue)
    any_store.put(("f",), "c", {"color": "red", "n": 3, "ok": False, "safe": True, "stage": 3})
    assert keys(any_store.search(("f",), filter=wanted)) == expected


def test_an_unknown_operator_is_refused(any_store):
    any_store.put(("f",), "a", {"n": 1})
    with pytest.raises((InputError, ValueError), match=r"\$in|operator"):
        any_store.search(("f",), filter={"n": {"$in": [1, 2]}})


def test_pages_add_up_to_the_whole(any_store):
    for number in range(7):
        any_store.put(("p",), str(number), {"n": number})
    pages = [any_store.search(("p",), limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    assert [len(page) for page in pages] == [3, 3, 1, 0]
    assert keys(item for page in pages for item in page) == list("0123456")


def test_a_search_gives_ten_items_unless_told(any_store):
    for number in range(12):
        any_store.put(("p",), str(number), {})
    assert len(any_store.search(("p",))) == 10


@pytest.fixture
def namespaces(any_store):
    for path in ("a b c", "a b d e", "a b d i", "a b f", "a c f", "z"):
        any_store.put(tuple(path.split()), "key", {})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"max_depth": 3, "prefix": ("a", "b")}, ["a b c", "a b d", "a b f"]),
        ({"prefix": ("a", "*", "f")}, ["a b f", "a c f"]),
        ({"suffix": ("f",)}, ["a b f", "a c f"]),
        ({"suffix": ("d", "*")}, ["a b d e", "a b d i"]),
        ({"prefix": ("a", "b"), "suffix": ("e",)}, ["a b d e"]),
        ({"max_depth": 1}, ["a", "z"]),
        ({"limit": 2}, ["a b c", "a b d e"]),
        ({"limit": 2, "offset": 4}, ["a c f", "z"]),
        ({"prefix": ("b",)}, []),
    ],
)
@pytest.mark.usefixtures("namespaces")
def test_namespaces_are_listed(any_store, asked, expected):
    assert [" ".join(namespace) for namespace in any_store.list_namespaces(**asked)] == expected


def test_a_namespace_with_nothing_left_in_it_is_not_listed(any_store):
    any_store.put(("gone",), "a", {})
    any_store.put(("kept",), "a", {})
    any_store.delete(("gone",), "a")
    assert ("kept",) in any_store.list_namespaces()
    if not type(any_store).__name__.startswith("InMemory"):  # which lists it all the same
        assert any_store.list_namespaces() == [("kept",)]


@pytest.mark.parametrize("namespace", [(), ("",), ("a", ""), ("a.b",), ("langgraph",), ("a\0",)])
def test_a_namespace_that_is_none_is_refused(any_store, namespace):
    with pytest.raises(REFUSED):
        any_store.put(namespace, "key", {})
    assert any_store.list_namespaces() == []


def test_the_reads_of_a_batch_see_what_was_there_before_its_puts(any_store):
    get, put = op_classes(any_store)
    any_store.put(("b",), "a", {"n": 1})
    results = any_store.batch(
        [
            put(("b",), "a", {"n": 2}),
            get(("b",), "a"),
            put(("b",), "a", {"n": 3}),
            put(("b",), "new", {"n": 9}),
            get(("b",), "new"),
        ]
    )
    assert [one and one.value for one in results] == [None, {"n": 1}, None, None, None]
    assert any_store.get(("b",), "a").value == {"n": 3}


def test_a_batch_may_delete_what_it_put(any_store):
    _, put = op_classes(any_store)
    any_store.batch([put(("b",), "a", {"n": 2}), put(("b",), "a", None)])
    assert any_store.get(("b",), "a") is None
