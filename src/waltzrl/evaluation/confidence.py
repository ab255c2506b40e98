"""Bounds of a rate that hold at all times at once.

The beta-binomial mixture of Robbins, as in Howard, Ramdas, McAuliffe, Sekhon (2021): Time-uniform,
nonparametric, nonasymptotic confidence sequences. arXiv 1810.08240. For a rate p the mixture over
Beta(a, b) of its alternatives is an e-process,

    E(p) = B(a + bad, b + n - bad) / B(a, b) / (p^bad (1 - p)^(n - bad))

and the interval is every p with E(p) < 1/alpha. The prior moves the width, never the coverage.
"""

from collections.abc import Callable
from math import lgamma, log, log1p
from typing import NamedTuple

PRIOR = (0.5, 5.0)
"""The prior's a and b: narrow where bad outcomes are rare."""
HALVINGS = 50


class ConfidenceInterval(NamedTuple):
    low: float
    high: float


def interval(bad: int, n: int, alpha: float) -> ConfidenceInterval:
    """Return an interval that the rate is ever outside of with probability `alpha` at most."""
    if n == 0:
        return ConfidenceInterval(0.0, 1.0)
    least = log_mixture(bad, n) + log(alpha)

    def inside(rate: float) -> bool:
        # E(p) < 1 / alpha, in logarithms.
        return log_likelihood(bad, n, rate) > least

    # No outcome contradicts a rate of 0 where none is bad, or of 1 where all are.
    low = 0.0 if bad == 0 else _bisect_edge(inside, bad / n, 0.0)
    high = 1.0 if bad == n else _bisect_edge(inside, bad / n, 1.0)
    return ConfidenceInterval(low, high)


def log_mixture(bad: int, n: int, prior: tuple[float, float] = PRIOR) -> float:
    """Return the log-likelihood of outcomes under the mixture: that of E(p) plus that under p."""
    a, b = prior
    return _compute_log_beta(a + bad, b + n - bad) - _compute_log_beta(a, b)


def log_likelihood(bad: int, n: int, rate: float) -> float:
    """Return the log-likelihood of outcomes under a rate."""
    bad_part = bad * log(rate) if bad else 0.0
    return bad_part + ((n - bad) * log1p(-rate) if n > bad else 0.0)


def _bisect_edge(inside: Callable[[float], bool], within: float, beyond: float) -> float:
    """Bisect between a rate inside and one outside; return the outer end, which is conservative."""
    for _ in range(HALVINGS):
        middle = (within + beyond) / 2
        if inside(middle):
            within = middle
        else:
            beyond = middle
    return beyond


def _compute_log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
