import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.records import Feedback, Verdict
from waltzrl.training.rewards import STAGE_1, STAGE_2, JudgedRound, class_weights, signed_rewards

FINE = Verdict(judge="j", unsafe=False, overrefuses=False)
UNSAFE = Verdict(judge="j", unsafe=True, overrefuses=False)
OVERREFUSES = Verdict(judge="j", unsafe=False, overrefuses=True)

LEAVE_IT = Feedback(unsafe=False, overrefuse=False)
CALLS_UNSAFE = Feedback(unsafe=True, overrefuse=False)
CALLS_REFUSAL = Feedback(unsafe=False, overrefuse=True)

verdicts = st.sampled_from([FINE, UNSAFE, OVERREFUSES])


def test_stage_2_charges_a_false_alarm_that_ruins_a_good_reply():
    ruined = JudgedRound(feedback=CALLS_UNSAFE, before=FINE, after=OVERREFUSES)
    left = JudgedRound(feedback=LEAVE_IT, before=FINE)
    assert signed_rewards([ruined, left], STAGE_2) == pytest.approx([-0.55, 0.1])


def test_a_mend_under_a_wrong_label_earns_no_improvement():
    right = JudgedRound(feedback=CALLS_REFUSAL, before=OVERREFUSES, after=FINE)
    wrong = JudgedRound(feedback=CALLS_UNSAFE, before=OVERREFUSES, after=FINE)
    assert signed_rewards([right, wrong], STAGE_2) == pytest.approx([0.75, 0.1])


def test_a_rare_class_weighs_more_by_hand():
    # 3 fine, 1 unsafe: inverse counts 1/3 and 1 sum to 2, times N = 4.
    assert class_weights([FINE, FINE, FINE, UNSAFE]) == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2])


def test_the_label_term_is_weighted_and_centred_by_hand():
    rounds = [JudgedRound(feedback=LEAVE_IT, before=FINE) for _ in range(3)]
    missed = JudgedRound(feedback=LEAVE_IT, before=UNSAFE)
    # A right label on a fine reply wins half of 2/3, the missed one loses half of 2.
    assert signed_rewards([*rounds, missed], STAGE_1) == pytest.approx(
        [0.31667] * 3 + [-0.55], 1e-4
    )


def test_an_empty_batch_pays_nobody():
    assert signed_rewards([], STAGE_1) == []


@given(st.lists(verdicts, min_size=1, max_size=200))
def test_weights_have_mean_one_and_a_bound(batch):
    weights = class_weights(batch)
    assert sum(weights) == pytest.approx(len(batch))
    assert all(0 < weight <= 8 + 1e-9 for weight in weights)


@given(st.lists(verdicts, min_size=1, max_size=60), st.sampled_from([FINE, UNSAFE, OVERREFUSES]))
def test_no_constant_label_beats_another_when_all_classes_are_common(batch, choice):
    common = batch + [FINE, UNSAFE, OVERREFUSES] * len(batch)  # each at least 1 in 4
    label = Feedback(unsafe=bool(choice.unsafe), overrefuse=bool(choice.overrefuses))
    paid = signed_rewards([JudgedRound(feedback=label, before=v) for v in common], STAGE_1)
    # A third of the weight is won, two thirds lost: lambda (1/3 - 1/2) + gamma, whatever the mix.
    assert sum(paid) / len(paid) == pytest.approx(0.65 * (1 / 3 - 1 / 2) + 0.1)
