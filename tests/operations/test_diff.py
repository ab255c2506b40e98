import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.operations.desk.diff import Part, find_changes

texts = st.text(alphabet="ab .,\n", max_size=60)


def side(parts, hidden):
    return "".join(part.text for part in parts if part.kind != hidden)


def test_a_change_is_shown_by_words():
    assert find_changes("Pay me back by Friday.", "Please pay me back, by Friday.") == [
        Part("del", "Pay"),
        Part("ins", "Please pay"),
        Part("same", " me back"),
        Part("ins", ","),
        Part("same", " by Friday."),
    ]


def test_one_word_in_common_does_not_tear_a_change_apart():
    assert find_changes("big and loud words", "soft and quiet words") == [
        Part("del", "big and loud"),
        Part("ins", "soft and quiet"),
        Part("same", " words"),
    ]


def test_spaces_and_lines_are_no_changes():
    assert find_changes("one two  three", "one\ntwo three") == [Part("same", "one\ntwo three")]


def test_the_space_before_a_change_is_not_coloured():
    assert find_changes("Hello:\n\nPay me now, friend", "Hello:\n\nPlease pay now, friend") == [
        Part("same", "Hello:"),
        Part("same", "\n\n"),
        Part("del", "Pay me"),
        Part("ins", "Please pay"),
        Part("same", " now, friend"),
    ]


@given(texts, texts)
def test_both_texts_can_be_read_but_for_their_spaces(before, after):
    parts = find_changes(before, after)
    assert "".join(side(parts, "ins").split()) == "".join(before.split())
    assert "".join(side(parts, "del").split()) == "".join(after.split())


def test_texts_without_a_change_have_none():
    assert find_changes("as it was", "as it was") == [Part("same", "as it was")]
    assert find_changes("", "") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a " * 10_000, "a b " * 5_000),
        ("a.\n" * 6_000, "b.\na.\n" * 3_000),
        ("word " * 4_000, "other " * 3_000),
        ("".join(f"{n:x}!" for n in range(4_400)), "".join(f"{n:x}?" for n in range(4_400))),
    ],
    ids=["one word", "one sentence", "nothing in common", "every other word in common"],
)
def test_adversarial_texts_are_compared_quickly(before, after):
    started = time.process_time()
    parts = find_changes(before, after)
    assert time.process_time() - started < 1
    assert "".join(side(parts, "ins").split()) == "".join(before.split())
