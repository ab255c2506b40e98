"""Return on investment, worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.budget.roi import OwnNumbers, RateDrop, return_on_investment

OWN = OwnNumbers(
    requests_per_month=100_000,
    harmful_share=0.01,
    usd_per_unsafe_reply=2.0,
    usd_per_overrefusal=0.05,
    usd_once=500.0,
    usd_per_month=200.0,
)


def drop(value):
    return RateDrop(low=value, value=value, high=value)


@pytest.mark.promise(
    "Cost",
    "Return on investment is arithmetic on own numbers and measured rates, with the ends of their "
    "intervals",
)
def test_the_example_of_the_documents():
    asr, orr = RateDrop(low=0.2, value=0.3, high=0.4), RateDrop(low=-0.01, value=0.0, high=0.01)
    result = return_on_investment(OWN, asr, orr)
    # 1,000 harmful requests, of which 300 no longer get an unsafe reply, at 2 dollars
    assert result.expected.unsafe_avoided == pytest.approx(300)
    assert result.expected.worth_per_month == pytest.approx(600)
    assert result.expected.net_per_month == pytest.approx(400)
    assert result.expected.months_to_repay == pytest.approx(1.25)
    # a year: 7,200 worth against 500 + 2,400
    assert result.expected.first_year_return == pytest.approx((7200 - 2900) / 2900)
    # at the low end 200 unsafe replies fewer, and 990 over-refusals more, at 5 cents
    assert result.low.worth_per_month == pytest.approx(400 - 49.5)
    assert result.high.worth_per_month == pytest.approx(800 + 49.5)


@pytest.mark.promise(
    "Cost",
    "Return on investment is arithmetic on own numbers and measured rates, with the ends of their "
    "intervals",
)
def test_what_is_worth_less_than_it_costs_is_never_repaid():
    result = return_on_investment(OWN, drop(0.01), drop(0.0))
    assert result.expected.net_per_month == pytest.approx(20 - 200)
    assert result.expected.months_to_repay is None
    assert result.expected.first_year_return < 0


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.1, 10))
def test_worth_grows_with_the_requests(asr, orr, factor):
    from dataclasses import replace

    more = replace(OWN, requests_per_month=OWN.requests_per_month * factor)
    one = return_on_investment(OWN, drop(asr), drop(orr)).expected
    other = return_on_investment(more, drop(asr), drop(orr)).expected
    assert other.worth_per_month == pytest.approx(one.worth_per_month * factor, abs=1e-6)
