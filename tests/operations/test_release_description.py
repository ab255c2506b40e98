"""What bundles are and how they differ, in words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small_console import PLAN
from support.small_releases import DESCRIPTION
from waltzrl.errors import InputError
from waltzrl.gateway.description import (
    BundleDescription,
    describe_differences,
    made_by,
    without_secrets,
)
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.store.database import open_database

RULES = {"crime/a": "1", "crime/b": "2"}
BEFORE = BundleDescription(
    recipe={"threshold": 0.7, "rules": ["crime"], "upstream": {"url": "http://a/v1"}},
    rules=RULES,
    parts={"rules": "rules@1", "feedback weights": "guard@1"},
    version="0.1.0",
)


def changed(recipe=None, rules=None, parts=None):
    return BundleDescription(
        recipe=BEFORE.recipe | (recipe or {}),
        rules=RULES if rules is None else rules,
        parts=BEFORE.parts | (parts or {}),
        version="0.1.0",
    )


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (changed(), ()),
        (changed({"threshold": 0.8}), ("threshold 0.7 -> 0.8",)),
        (
            changed({"upstream": {"url": "http://b/v1"}}),
            ("upstream.url http://a/v1 -> http://b/v1",),
        ),
        (changed({"feedback": {"model": "guard"}}), ("feedback.model not set -> guard",)),
        (changed({"rules": ["hate", "crime"]}), ("rules: added hate",)),
        (changed({"rules": []}), ("rules: removed crime",)),
        (changed({"refusals": {"default": {"en": "No. " * 30}}}), ("refusals.default.en changed",)),
        (changed({"allow_calls": []}), ()),  # an empty list is not set either
        (
            changed(rules=RULES | {"hate/c": "3", "hate/d": "4", "hate/e": "5"}),
            ("3 rules added: hate/c, hate/d, hate/e",),
        ),
        (changed(rules={"crime/a": "9"}), ("1 rule removed: crime/b", "1 rule changed: crime/a")),
        (changed(parts={"rules": "rules@2"}), ("words of the rules changed",)),
        (
            changed(parts={"feedback weights": "guard@2"}),
            ("feedback weights guard@1 -> guard@2",),
        ),
    ],
)
def test_a_difference_is_told_in_words(after, words):
    assert describe_differences(BEFORE, after) == words


def test_of_many_names_the_first_are_told_and_the_rest_counted():
    rules = RULES | {f"hate/{n}": "1" for n in range(7)}
    assert describe_differences(BEFORE, changed(rules=rules)) == (
        "7 rules added: hate/0, hate/1, hate/2, hate/3, hate/4 and 2 more",
    )


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.lists(st.integers())
RECIPES = st.dictionaries(st.text(min_size=1, max_size=4), VALUES, max_size=4)


@given(RECIPES, RECIPES)
def test_equal_bundles_differ_in_nothing_and_each_difference_is_told_both_ways(one, other):
    first, second = BundleDescription(recipe=one), BundleDescription(recipe=other)
    assert describe_differences(first, first) == ()
    assert len(describe_differences(first, second)) == len(describe_differences(second, first))


@given(st.text("abcXYZ019", min_size=8, max_size=20), st.integers(0, 3))
def test_no_credential_of_a_url_is_kept(secret, depth):
    table: object = f"https://user:{secret}@models.example/v1?api-key={secret}"
    for _ in range(depth):
        table = {"upstream": [table]}
    kept = without_secrets({"place": table})
    assert secret not in json.dumps(kept)
    assert "models.example" in json.dumps(kept)


@pytest.fixture
def engine(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/memory.db")
    yield engine
    engine.dispose()


def test_a_bundle_is_known_with_who_made_it_and_keeps_its_first_description(engine):
    book = ReleaseBook(engine)
    book.add_bundle("a", "{}", BEFORE, by="ada")
    book.add_bundle("a", "{}", changed({"threshold": 0.9}), by="bob")
    found = book.stored_bundle("a")
    assert (found.description, made_by(found), found.base_since) == (BEFORE, "ada", None)
    assert book.stored_bundle("b") is None


def test_the_moves_of_a_bundle_are_those_of_its_releases_on_either_side(engine):
    book = ReleaseBook(engine)
    for name in ("a", "b", "c"):
        book.add_bundle(name, "{}", DESCRIPTION)
    first = book.propose("b", "a", PLAN, "ada", "to try it")
    book.move(first, "roll_back", "bob", "worse")
    second = book.propose("c", "a", PLAN, "ada", "again")
    assert [(one.id, move.action, move.by) for one, move in book.moves_of("a")] == [
        (first.id, "propose", "ada"),
        (first.id, "roll_back", "bob"),
        (second.id, "propose", "ada"),
    ]
    assert [move.action for _, move in book.moves_of("b")] == ["propose", "roll_back"]
    assert book.moves_of("d") == []


def test_the_last_moves_are_told_by_who_made_them(engine):
    book = ReleaseBook(engine)
    assert book.last_moves() == {}
    for name in ("a", "b"):
        book.add_bundle(name, "{}", DESCRIPTION)
    release = book.propose("b", "a", PLAN, "ada", "to try it")
    held = book.move(release, "hold", "waltzrl", "it cannot be loaded")
    with pytest.raises(InputError):
        book.move(held, "advance", "ada", "x")
    moves = book.last_moves()
    assert set(moves) == {("propose", "person"), ("hold", "itself")}
    assert moves["propose", "person"] <= moves["hold", "itself"]
