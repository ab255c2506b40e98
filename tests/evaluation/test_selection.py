import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small_evaluations import ANSWER, evaluation, said
from waltzrl.evaluation.collecting.selection import Selection

SERVED = said(ANSWER)
ALL = Selection(held_out_percentage=0.0)

percentages = st.floats(0.0, 100.0)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"may_learn": False}, "without_consent"),
        ({"decision": "error"}, "unanswered"),
        ({"collaboration": None}, "unanswered"),
        ({"arm": "shadow"}, "shadow"),
    ],
)
def test_without_consent_or_an_answer_that_somebody_saw_nothing_is_taken(known, why):
    assert ALL.takes(evaluation(SERVED))
    assert ALL.leaves_out(evaluation(**{"collaboration": SERVED} | known)) == why


def test_who_is_held_out_from_learning_is_who_is_evaluated_with():
    learning, held_out = (
        Selection(users=users, held_out_percentage=100.0) for users in ("learning", "held-out")
    )
    assert learning.leaves_out(evaluation(SERVED)) == "of_other_users"
    assert held_out.takes(evaluation(SERVED))


@given(st.text(min_size=1), percentages, percentages)
def test_who_is_held_out_stays_so_when_more_are(subject, one, other):
    fewer, more = sorted((one, other))
    asked = evaluation(SERVED, subject=subject)
    if not Selection(held_out_percentage=fewer).takes(asked):
        assert not Selection(held_out_percentage=more).takes(asked)


@given(st.text(), st.text(min_size=1), percentages)
def test_an_interaction_is_either_learned_from_or_held_out(subject, name, percentage):
    asked = evaluation(SERVED, subject=subject, id=name)
    learning, held_out = (
        Selection(users=users, held_out_percentage=percentage).takes(asked)
        for users in ("learning", "held-out")
    )
    assert learning is not held_out


@given(st.lists(st.text(), min_size=2, max_size=5))
def test_all_that_a_user_asked_is_on_the_same_side(ids):
    half = Selection(held_out_percentage=50.0)
    assert len({half.takes(evaluation(SERVED, id=name)) for name in ids}) == 1


def test_the_choices_of_an_anonymous_request_are_on_the_same_side():
    half = Selection(held_out_percentage=50.0)
    for number in range(20):
        choices = [f"r{number}", f"r{number}/2"]
        sides = {half.takes(evaluation(SERVED, subject="", id=name)) for name in choices}
        assert len(sides) == 1


def test_a_tenth_of_the_users_is_about_a_tenth():
    tenth = Selection()
    held = sum(not tenth.takes(evaluation(SERVED, subject=f"{n:x}")) for n in range(3_000))
    assert 240 < held < 360
