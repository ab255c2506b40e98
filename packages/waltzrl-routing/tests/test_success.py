"""The posterior of an agent's success, and its interval, against SciPy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.errors import InputError
from waltzrl_routing.success import success_rate


def test_without_anything_known_all_rates_are_as_likely():
    # Beta(1, 1) is uniform.
    assert success_rate(0, 0) == pytest.approx((0.5, 0.025, 0.975))


def test_three_of_four_by_hand():
    # Beta(4, 2): mean 4/6. P(X <= x) = 5 x^4 - 4 x^5, which is 0.025 at 0.28358.
    rate = success_rate(3, 4)
    assert rate.mean == pytest.approx(4 / 6)
    assert 5 * rate.low**4 - 4 * rate.low**5 == pytest.approx(0.025)
    assert 5 * rate.high**4 - 4 * rate.high**5 == pytest.approx(0.975)
    assert str(rate) == "0.67 (0.28-0.95)"


def test_a_documents_estimate_counts_as_eight_tasks():
    # Beta(1 + 8 * 0.75, 1 + 8 * 0.25), as after 6 of 8 tasks.
    assert success_rate(0, 0, prior=0.75) == success_rate(6, 8)
    assert success_rate(0, 0, prior=0.0) == success_rate(0, 8)


def test_observed_results_outweigh_an_estimate():
    assert success_rate(90, 100, prior=0.1).low > success_rate(50, 100, prior=1.0).high


@pytest.mark.promise(
    "Routing",
    "Observed results outweigh an agent's own claim; intervals are those of the Beta posterior",
)
@given(st.integers(0, 1000), st.integers(0, 1000), st.none() | st.floats(0, 1))
def test_an_interval_leaves_a_fortieth_of_the_posterior_on_each_side(good, bad, prior):
    from scipy.stats import beta  # slow to import

    rate = success_rate(good, good + bad, prior)
    worth = 0 if prior is None else 8
    posterior = beta(1 + worth * (prior or 0) + good, 1 + worth * (1 - (prior or 0)) + bad)
    assert posterior.cdf(rate.low) == pytest.approx(0.025, abs=1e-6)
    assert posterior.sf(rate.high) == pytest.approx(0.025, abs=1e-6)
    assert rate.mean == pytest.approx(posterior.mean())


@pytest.mark.parametrize("counts", [(3, 2), (-1, 2)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(InputError, match=f"counts {counts[0]} successes in 2 tasks; need 0 to 2"):
        success_rate(*counts)
