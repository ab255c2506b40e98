import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.agents.feedback_json import (
    LONGEST_REPLY,
    LONGEST_TEXT,
    read_feedback,
    write_feedback,
)
from waltzrl.records import Reply

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates included
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
)
KEYS = ("reasoning", "unsafe", "overrefuse", "is_unsafe", "is_overrefusing", "feedback")


def read(text):
    return read_feedback(Reply(text=text))


def written(**fields):
    return json.dumps({"unsafe": False, "overrefuse": False} | fields)


@pytest.mark.promise("Requirements", "WaltzRLFeedbackAgent: evaluate_response")
@given(ANY_TEXT, ANY_TEXT, st.booleans(), st.booleans())
def test_what_was_written_is_read_back_whatever_stands_around_it(before, text, unsafe, overrefuse):
    assessment = write_feedback(reasoning="r", unsafe=unsafe, overrefuse=overrefuse, text=text)
    feedback = read(f"{before.replace('{', '(')}{assessment} That is all.")
    assert (feedback.unsafe, feedback.overrefuse, feedback.well_formed) == (
        unsafe,
        overrefuse,
        True,
    )
    assert feedback.text == text.encode("utf-8", "replace").decode()[:LONGEST_TEXT]


@pytest.mark.promise("Requirements", "WaltzRLFeedbackAgent: evaluate_response")
@given(ANY_TEXT | st.text('{}[]":,\\ 0123456789etrufalsn'))
def test_garbage_asks_for_nothing(text):
    feedback = read(text)
    assert not feedback.asks_for_revision
    assert not feedback.well_formed


@pytest.mark.promise("Requirements", "FeedbackResult, SafetyIssue, SafetyAnalysis")
@given(st.dictionaries(st.sampled_from(KEYS), JSON_VALUES))
def test_an_object_counts_only_with_two_boolean_labels_and_texts(fields):
    feedback = read(json.dumps(fields))
    labels = [
        [fields[key] for key in pair if key in fields]
        for pair in (("unsafe", "is_unsafe"), ("overrefuse", "is_overrefusing"))
    ]
    sound = all(len(given) == 1 and isinstance(given[0], bool) for given in labels)
    texts = all(isinstance(fields.get(key, ""), str) for key in ("feedback", "reasoning"))
    assert feedback.well_formed == (sound and texts)
    assert feedback.text.encode("utf-8").decode() == feedback.text  # a tokenizer can read it
    assert feedback.reasoning.encode("utf-8").decode() == feedback.reasoning


def test_a_lone_surrogate_becomes_a_question_mark():
    assert read(r'{"unsafe": true, "overrefuse": false, "feedback": "a\ud800b"}').text == "a?b"


def test_the_other_names_of_the_labels_are_read():
    feedback = read('{"is_unsafe": true, "is_overrefusing": false, "feedback": "Decline."}')
    assert (feedback.unsafe, feedback.overrefuse, feedback.text) == (True, False, "Decline.")


@pytest.mark.parametrize("label", ["1", '"true"', "null", "[]", "0.0"])
def test_a_label_that_is_not_a_boolean_is_not_guessed(label):
    assert not read(f'{{"unsafe": {label}, "overrefuse": false}}').well_formed


def test_of_verdicts_that_agree_the_last_ones_words_count():
    feedback = read(
        written(unsafe=True, feedback="a") + " So: " + written(unsafe=True, feedback="b")
    )
    assert (feedback.unsafe, feedback.text) == (True, "b")


def test_verdicts_that_contradict_each_other_are_none():
    for two in ((True, False), (False, True)):
        assert not read(" no, rather: ".join(written(unsafe=unsafe) for unsafe in two)).well_formed


def test_a_reply_that_was_cut_counts_only_when_its_verdict_is_the_last_thing_in_it():
    for after, counts in (("", True), ("\n```\n", True), (" For it", False), (', "x', False)):
        cut = read_feedback(Reply(text=written(unsafe=True) + after, finish="length"))
        assert cut.well_formed == counts
    assert not read(written() + "x" * LONGEST_REPLY).well_formed


def test_a_label_outside_of_the_verdict_makes_it_doubtful():
    assert not read(written() + ', "unsafe": true}').well_formed
    assert read(written() + ' where "unsafe" means that it does harm').well_formed


def test_objects_without_labels_are_passed_over():
    assert read('{"note": 1} {thinking} ' + written(unsafe=True) + " { } {}").unsafe


@pytest.mark.parametrize(
    "before",
    [
        '{"reasoning": "it says ',
        '{"unsafe": true, "reasoning": ',
        "{'unsafe': True, 'reasoning': '",
        "{unsafe: true, reasoning: ",
        "{“unsafe”: true, “reasoning”: “",
        '{"unsafe": true}',
        '{"unsafe": "true", "overrefuse": false}',
        '{"unsafe": false, "unsafe": true, "overrefuse": false}',
    ],
)
def test_nothing_counts_beside_a_verdict_that_is_broken(before):
    assert not read(before + written()).well_formed
    assert not read(f"{before} is {written()}, which is a trick.").well_formed


def test_an_object_inside_a_text_does_not_count():
    inner = written(unsafe=True)
    assert not read(written(feedback=f"Never say {inner}")).unsafe


@pytest.mark.parametrize(
    "text",
    [
        '{"unsafe": ' + "9" * 5000 + "}",
        '{"a":' * 4000,
        "[" * 20_000,
        "{" * 20_000,
        '{"unsafe": true, "overrefuse": false, "feedback": "cut he',
    ],
)
def test_numbers_too_long_and_nests_too_deep_are_unreadable_not_errors(text):
    assert not read(text).well_formed


def test_texts_are_cut_and_what_lies_too_far_back_is_not_read():
    assert len(read(written(feedback="x" * 10_000)).text) == LONGEST_TEXT
    assert not read(" " * LONGEST_REPLY + written(unsafe=True)).well_formed
