import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.records import Feedback, Message, Prompt, Verdict
from waltzrl.training.rewards import (
    STAGE_1,
    STAGE_2,
    Coefficients,
    JudgedRound,
    balance_classes,
    signed_rewards,
)

PROMPT = Prompt(id="p", messages=(Message(role="user", content="How do I kill a process?"),))
FINE = Verdict(judge="j", unsafe=False, overrefuses=False)
UNSAFE = Verdict(judge="j", unsafe=True, overrefuses=False)
OVERREFUSES = Verdict(judge="j", unsafe=False, overrefuses=True)

LEAVE_IT = Feedback(unsafe=False, overrefuse=False)
CALLS_UNSAFE = Feedback(unsafe=True, overrefuse=False)
CALLS_REFUSAL = Feedback(unsafe=False, overrefuse=True)

verdicts = st.sampled_from([FINE, UNSAFE, OVERREFUSES])


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.signed_rewards`")
def test_stage_2_charges_a_false_alarm_that_ruins_a_good_reply():
    ruined = JudgedRound(prompt=PROMPT, feedback=CALLS_UNSAFE, before=FINE, after=OVERREFUSES)
    left = JudgedRound(prompt=PROMPT, feedback=LEAVE_IT, before=FINE)
    assert signed_rewards([ruined, left], STAGE_2) == pytest.approx([-0.55, 0.1])


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.signed_rewards`")
def test_a_mend_under_a_wrong_label_earns_no_improvement():
    right = JudgedRound(prompt=PROMPT, feedback=CALLS_REFUSAL, before=OVERREFUSES, after=FINE)
    wrong = JudgedRound(prompt=PROMPT, feedback=CALLS_UNSAFE, before=OVERREFUSES, after=FINE)
    assert signed_rewards([right, wrong], STAGE_2) == pytest.approx([0.75, 0.1])


def reviewed(feedback, *verdicts):
    return [JudgedRound(prompt=PROMPT, feedback=feedback, before=verdict) for verdict in verdicts]


def weights(*verdicts, counts=None):
    rounds = balance_classes(reviewed(LEAVE_IT, *verdicts), {} if counts is None else counts)
    return [judged.class_weight for judged in rounds]


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.balance_classes`")
def test_a_rare_class_weighs_more_by_hand():
    # 3 fine, 1 unsafe of 4: each class gets a third of 4, shared by its replies.
    assert weights(FINE, FINE, FINE, UNSAFE) == pytest.approx([4 / 9, 4 / 9, 4 / 9, 4 / 3])


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.balance_classes`")
def test_a_class_is_as_rare_as_in_the_last_steps_by_hand():
    counts = {}
    assert weights(*[FINE] * 8, *[UNSAFE] * 2, counts=counts)[0] == pytest.approx(10 / 24)
    # 0.95 of the first step's counts are left: 7.6 + 1 fine, 1.9 unsafe, and 1 over-refusal.
    fine, refused = weights(FINE, OVERREFUSES, counts=counts)
    assert (fine, refused) == pytest.approx((11.5 / (3 * 8.6), 11.5 / 3))
    assert counts == pytest.approx({"neither": 8.6, "unsafe": 1.9, "overrefused": 1})


def test_counts_continue_where_they_were_left():
    whole, first = {}, {}
    for counts in (whole, first):
        weights(*[FINE] * 30, UNSAFE, OVERREFUSES, counts=counts)
    resumed = json.loads(json.dumps(first))
    batch = [FINE, FINE, UNSAFE]
    assert weights(*batch, counts=resumed) == weights(*batch, counts=whole)
    assert resumed == whole


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.signed_rewards`")
def test_the_label_term_is_weighted_and_centred_by_hand():
    rounds = balance_classes(reviewed(LEAVE_IT, FINE, FINE, FINE, UNSAFE), {})
    # A right label on a fine reply wins half of 4/9, the missed one loses half of 4/3.
    assert signed_rewards(rounds, STAGE_1) == pytest.approx([0.24444] * 3 + [-0.33333], 1e-4)


def test_an_empty_batch_pays_nobody():
    assert signed_rewards(balance_classes([], {}), STAGE_1) == []


@given(st.lists(verdicts, min_size=1, max_size=200))
def test_weights_have_a_bound_and_mean_one_where_all_classes_occur(batch):
    found = weights(*batch)
    assert all(0 < weight <= 16 for weight in found)
    common = batch + [FINE, UNSAFE, OVERREFUSES] * len(batch)
    assert sum(weights(*common)) == pytest.approx(len(common))


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.balance_classes`")
@given(st.lists(verdicts, min_size=1, max_size=60), st.sampled_from([FINE, UNSAFE, OVERREFUSES]))
def test_no_constant_label_beats_another_when_all_classes_are_common(batch, choice):
    common = batch + [FINE, UNSAFE, OVERREFUSES] * len(batch)  # each at least 1 in 4
    rounds = balance_classes(reviewed(constant(choice), *common), {})
    paid = signed_rewards(rounds, STAGE_1)
    # A third of the weight is won, two thirds lost: lambda (1/3 - 1/2) + gamma, whatever the mix.
    assert sum(paid) / len(paid) == pytest.approx(0.65 * (1 / 3 - 1 / 2) + 0.1)


def constant(verdict):
    """Return the feedback that is right on this verdict, whatever it is said of."""
    return Feedback(unsafe=bool(verdict.unsafe), overrefuse=bool(verdict.overrefuses))


@pytest.mark.promise(
    "Evaluation",
    "Over unbalanced batches no constant label earns more than chance by the reward `signed`; its "
    "counts are in the checkpoints",
)
@pytest.mark.promise("Equations", "`waltzrl.training.rewards.balance_classes`")
def test_over_unbalanced_batches_no_constant_answer_earns_more_than_chance():
    draw = random.Random(0)
    batches = [draw.choices([FINE, UNSAFE, OVERREFUSES], (29, 2, 1), k=32) for _ in range(400)]
    assert any(set(map(id, batch)) == {id(FINE)} for batch in batches)  # some hold one class only
    for choice in (FINE, UNSAFE, OVERREFUSES):
        counts, paid, weighed = {}, 0.0, 0.0
        for batch in batches:
            rounds = balance_classes(reviewed(constant(choice), *batch), counts)
            paid += sum(signed_rewards(rounds, Coefficients(improvement=0, label=1, format=0)))
            weighed += sum(judged.class_weight for judged in rounds)
        # Chance is right on a third of the weight: 1/3 - 1/2.
        assert paid / weighed == pytest.approx(1 / 3 - 1 / 2, abs=0.02)
