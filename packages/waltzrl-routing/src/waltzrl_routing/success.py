"""How often an agent succeeds at a type of task: a Beta posterior with its 95 % interval.

    rate ~ Beta(1 + 8 p, 1 + 8 (1 - p))        p is the document's success_rate: eight trials' worth
    rate ~ Beta(1, 1)                          where the document has none
    rate | s of n ~ Beta(a + s, b + n - s)

The quantiles are found by Halley's method on the regularised incomplete beta function, which is
the continued fraction 8.17.22 of the NIST Digital Library of Mathematical Functions.
"""

from functools import lru_cache
from math import exp, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import NamedTuple, Protocol

from waltzrl.errors import InputError

PRIOR_TRIALS = 8
"""The number of observed tasks that a document's `success_rate` counts for."""
TAIL = 0.025
"""The probability beyond each end of the interval."""
PRECISION = 1e-9
SMALL_STEP = 1e-3
"""The step, in units of the log-odds, after which the error is small enough."""
SMALLEST = 1e-300
"""A number that stands for zero where we divide."""


class History(Protocol):
    """What was observed of agents."""

    def success(self, agent: str, task_type: str) -> tuple[int, int]:
        """Return how many of an agent's tasks of a type succeeded, and how many there were."""


class SuccessRate(NamedTuple):
    """A posterior mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f}-{self.high:.2f})"


def success_rate(successes: int, trials: int, prior: float | None = None) -> SuccessRate:
    """Return the posterior.

    Args:
        successes: tasks that succeeded.
        trials: tasks observed.
        prior: somebody's estimate, 0 to 1; None for none.

    Raises:
        InputError: there are more successes than trials, or fewer than none.
    """
    if not 0 <= successes <= trials:
        raise InputError(
            f"the history counts {successes} successes in {trials} tasks; need 0 to {trials}"
        )
    worth = 0 if prior is None else PRIOR_TRIALS
    share = prior or 0.0
    a = 1 + worth * share + successes
    b = 1 + worth * (1 - share) + trials - successes
    return SuccessRate(a / (a + b), *_compute_interval(a, b))


@lru_cache(maxsize=65536)
def _compute_interval(a: float, b: float) -> tuple[float, float]:
    # The upper end by symmetry: 1 - rate has the distribution Beta(b, a).
    return beta_quantile(TAIL, a, b), 1 - beta_quantile(TAIL, b, a)


def beta_quantile(share: float, a: float, b: float) -> float:
    """Return x below which Beta(a, b) has this share; a and b are 1 or more."""
    low, high = 0.0, 1.0
    normal = NormalDist(log(a / b), sqrt(1 / a + 1 / b)).inv_cdf(share)  # of the log-odds
    x = 1 / (1 + exp(-normal))
    while high - low > PRECISION:
        excess = _compute_share_below(x, a, b) - share
        low, high = (low, x) if excess > 0 else (x, high)
        density = exp((a - 1) * log(x) + (b - 1) * log1p(-x) - _compute_log_beta(a, b))
        newton = excess / max(density, SMALLEST)
        curvature = (a - 1) / x - (b - 1) / (1 - x)
        # Halley's correction may at most double the step: far from the root it is not to be
        # trusted.
        step = newton / max(1 - newton * curvature / 2, 0.5)
        # A step out of the bracket is replaced by bisection, so that it always ends.
        if not low < x - step < high:
            x = (low + high) / 2
            continue
        x -= step
        if abs(step) < SMALL_STEP * x * (1 - x):
            break  # the error of the next one would be about its cube
    return x


def _compute_share_below(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), 0 < x < 1."""
    if x > (a + 1) / (a + b + 2):  # there the fraction of the complement converges faster
        return 1 - _compute_share_below(1 - x, b, a)
    front = exp(a * log(x) + b * log1p(-x) - _compute_log_beta(a, b)) / a
    return front * _evaluate_fraction(x, a, b)


def _evaluate_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the fraction by Lentz's method, two of its terms a turn."""
    numerator, denominator = 1.0, 1 / (1 - (a + b) * x / (a + 1) or SMALLEST)
    value = denominator
    change, m = 0.0, 0
    while abs(change - 1) > PRECISION:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        denominator = 1 / (1 + even * denominator or SMALLEST)
        numerator = 1 + even / numerator or SMALLEST
        value *= numerator * denominator
        denominator = 1 / (1 + odd * denominator or SMALLEST)
        numerator = 1 + odd / numerator or SMALLEST
        change = numerator * denominator
        value *= change
    return value


def _compute_log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
