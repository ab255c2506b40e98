"""What holds of what people said, from the events alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.store.memory.labels import (
    LabelEvent,
    ReferenceLabels,
    double_answers,
    find_agreed,
    in_force,
    is_disputed,
    reference_labels,
    reply_label,
)

WITHDRAW = "withdraw"


def event(by, reply=None, request=None, **more):
    return LabelEvent(by=by, time=1.0, reply=reply, request=request, **more)


def answers(events):
    return {by: (held.reply, held.request) for by, held in in_force(events).items()}


def test_each_answer_of_a_person_holds_until_they_give_another():
    said = [event("ada", "unsafe"), event("ada", request="harmful"), event("ada", "correct")]
    assert answers(said) == {"ada": ("correct", "harmful")}


def test_a_second_persons_label_leaves_the_first_one():
    said = [event("ada", "unsafe"), event("grace", "correct"), event("ada", request="harmful")]
    assert answers(said) == {"ada": ("unsafe", "harmful"), "grace": ("correct", None)}
    assert reply_label(said) == "disputed"


def test_a_withdrawal_takes_back_all_of_one_person_and_nothing_of_others():
    said = [
        event("ada", "unsafe", correction="Better."),
        event("grace", "correct"),
        event("ada", action=WITHDRAW),
    ]
    assert answers(said) == {"grace": ("correct", None)}
    again = [*said, event("ada", request="harmless")]
    assert answers(again)["ada"] == (None, "harmless")
    assert in_force(again)["ada"].correction == ""


def test_people_agree_only_if_all_say_the_same():
    assert find_agreed([None, None]) is None
    assert find_agreed(["unsafe", None, "unsafe"]) == "unsafe"
    assert find_agreed(["unsafe", "unsafe", "correct"]) == "disputed"


@pytest.mark.promise("Labels", "Only labels of people whose role steers releases measure the judge")
def test_only_labels_of_people_who_may_steer_measure_the_judge():
    reviewer, annotator = event("ada", "unsafe", steers=True), event("max", "correct")
    assert reference_labels([annotator]) is None
    assert reference_labels([reviewer, annotator]) == ReferenceLabels(
        unsafe="yes", overrefuses="no"
    )
    assert reply_label([reviewer, annotator]) == "disputed"


def test_people_who_differ_about_one_question_may_agree_about_another():
    said = [event("ada", "correct", steers=True), event("grace", "overrefusal", steers=True)]
    assert reference_labels(said) == ReferenceLabels(unsafe="no", overrefuses="disputed")


def test_the_first_two_people_of_an_exchange_are_compared():
    said = [event("ada", "unsafe", "harmful"), event("grace", "correct", "unclear")]
    assert double_answers([said, said[:1], [*said[::-1], event("max", "correct")]]) == {
        "reply unsafe": [(True, False), (False, True)],
        "over-refusal": [(False, False), (False, False)],
        "request harmful": [(True, None), (None, True)],
    }


replies = st.sampled_from(["correct", "unsafe", "overrefusal"])
events = st.lists(
    st.builds(
        LabelEvent,
        by=st.sampled_from(["ada", "grace"]),
        time=st.just(1.0),
        action=st.sampled_from(["label", "withdraw"]),
        reply=st.none() | replies,
        request=st.none() | st.sampled_from(["harmful", "harmless", "unclear"]),
    )
)


@pytest.mark.promise(
    "Labels",
    "Labels are events of people: none overwrites another, and a withdrawal is one too; the audit "
    "log has each, without texts",
)
@given(events)
def test_what_holds_of_one_person_does_not_depend_on_others(said):
    of_ada = [event for event in said if event.by == "ada"]
    assert in_force(said).get("ada") == in_force(of_ada).get("ada")


def test_who_cannot_tell_disputes_nothing():
    unsure = event("max", "unclear", steers=True)
    assert reply_label([unsure]) == "unclear"
    assert reference_labels([unsure]) is None
    assert reply_label([unsure, event("ada", "unsafe")]) == "unsafe"


def test_an_unhelpful_reply_is_neither_unsafe_nor_an_over_refusal():
    said = [event("ada", "unhelpful", steers=True)]
    assert reference_labels(said) == ReferenceLabels(unsafe="no", overrefuses="no")


@pytest.mark.promise(
    "Labels",
    "A dispute about a reply or a request is listed, and a third person with the role settles it",
)
def test_a_settlement_alone_counts_where_it_answers():
    said = [
        event("ada", "unsafe", "harmful", steers=True),
        event("grace", "correct", "harmless", steers=True),
    ]
    assert is_disputed(said)
    settled = [*said, event("max", "unsafe", settles=True, steers=True)]
    assert reply_label(settled) == "unsafe"
    assert reference_labels(settled) == ReferenceLabels(unsafe="yes", overrefuses="no")
    assert is_disputed(settled)  # about the request
    assert not is_disputed([*settled, event("max", request="harmful", steers=True)])
    assert double_answers([settled])["reply unsafe"] == [(True, False)]
    assert reply_label([*settled, event("max", action=WITHDRAW)]) == "disputed"


def test_a_suggestion_that_was_accepted_measures_no_judge():
    said = [event("ada", "unsafe", steers=True, annotator_kind="accepted")]
    assert (reply_label(said), reference_labels(said)) == ("unsafe", None)
    commented = [*said, event("ada", comment="so", steers=True)]
    assert reference_labels(commented) is None
    assert reference_labels([*said, event("ada", "unsafe", steers=True)]).unsafe == "yes"
