"""Finding by words, and by an index."""

import pytest
from sqlalchemy import event

from support.stores import our_store

NS = ("notes",)


def keys(found):
    return [item.key for item in found]


def test_a_query_ranks_what_has_its_words(store):
    store.put(NS, "once", {"text": "Tea is a drink. So is coffee, and so is milk with honey."})
    store.put(NS, "twice", {"title": "Tea", "turns": [{"said": "TEA, tea!"}]})
    store.put(NS, "never", {"text": "teapots"})
    found = store.search(NS, query="tea?")
    assert keys(found) == ["twice", "once"]
    assert found[0].score > found[1].score
    assert keys(store.search(NS, query="honey pie")) == ["once"]
    assert keys(store.search(NS, query="tea", filter={"title": "Tea"})) == ["twice"]
    assert store.search(("elsewhere",), query="tea") == []


@pytest.mark.parametrize("query", ["", "?!", '"', "tea AND NOT", "tea:*", "a & | b", "x" * 5000])
def test_a_query_is_words_whatever_is_in_it(store, query):
    store.put(NS, "a", {"text": "tea"})
    assert keys(store.search(NS, query=query)) == (["a"] if "tea" in query else [])


def test_words_follow_their_item(store):
    store.put(NS, "a", {"text": "tea"})
    store.put(NS, "a", {"text": "coffee"})
    assert store.search(NS, query="tea") == []
    assert keys(store.search(NS, query="coffee")) == ["a"]
    store.delete(NS, "a")
    store.put(NS, "b", {"text": "milk"})
    assert store.search(NS, query="coffee") == []


def test_words_in_other_scripts_are_found(store):
    store.put(NS, "a", {"text": "Grüße aus Łódź, Καλημέρα, おはよう"})
    for word in ("grüße", "ŁÓDŹ", "καλημέρα", "おはよう"):
        assert keys(store.search(NS, query=word)) == ["a"], word


def test_an_index_says_which_texts_are_found(store):
    value = {"task": "tea", "turns": [{"said": "milk"}, {"said": "honey"}], "note": "rum"}
    store.put(NS, "none", value, index=False)
    store.put(NS, "paths", value, index=["task", "turns[-1].said", "missing[3].x"])
    store.put(NS, "each", value, index=["turns[*].said"])
    assert keys(store.search(NS, query="tea")) == ["paths"]
    assert keys(store.search(NS, query="milk")) == ["each"]
    assert sorted(keys(store.search(NS, query="honey"))) == ["each", "paths"]
    assert store.search(NS, query="rum") == []


@pytest.mark.parametrize("field", ["request_hash", "subject", "release", "label", "interaction"])
def test_a_search_by_what_is_looked_up_uses_an_index(sqlite_url, field):
    with our_store(sqlite_url) as store:
        asked = []
        event.listen(store.engine, "before_cursor_execute", lambda *sent: asked.append(sent[2:4]))
        store.search(NS, filter={field: "x"})
        ((statement, parameters),) = [one for one in asked if one[0].startswith("SELECT")]
        with store.engine.connect() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            assert any(f"items_{field} " in step.detail for step in plan)
