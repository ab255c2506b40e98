import pytest

from support.small_evaluations import (
    ANSWER,
    ASKED,
    REFUSAL,
    REVISED,
    STOPPED,
    evaluation,
    feedback,
    said,
    turn,
    verdict,
)
from waltzrl.evaluation.collecting.selection import Selection
from waltzrl.evaluation.collecting.trajectories import Statistics, collect, statistics, trajectories
from waltzrl.records import CANNED_REFUSAL, Message
from waltzrl.store.memory.schemas import Action, State

ALL = Selection(held_out_percentage=0.0)


def rewards(one):
    found = [sample.reward for sample in trajectories(one)]
    return [(r.safety_score, r.helpfulness_score, pytest.approx(r.dir_score)) for r in found]


@pytest.mark.promise("Requirements", "training data collector")
def test_a_revision_and_its_review_are_two_steps_of_which_the_last_is_terminal():
    first, last = trajectories(evaluation(REVISED, decision="revised"))
    assert first.state == State(
        user_request=ASKED, context=(), coaching_round=1, coaching_history=(REFUSAL,)
    )
    assert first.action == Action(response=ANSWER, reasoning="harmless", risk_score=0.0)
    assert first.next_state == last.state
    assert last.state.coaching_history == (REFUSAL, "Answer it.", ANSWER)
    assert last.state.coaching_round == 2
    assert last.action == Action(response=ANSWER, reasoning="", risk_score=0.0)
    assert [one.terminal for one in (first, last)] == [False, True]
    assert last.next_state is None
    assert {one.interaction for one in (first, last)} == {"r1"}


def test_a_mended_refusal_gains_in_helpfulness_and_the_review_of_it_nothing():
    # 0.5 x 0 + 0.3 x 1 + 0.2 x (0.7 x 1) = 0.44
    assert rewards(evaluation(REVISED)) == [(1.0, 1.0, 0.44), (1.0, 1.0, 0.0)]


def test_a_canned_refusal_is_safe_though_nobody_reviewed_it():
    # 0.5 x 1 + 0.3 x 0 + 0.2 x (0.3 x 1) = 0.56
    assert rewards(evaluation(STOPPED, decision="refused")) == [(1.0, 1.0, 0.56)]


def test_a_risk_says_more_than_a_label():
    # safe by its labels, and a risk of 0.25: 1 - 0.25; revised to a risk of 0.125
    mended = said(
        "So.", turn(feedback(overrefuse=True, risk=0.25), "So, then."), turn(feedback(risk=0.125))
    )
    # 0.5 x 0.125 + 0.3 x 1 + 0.2 x (0.3 x 0.125 + 0.7 x 1) = 0.51
    assert rewards(evaluation(mended)) == [(0.875, 1.0, 0.51), (0.875, 1.0, 0.0)]


def test_an_unsafe_draft_that_became_a_refusal_is_no_over_refusal():
    mended = said("So.", turn(feedback(unsafe=True), REFUSAL), turn(feedback(overrefuse=True)))
    # 0.5 x 1 + 0.3 x 0 + 0.2 x (0.3 x 1) = 0.56
    assert rewards(evaluation(mended)) == [(1.0, 1.0, 0.56), (1.0, 1.0, 0.0)]


UNSAFE = verdict(unsafe=True, overrefuses=False)
OVERREFUSING = verdict(unsafe=False, overrefuses=True)
FINE = verdict(unsafe=False, overrefuses=False)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        # the draft stays (1, 0); the reply that left is as good as whoever is believed says
        ({}, (1.0, 1.0, 0.44)),
        ({"verdict": UNSAFE}, (0.0, 1.0, -0.2)),  # 0.5 x -1 + 0.3 x 1, and nobody is content
        ({"verdict": OVERREFUSING}, (1.0, 0.0, 0.0)),
        ({"verdict": verdict(unsafe=False, overrefuses=False, non_answer=True)}, (1.0, 0.0, 0.0)),
        ({"verdict": verdict(refuses=False)}, (1.0, 1.0, 0.44)),
        ({"verdict": UNSAFE, "label": "correct"}, (1.0, 1.0, 0.44)),
        ({"verdict": FINE, "label": "unsafe"}, (0.0, 1.0, -0.2)),
        ({"label": "overrefusal"}, (1.0, 0.0, 0.0)),
    ],
)
def test_of_what_left_a_person_is_believed_before_the_judge_and_the_judge_before_the_reviewer(
    known, expected
):
    assert rewards(evaluation(REVISED, **known))[0] == expected


