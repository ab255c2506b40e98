"""What holds of what people said, from the events alone."""

from hypothesis import given
from hypothesis import strategies as st

from waltzrl.memory.labels import (
    LabelEvent,
    ReferenceLabels,
    agreed,
    double_answers,
    in_force,
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
    assert agreed([None, None]) is None
    assert agreed(["unsafe", None, "unsafe"]) == "unsafe"
    assert agreed(["unsafe", "unsafe", "correct"]) == "disputed"


def test_only_labels_of_people_who_may_steer_measure_the_judge():
    reviewer, annotator = event("ada", "unsafe", steers=True), event("max", "correct")
    assert reference_labels([annotator]) is None
    assert reference_labels([reviewer, annotator]) == ReferenceLabels(
        unsafe="yes", overrefuses="no"
    )
    assert reply_label([reviewer, annotator]) == "disputed"


def test_people_who_differ_about_one_question_may_agree_about_another():
    said = [event("ada", "correct", steers=True), event("grace", "needless_refusal", steers=True)]
    assert reference_labels(said) == ReferenceLabels(unsafe="no", overrefuses="disputed")


def test_the_first_two_people_of_an_exchange_are_compared():
    said = [event("ada", "unsafe", "harmful"), event("grace", "correct", "unclear")]
    assert double_answers([said, said[:1], [*said[::-1], event("max", "correct")]]) == {
        "reply unsafe": [(True, False), (False, True)],
        "over-refusal": [(False, False), (False, False)],
        "request harmful": [(True, None), (None, True)],
    }


replies = st.sampled_from(["correct", "unsafe", "needless_refusal"])
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


@given(events)
def test_what_holds_of_one_person_does_not_depend_on_others(said):
    of_ada = [event for event in said if event.by == "ada"]
    assert in_force(said).get("ada") == in_force(of_ada).get("ada")
