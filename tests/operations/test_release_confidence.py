from functools import cache
from math import exp, lgamma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.evaluation.confidence import PRIOR, interval

counts = st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_without_a_case_nothing_is_known():
    assert interval(0, 0, 0.05) == (0.0, 1.0)


def test_a_spotless_record_is_bounded_as_worked_by_hand():
    # B(1/2, 5 + n) / B(1/2, 5) / (1 - p)^n = 20 at the upper end: a gamma ratio and a root.
    n = 100
    ratio = exp(lgamma(5 + n) + lgamma(5.5) - lgamma(5.5 + n) - lgamma(5))
    low, high = interval(0, n, 0.05)
    assert low == 0
    assert high == pytest.approx(1 - (ratio / 20) ** (1 / n))
    assert high == pytest.approx(0.0444, abs=5e-5)


def test_a_record_of_nothing_but_bad_has_no_upper_bound():
    assert interval(10, 10, 0.05).high == 1
    assert interval(10, 10, 0.05).low > 0.2


@given(counts)
def test_the_bounds_are_those_of_ville(case):
    from ville import BernoulliCS  # slow to import

    bad, n = case
    if n == 0:
        return
    oracle = BernoulliCS(alpha=0.05, prior=PRIOR, intersect=False)
    oracle.fit([1.0] * bad + [0.0] * (n - bad))
    low, high = interval(bad, n, 0.05)
    assert (low, high) == (
        pytest.approx(oracle.lower_[-1], abs=1e-6),
        pytest.approx(oracle.upper_[-1], abs=1e-6),
    )


@given(counts, st.floats(0.001, 0.5))
def test_less_doubt_is_a_wider_interval_around_what_was_seen(case, alpha):
    bad, n = case
    low, high = interval(bad, n, alpha)
    wider = interval(bad, n, alpha / 2)
    assert 0 <= wider.low <= low <= (bad / n if n else 0.5) <= high <= wider.high <= 1


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
def test_the_rate_is_hardly_ever_outside_at_any_look(rate):
    """200 runs of 2,000 answers, a look at every twentieth."""
    dice = np.random.default_rng(11)
    runs = dice.binomial(20, rate, size=(200, 100)).cumsum(axis=1)
    outside, known = 0, cache(interval)  # most runs have seen what another has
    for run in runs:
        bounds = [known(int(bad), 20 * (look + 1), 0.05) for look, bad in enumerate(run)]
        outside += any(not low <= rate <= high for low, high in bounds)
    assert outside / len(runs) <= 0.05
