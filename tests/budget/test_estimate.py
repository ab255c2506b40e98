"""An estimate from measured steps, worked by hand."""

import pytest

from waltzrl.budget import Charge, ChargeItem
from waltzrl.budget.estimate import CostRange, PlannedStage, estimate


def step(seconds, tokens, usd=0.0):
    machine = ChargeItem(role="machine", usd=99.0)  # the measured machine's price does not count
    judge = ChargeItem(role="judge", usd=usd, model="guard", input_tokens=tokens)
    return Charge(id="x", activity="training", items=(machine, judge), seconds=seconds)


@pytest.mark.promise(
    "Cost",
    "An estimate extrapolates measured steps, says what is unknown, and is compared with what was "
    "measured",
)
@pytest.mark.promise(
    "Requirements", "CostProfiler: record_execution, estimate_cost, estimate_time, get_statistics"
)
def test_measured_steps_are_extrapolated_with_start_and_end():
    measured = [step(10, 100, 0.5), step(20, 300, 0.5)]
    stage = PlannedStage(name="joint", steps=36, measured=measured)
    start = Charge(
        id="start", activity="training", items=(ChargeItem(role="machine", usd=9.0),), seconds=360
    )
    whole = estimate([stage], [start], usd_per_hour=10.0)
    # 36 steps of 15 s are 0.15 h, and 0.1 h to start; the tenth percentile of 10 and 20 is 11 s
    assert whole.hours.expected == pytest.approx(0.25)
    assert whole.hours.low == pytest.approx(0.1 + 36 * 11 / 3600)
    assert whole.tokens == CostRange(
        low=pytest.approx(36 * 120), expected=pytest.approx(7200), high=pytest.approx(36 * 280)
    )
    # 0.25 h at 10 dollars, and 36 half dollars for the judge
    assert whole.usd.expected == pytest.approx(2.5 + 18)


def test_larger_steps_take_as_much_more():
    stage = PlannedStage(name="joint", steps=2, measured=[step(10, 100)], scale=3.0)
    assert estimate([stage], [], 0.0).tokens.expected == 600


@pytest.mark.promise(
    "Cost",
    "An estimate extrapolates measured steps, says what is unknown, and is compared with what was "
    "measured",
)
def test_what_was_not_measured_is_unknown():
    known = PlannedStage(name="a", steps=2, measured=[step(10, 100)])
    unknown = PlannedStage(name="b", steps=2, measured=(), most_tokens=50)
    whole = estimate([known, unknown], [], 1.0)
    assert (whole.tokens, whole.hours, whole.usd) == (None, None, None)
    assert whole.stages[1].most_sampled_tokens == 50
    assert whole.stages[0].tokens is not None


def test_a_judge_without_a_price_leaves_the_money_unknown():
    stage = PlannedStage(name="a", steps=2, measured=[step(10, 100, None)])
    whole = estimate([stage], [], 1.0)
    assert whole.usd is None
    assert whole.hours is not None