def test_what_nobody_could_score_makes_no_trajectory():
    unread = feedback(well_formed=False)
    assert trajectories(evaluation(said("So.", turn(unread)))) == []
    assert trajectories(evaluation(said("So.", turn(unread, CANNED_REFUSAL)))) == []
    assert trajectories(evaluation(said("So.", turn(feedback(unsafe=True), "No.")))) == []
    assert trajectories(evaluation(said("So."))) == []
    assert trajectories(evaluation(None)) == []


def test_a_reply_about_which_people_differ_is_scored_by_nobody():
    assert trajectories(evaluation(REVISED, label="disputed", verdict=FINE)) == []


def test_an_unread_review_of_what_left_is_made_good_by_a_label():
    one = evaluation(said("So.", turn(feedback(well_formed=False))), label="correct")
    assert rewards(one) == [(1.0, 1.0, 0.0)]


def test_a_judge_who_says_half_of_it_cannot_stand_for_a_review_that_could_not_be_read():
    unread = said("So.", turn(feedback(well_formed=False)))
    assert trajectories(evaluation(unread, verdict=verdict(unsafe=False))) == []
    both = evaluation(unread, verdict=verdict(unsafe=False, overrefuses=False))
    assert rewards(both) == [(1.0, 1.0, 0.0)]


def test_what_was_said_before_the_request_is_its_context():
    before = (Message(role="system", content="Be brief."), Message(role="user", content="Hello"))
    (sample,) = trajectories(evaluation(said("So.", turn(feedback()), before=before)))
    assert sample.state.context == tuple(message.line for message in before)
    assert sample.state.user_request == ASKED


@pytest.mark.promise("Requirements", "training data collector")
@pytest.mark.promise("Requirements", "calculate_cumulative_reward, generate_dir_report")
def test_statistics_average_over_interactions_and_over_rounds():
    served = [
        evaluation(REVISED, id="a"),  # two rounds, 0.44 and 0, safe
        evaluation(STOPPED, id="b", decision="refused", label="unsafe"),  # one round, 0, unsafe
    ]
    found = statistics([sample for one in served for sample in trajectories(one)])
    assert found == Statistics(
        total_interactions=2,
        avg_dir_score=pytest.approx(0.44 / 3),
        safe_rate=0.5,
        avg_coaching_rounds=1.5,
        labelled_by={"rule": 1, "person": 1},
    )


def test_no_samples_have_no_averages():
    nothing = Statistics(
        total_interactions=0,
        avg_dir_score=None,
        safe_rate=None,
        avg_coaching_rounds=None,
        labelled_by={},
    )
    assert statistics([]) == nothing


def test_the_same_said_twice_is_collected_once_the_newest_or_the_one_with_a_label():
    again = [evaluation(STOPPED, id=name, time=time, decision="refused") for name, time in
             (("old", 1.0), ("new", 3.0), ("middle", 2.0))]  # fmt: skip
    other = evaluation(REVISED, id="other", time=9.0)
    assert [s.interaction for s in collect([*again, other], ALL)] == ["new", "other", "other"]
    labelled = evaluation(STOPPED, id="seen", time=0.0, decision="refused", label="correct")
    assert [s.interaction for s in collect([*again, labelled], ALL)] == ["seen"]
