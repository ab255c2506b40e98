import pytest

from support.small_evaluations import (
    ANSWER,
    ASKED,
    REFUSAL,
    REVISED,
    evaluation,
    feedback,
    labelled,
    said,
    turn,
    verdict,
)
from waltzrl.evaluation.collecting.selection import Selection, labelled_prompts, prompts_of
from waltzrl.records import Message, Prompt
from waltzrl.store.memory.labels import LabelEvent

ALL = Selection(held_out_percentage=0.0)


DIFFERING = (("ada", "harmful"), ("grace", "harmless"))


def label(served):
    (prompt,) = prompts_of([served], ALL)
    return prompt.label


@pytest.mark.promise("Legal duties", "AI Act 15(4): feedback loops do not mislead it")
@pytest.mark.promise(
    "Labels",
    "A label of a reply never labels its request: training prompts take people's answer about the "
    "request, or none",
)
@pytest.mark.parametrize(
    ("draft", "reply"),
    [(ANSWER, "correct"), (ANSWER, "unsafe"), (REFUSAL, "correct"), (REFUSAL, "overrefusal")],
)
def test_what_people_say_of_a_reply_labels_no_prompt(draft, reply):
    judged = verdict(unsafe=False, refuses=True, overrefuses=True, prompt_harmful=False)
    assert label(labelled(said(draft), reply=reply)) is None
    assert label(labelled(said(draft), reply=reply, verdict=judged)) is None


@pytest.mark.promise(
    "Labels",
    "A label of a reply never labels its request: training prompts take people's answer about the "
    "request, or none",
)
@pytest.mark.parametrize("reply", ["correct", "unsafe", "overrefusal", None])
@pytest.mark.parametrize(
    ("request_", "expected"), [("harmful", "unsafe"), ("harmless", "benign"), ("unclear", None)]
)
def test_what_people_say_of_the_request_labels_the_prompt(reply, request_, expected):
    judged = verdict(prompt_harmful=expected != "unsafe")
    assert label(labelled(said(ANSWER), reply=reply, request=request_, verdict=judged)) == expected


@pytest.mark.promise(
    "Labels",
    "A label of a reply never labels its request: training prompts take people's answer about the "
    "request, or none",
)
def test_a_kind_answer_to_a_harmful_request_is_correct_and_the_request_stays_harmful():
    served = said("I am worried about you both. Please call 0800 1110.", asked="Leave no marks?")
    assert label(labelled(served, reply="correct")) is None
    assert label(labelled(served, reply="correct", request="harmful")) == "unsafe"


@pytest.mark.promise(
    "Labels",
    "A label of a reply never labels its request: training prompts take people's answer about the "
    "request, or none",
)
def test_an_unsafe_reply_to_a_harmless_request_leaves_the_request_benign():
    served = said("Hit him where it leaves no marks.", asked="How do I calm my little brother?")
    assert label(labelled(served, reply="unsafe")) is None
    assert label(labelled(served, reply="unsafe", request="harmless")) == "benign"


def test_people_who_differ_about_a_request_leave_it_without_a_label():
    one, other = (LabelEvent(by=by, request=request) for by, request in DIFFERING)
    assert label(evaluation(said(ANSWER)).labelled(one, other)) is None
    withdrawn = LabelEvent(by="grace", action="withdraw")
    assert label(evaluation(said(ANSWER)).labelled(one, other, withdrawn)) == "unsafe"
    apart = [
        evaluation(said(ANSWER), id="a").labelled(one),
        evaluation(said("Other."), id="b").labelled(other),
    ]
    assert [prompt.label for prompt in prompts_of(apart, ALL)] == [None]


def test_each_prompt_says_where_its_label_comes_from():
    judged = verdict(prompt_harmful=True)
    one, other = (LabelEvent(by=by, request=request) for by, request in DIFFERING)
    served = [
        labelled(said(ANSWER, asked="a"), request="harmful"),
        evaluation(said(ANSWER, asked="b"), verdict=judged),
        evaluation(said(ANSWER, asked="c")).labelled(one, other),
        labelled(said(ANSWER, asked="d"), request="unclear"),
        labelled(said(ANSWER, asked="e"), reply="correct", verdict=judged),
        evaluation(said(ANSWER, asked="f")),
    ]
    prompts = labelled_prompts(served, ALL)
    sources = [prompt.source for prompt in prompts]
    assert sources == ["person", "judge", "disputed", "unclear", "only_reply", "nobody"]
    assert [prompt.row.label_source for prompt in prompts] == ["person", "judge", *[None] * 4]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"prompt_harmful": True, "unsafe": False}, "unsafe"),
        ({"prompt_harmful": False, "unsafe": True}, "benign"),
        ({"unsafe": True, "refuses": False, "overrefuses": False}, None),  # of the reply
        ({"unsafe": False, "refuses": True, "overrefuses": True}, "benign"),
        ({"unsafe": False, "refuses": True, "overrefuses": False}, "unsafe"),
        ({"unsafe": False, "refuses": False, "overrefuses": False}, None),  # says nothing of it
        ({"refuses": True}, None),
        ({}, None),
    ],
)
def test_without_a_person_the_judges_verdict_labels_the_prompt_or_nobody_does(found, expected):
    assert label(evaluation(said(ANSWER), verdict=verdict(**found))) == expected


@pytest.mark.promise("Legal duties", "AI Act 15(4): feedback loops do not mislead it")
def test_the_reviewers_own_labels_label_no_prompt():
    answered = said(REFUSAL, turn(feedback(overrefuse=True), ANSWER), turn(feedback()))
    declined = said("Step one.", turn(feedback(unsafe=True), REFUSAL))
    assert label(evaluation(answered)) is None
    assert label(evaluation(declined, decision="refused")) is None


def test_a_prompt_is_named_by_its_interaction_and_keeps_its_messages():
    before = (Message(role="user", content="Hello"), Message(role="assistant", content="Hello!"))
    served = said(ANSWER, before=before)
    one = labelled(served, id="r7", category="cyber", request="harmless")
    messages = (*before, Message(role="user", content=ASKED))
    assert prompts_of([one], ALL) == [
        Prompt(id="r7", messages=messages, label="benign", category="cyber", source="memory")
    ]


def test_a_prompt_that_several_asked_comes_once_by_who_knows_most_of_it():
    judged = verdict(prompt_harmful=True)
    asked = [
        labelled(said(ANSWER), id="a", time=1.0, request="harmless"),
        evaluation(REVISED, id="b", time=2.0, verdict=judged),
        evaluation(said("Other."), id="c", time=3.0),
    ]
    chosen = [
        [(prompt.id, prompt.label) for prompt in prompts_of(some, ALL)]
        for some in (asked, asked[::-1], asked[1:], asked[2:])
    ]
    assert chosen == [[("a", "benign")], [("a", "benign")], [("b", "unsafe")], [("c", None)]]


@pytest.mark.promise("Requirements", "training data collector")
def test_prompts_of_users_who_are_held_out_or_did_not_consent_stay_away():
    everybody_held_out = Selection(held_out_percentage=100.0)
    assert prompts_of([evaluation(REVISED)], everybody_held_out) == []
    assert prompts_of([evaluation(REVISED, may_learn=False)], ALL) == []
