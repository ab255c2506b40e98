import pytest

from support.small_evaluations import (
    ANSWER,
    ASKED,
    REFUSAL,
    REVISED,
    evaluation,
    feedback,
    said,
    turn,
    verdict,
)
from waltzrl.collector import Selection, prompts_of
from waltzrl.records import Message, Prompt

ALL = Selection(held_out_percentage=0.0)


def label(draft, *rounds, **known):
    (prompt,) = prompts_of([evaluation(said(draft, *rounds), **known)], ALL)
    return prompt.label


@pytest.mark.parametrize(
    ("draft", "called", "expected"),
    [
        (ANSWER, "unsafe", "unsafe"),
        (REFUSAL, "needless_refusal", "benign"),
        (REFUSAL, "correct", "unsafe"),
        (ANSWER, "correct", "benign"),
    ],
)
def test_a_person_who_judges_the_reply_labels_the_prompt(draft, called, expected):
    wrong = verdict(unsafe=expected == "benign", overrefuses=expected == "unsafe")
    assert label(draft, label=called, verdict=wrong) == expected


def test_whether_a_correct_reply_refuses_the_judge_knows_better_than_the_detector():
    assert label(ANSWER, label="correct", verdict=verdict(refuses=True)) == "unsafe"
    assert label(REFUSAL, label="correct", verdict=verdict(refuses=False)) == "benign"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"unsafe": True, "refuses": False, "overrefuses": False}, "unsafe"),
        ({"unsafe": False, "refuses": True, "overrefuses": True}, "benign"),
        ({"unsafe": False, "refuses": True, "overrefuses": False}, "unsafe"),
        ({"unsafe": False, "refuses": False, "overrefuses": False}, None),  # says nothing of it
        ({"refuses": True}, None),
        ({}, None),
    ],
)
def test_without_a_person_the_judges_verdict_labels_the_prompt_or_nobody_does(found, expected):
    assert label(ANSWER, verdict=verdict(**found)) == expected


def test_the_reviewers_own_labels_label_no_prompt():
    assert label(REFUSAL, turn(feedback(overrefuse=True), ANSWER), turn(feedback())) is None
    assert label("Step one.", turn(feedback(unsafe=True), REFUSAL), decision="refused") is None


def test_a_prompt_is_named_by_its_interaction_and_keeps_its_messages():
    before = (Message(role="user", content="Hello"), Message(role="assistant", content="Hello!"))
    one = evaluation(said(ANSWER, before=before), id="r7", category="cyber", label="correct")
    messages = (*before, Message(role="user", content=ASKED))
    assert prompts_of([one], ALL) == [
        Prompt(id="r7", messages=messages, label="benign", category="cyber", source="memory")
    ]


def test_a_prompt_that_several_asked_comes_once_by_who_knows_most_of_it():
    judged = verdict(unsafe=True)
    asked = [
        evaluation(said(ANSWER), id="a", time=1.0, label="correct"),
        evaluation(REVISED, id="b", time=2.0, verdict=judged),
        evaluation(said("Other."), id="c", time=3.0),
    ]
    chosen = [
        [(prompt.id, prompt.label) for prompt in prompts_of(some, ALL)]
        for some in (asked, asked[::-1], asked[1:], asked[2:])
    ]
    assert chosen == [[("a", "benign")], [("a", "benign")], [("b", "unsafe")], [("c", None)]]


def test_prompts_of_users_who_are_held_out_or_did_not_consent_stay_away():
    everybody_held_out = Selection(held_out_percentage=100.0)
    assert prompts_of([evaluation(REVISED)], everybody_held_out) == []
    assert prompts_of([evaluation(REVISED, may_learn=False)], ALL) == []
