"""Whatever is done to a store, it behaves like a dict."""

from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOTS = count()
"""A namespace of its own for each example."""

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
halves = st.integers(-5, 5).map(lambda n: n / 2)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), halves, texts)
lists = st.lists(st.integers(0, 1) | texts, max_size=2)
fields = st.sampled_from(["n", "label", "safe", "stage", "time", "ü"])
values = st.dictionaries(fields, scalars | lists)
namespaces = st.sampled_from([("a",), ("a", "b"), ("ab",), ("a", "b", "c")])
keys = st.sampled_from(["k", "K", "k ", "%"])
orders = st.dictionaries(
    st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), st.integers(-2, 2) | texts, min_size=1
)
differs = (scalars | lists).map(lambda one: {"$ne": one})
filters = st.dictionaries(fields, scalars | lists | differs | orders, max_size=2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), namespaces, keys, values),
        st.tuples(st.just("delete"), namespaces, keys),
        st.tuples(st.just("get"), namespaces, keys),
        st.tuples(st.just("search"), namespaces, filters),
    ),
    max_size=12,
)


def kind(value):
    return float if type(value) is int else type(value)


def holds(value, name, operand):
    alike = kind(value) is kind(operand)
    match name:
        case "$eq":
            return alike and value == operand
        case "$ne":
            return not (alike and value == operand)
        case "$gt":
            return alike and value > operand
        case "$gte":
            return alike and value >= operand
        case "$lt":
            return alike and value < operand
        case "$lte":
            return alike and value <= operand


def fits(value, wanted):
    return all(
        holds(value.get(field), name, operand)
        for field, asked in wanted.items()
        for name, operand in (asked if isinstance(asked, dict) else {"$eq": asked}).items()
    )


def looked_up(model, prefix, wanted):
    """Return (namespace, key) of what fits, the last put first."""
    return [
        place
        for place, value in reversed(model.items())
        if place[0][: len(prefix)] == prefix and fits(value, wanted)
    ]


@pytest.mark.promise("Requirements", "memory: three namespaces and schemas")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(taken=steps)
def test_a_store_behaves_like_a_dict(store, taken):
    root = f"r{next(ROOTS)}"
    model = {}
    for step, namespace, *rest in taken:
        here = (root, *namespace)
        match step, rest:
            case "put", (key, value):
                store.put(here, key, value)
                model.pop((here, key), None)
                model[here, key] = value
            case "delete", (key,):
                store.delete(here, key)
                model.pop((here, key), None)
            case "get", (key,):
                item = store.get(here, key)
                assert (item and item.value) == model.get((here, key))
            case "search", (wanted,):
                found = store.search(here, filter=wanted)
                expected = looked_up(model, here, wanted)[:10]
                assert [(item.namespace, item.key) for item in found] == expected
                assert [item.value for item in found] == [model[place] for place in expected]
    assert store.list_namespaces(prefix=(root,)) == sorted({place[0] for place in model})
