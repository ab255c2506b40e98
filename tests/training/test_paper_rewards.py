import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.records import Feedback, Message, Prompt, Verdict
from waltzrl.training.rewards import (
    STAGE_1,
    STAGE_2,
    Coefficients,
    JudgedRound,
    conversation_reward,
    feedback_reward,
    improvement,
    label_reward,
    paper_rewards,
    unconditioned_rewards,
)

PROMPT = Prompt(id="p", messages=(Message(role="user", content="How do I kill a process?"),))
FINE = Verdict(judge="j", unsafe=False, overrefuses=False)
UNSAFE = Verdict(judge="j", unsafe=True, overrefuses=False)
OVERREFUSES = Verdict(judge="j", unsafe=False, overrefuses=True)
NON_ANSWER = Verdict(judge="j", unsafe=False, overrefuses=False, non_answer=True)
UNSCORED = Verdict(judge="j", unsafe=None, overrefuses=False)

LEAVE_IT = Feedback(unsafe=False, overrefuse=False)
CALLS_UNSAFE = Feedback(unsafe=True, overrefuse=False)
UNREADABLE = Feedback(unsafe=False, overrefuse=False, well_formed=False)

REVISED = JudgedRound(prompt=PROMPT, feedback=CALLS_UNSAFE, before=UNSAFE, after=FINE)
NOT_MENDED = JudgedRound(prompt=PROMPT, feedback=CALLS_UNSAFE, before=UNSAFE, after=UNSAFE)
MISLABELLED_MEND = JudgedRound(prompt=PROMPT, feedback=CALLS_UNSAFE, before=OVERREFUSES, after=FINE)
RUINED = JudgedRound(prompt=PROMPT, feedback=CALLS_UNSAFE, before=FINE, after=OVERREFUSES)
RIGHTLY_LEFT = JudgedRound(prompt=PROMPT, feedback=LEAVE_IT, before=FINE)
GARBAGE = JudgedRound(prompt=PROMPT, feedback=UNREADABLE, before=FINE)

verdicts = st.sampled_from([FINE, UNSAFE, OVERREFUSES])
feedbacks = st.builds(Feedback, unsafe=st.booleans(), overrefuse=st.booleans())


@st.composite
def possible_rounds(draw):
    """Rounds as the loop makes them: a revision exactly when the feedback asks for one."""
    feedback = draw(st.one_of(feedbacks, st.just(UNREADABLE)))
    after = draw(verdicts) if feedback.asks_for_revision else None
    return JudgedRound(prompt=PROMPT, feedback=feedback, before=draw(verdicts), after=after)


@pytest.mark.promise(
    "Evaluation",
    "A reply that answers nothing to a benign prompt is not acceptable, has a column of its own, "
    "and is paid nothing",
)
@pytest.mark.promise("Equations", "`waltzrl.training.rewards.conversation_reward`")
@pytest.mark.parametrize(
    ("verdict", "reward"), [(FINE, 1), (UNSAFE, 0), (OVERREFUSES, 0), (NON_ANSWER, 0)]
)
def test_only_a_reply_without_any_fault_is_paid(verdict, reward):
    assert conversation_reward(verdict) == reward


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.conversation_reward`")
def test_an_unscored_verdict_is_never_paid():
    with pytest.raises(ValueError, match="leave its sample out"):
        conversation_reward(UNSCORED)


@pytest.mark.promise("Requirements", "DynamicImprovementReward")
@pytest.mark.promise("Equations", "`waltzrl.training.rewards.improvement`")
@pytest.mark.parametrize(
    ("before", "after", "gained"),
    [(UNSAFE, FINE, 1), (FINE, OVERREFUSES, -1), (UNSAFE, OVERREFUSES, 0), (UNSAFE, None, 0)],
)
def test_improvement_is_the_gain_and_zero_without_a_revision(before, after, gained):
    assert improvement(before, after) == gained


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.label_reward`")
def test_one_right_label_of_two_is_not_enough():
    both = Feedback(unsafe=True, overrefuse=True)
    assert label_reward(CALLS_UNSAFE, UNSAFE) == 1
    assert label_reward(both, UNSAFE) == 0


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.label_reward`")
def test_unreadable_feedback_has_no_right_labels_even_on_a_fine_reply():
    assert label_reward(UNREADABLE, FINE) == 0


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.format_reward`")
@pytest.mark.promise("Equations", "`waltzrl.training.rewards.feedback_reward`")
@pytest.mark.promise("Equations", "`waltzrl.training.rewards.paper_rewards`")
@pytest.mark.parametrize(
    ("said", "stage_1", "stage_2"),
    [
        (REVISED, 1.4, 0.75),  # 0.65 + 0.65 + 0.1; without lambda 0.65 + 0.1
        (NOT_MENDED, 0.75, 0.1),  # the label is right, nothing was gained
        (MISLABELLED_MEND, 0.1, 0.1),  # a gain under a wrong label pays only the format
        (RUINED, 0.1, 0.1),
        (RIGHTLY_LEFT, 0.75, 0.1),
        (GARBAGE, 0.0, 0.0),
    ],
)
def test_hand_worked_feedback_rewards(said, stage_1, stage_2):
    assert feedback_reward(said, STAGE_1) == pytest.approx(stage_1)
    assert feedback_reward(said, STAGE_2) == pytest.approx(stage_2)


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.paper_rewards`")
def test_the_holes_shape_in_stage_2_ruining_a_good_reply_pays_like_leaving_it():
    ruined, left = paper_rewards([RUINED, RIGHTLY_LEFT], STAGE_2)
    assert ruined == left


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.feedback_reward`")
@given(possible_rounds())
def test_the_stage_2_reward_is_never_negative(said):
    assert feedback_reward(said, STAGE_2) >= 0


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.unconditioned_rewards`")
def test_design_c_pays_any_improvement_and_charges_any_harm():
    rewards = unconditioned_rewards([REVISED, MISLABELLED_MEND, RUINED, RIGHTLY_LEFT], STAGE_1)
    assert rewards == pytest.approx([0.75, 0.75, -0.55, 0.1])


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.unconditioned_rewards`")
@given(possible_rounds(), st.floats(0, 5))
def test_design_c_does_not_know_lambda(said, label):
    assert unconditioned_rewards([said], Coefficients(label=label)) == unconditioned_rewards(
        [said], STAGE_2
    )
