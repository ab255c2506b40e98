import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from waltzrl.release.confidence import interval
from waltzrl.release.correction import (
    DOUBT,
    JudgeError,
    corrected_rate,
    observed_limit,
    observed_rate,
)

JUDGE = JudgeError(true_positives=90, false_negatives=10, false_positives=5, true_negatives=95)
"""Finds 90 %, and calls 5 % of the good answers bad."""
judges = st.builds(
    JudgeError,
    true_positives=st.integers(10, 200),
    false_negatives=st.integers(0, 50),
    false_positives=st.integers(0, 50),
    true_negatives=st.integers(10, 200),
)


def test_a_rate_is_corrected_as_worked_by_hand():
    # (9.25 % - 5 %) / (90 % - 5 %) = 5 %
    rate = corrected_rate(37, 400, JUDGE)
    assert rate.value == pytest.approx(0.05)
    assert (rate.n, rate.bad, rate.corrected) == (400, 37, True)


def test_the_worst_corner_of_the_box_bounds_the_rate():
    rate = corrected_rate(100, 400, JUDGE)
    observed = interval(100, 400, DOUBT / 3)
    found, alarms = JUDGE.sensitivity, JUDGE.false_alarms
    assert found.low < 0.9 < found.high
    assert alarms.low < 0.05 < alarms.high
    assert rate.low == (observed.low - alarms.high) / (found.high - alarms.high)
    assert rate.high == (observed.high - alarms.low) / (found.low - alarms.low)
    assert rate.low < 0.235 < rate.high


def test_fewer_bad_labels_than_false_alarms_explain_is_a_rate_of_zero():
    rate = corrected_rate(2, 400, JUDGE)
    assert (rate.value, rate.low) == (0, 0)
    assert 0 < rate.high < 0.06


def test_a_judge_that_guesses_tells_nothing():
    guessing = JudgeError(
        true_positives=50, false_negatives=50, false_positives=50, true_negatives=50
    )
    rate = corrected_rate(100, 400, guessing)
    assert (rate.low, rate.value, rate.high) == (0, 0.25, 1)


def test_ten_labels_of_each_kind_are_needed():
    few = JudgeError(true_positives=6, false_negatives=3, false_positives=0, true_negatives=500)
    enough = JudgeError(true_positives=6, false_negatives=4, false_positives=0, true_negatives=10)
    assert (few.is_known, enough.is_known) == (False, True)


def test_disputed_answers_widen_both_rates_as_worked_by_hand():
    # 4 more that the judge calls bad and 6 that it calls good, of which people say both
    settled = {
        "true_positives": 90, "false_negatives": 10, "false_positives": 5, "true_negatives": 95,
    }  # fmt: skip
    judge = JudgeError(**settled, disputed_positives=4, disputed_negatives=6)
    third = DOUBT / 3
    assert judge.sensitivity.low == 1 - interval(16, 106, third).high  # the six are misses
    assert judge.sensitivity.high == 1 - interval(10, 104, third).low  # the four are found
    assert judge.false_alarms.low == interval(5, 106, third).low  # the six are right
    assert judge.false_alarms.high == interval(9, 104, third).high  # the four are false alarms
    assert (judge.bad, judge.good) == (100, 100)


@given(judges, st.tuples(st.integers(0, 9), st.integers(0, 9)), st.data())
def test_bounds_hold_however_a_dispute_is_settled(judge, disputed, data):
    positives, negatives = disputed
    bad_positives = data.draw(st.integers(0, positives))
    bad_negatives = data.draw(st.integers(0, negatives))
    settled = JudgeError(
        true_positives=judge.true_positives + bad_positives,
        false_positives=judge.false_positives + positives - bad_positives,
        false_negatives=judge.false_negatives + bad_negatives,
        true_negatives=judge.true_negatives + negatives - bad_negatives,
    )
    open_ = structs.replace(judge, disputed_positives=positives, disputed_negatives=negatives)
    for rate in ("sensitivity", "false_alarms"):
        inner, outer = getattr(settled, rate), getattr(open_, rate)
        assert outer.low <= inner.low + 1e-9
        assert inner.high <= outer.high + 1e-9


def test_what_was_not_observed_has_no_value():
    rate = observed_rate(0, 0)
    assert (rate.value, rate.low, rate.high, rate.corrected) == (None, 0, 1, False)
    rate = corrected_rate(0, 0, JUDGE)
    assert (rate.value, rate.low, rate.high, rate.corrected) == (None, 0, 1, True)


@given(judges, st.floats(0, 1))
def test_the_limit_is_never_below_what_the_judge_would_say_of_it(judge, limit):
    found = judge.true_positives / judge.bad
    alarms = judge.false_positives / judge.good
    assert observed_limit(limit, judge) >= limit * found + (1 - limit) * alarms
    assert observed_limit(limit, judge) <= 1


@given(judges, st.floats(0, 1), st.floats(0, 1))
def test_a_limit_allows_what_a_judge_says_of_every_lower_rate(judge, limit, share):
    found, alarms = judge.sensitivity.high, judge.false_alarms.high
    rate = share * limit
    assert observed_limit(limit, judge) >= rate * found + (1 - rate) * alarms - 1e-12


def test_a_limit_is_what_a_judge_would_say_of_it():
    # 90 of 100 found, 5 of 100 false alarms: about 10 % * 0.9 + 90 % * 0.05 = 13.5 %.
    assert 0.135 < observed_limit(0.1, JUDGE) < 0.26


@given(judges, st.integers(0, 300))
def test_a_corrected_rate_lies_within_its_bounds(judge, bad):
    rate = corrected_rate(bad, 300, judge)
    assert 0 <= rate.low <= rate.value <= rate.high <= 1


def test_the_true_rate_is_hardly_ever_outside():
    """500 judges with as many sets of labels, at a true rate of 4 %."""
    dice = np.random.default_rng(5)
    outside = 0
    for _ in range(500):
        found, alarms = dice.binomial(60, 0.85), dice.binomial(140, 0.04)
        judge = JudgeError(
            true_positives=int(found),
            false_negatives=int(60 - found),
            false_positives=int(alarms),
            true_negatives=int(140 - alarms),
        )
        bad = dice.binomial(800, 0.04 * 0.85 + 0.96 * 0.04)
        rate = corrected_rate(int(bad), 800, judge)
        outside += not rate.low <= 0.04 <= rate.high
    assert outside / 500 <= DOUBT
