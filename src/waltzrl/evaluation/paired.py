"""Paired comparisons without a model of the rows: over seeds, or over clusters of rows.

Student (1908) for the mean of a few seeds; Fisher's (1935) test of random signs, which asks nothing
of the distribution; Westfall and Young (1993) for several such tests at once. With one difference
of 1 or -1 for each prompt, the test of random signs is McNemar's exact test.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from math import exp, fsum, lgamma, log, sqrt
from operator import mul
from random import Random
from statistics import fmean, stdev

from waltzrl.evaluation.intervals import SEED, Estimate, estimate_nothing

MOST_SUMS = 1 << 16
"""Distinct sums of half of the differences, those of 32 seeds: beyond, signs are drawn."""
SIGN_DRAWS = 20_000
EXACT_SEEDS = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedDifference:
    """One number of two arms, over the seeds that both were run with."""

    before: Estimate
    after: Estimate
    change: Estimate
    """The value after minus the value before: the mean over seeds, with Student's interval; n
    counts seeds."""
    t_p_value: float
    """Student's paired test, two-sided."""
    sign_p_value: float
    """The test of random signs, two-sided; with n seeds at least 2 / 2**n."""


def compare_seeds(before: Sequence[float], after: Sequence[float]) -> SeedDifference:
    """Compare two arms seed by seed.

    Args:
        before: [S] a number of one arm, such as its F1, by seed.
        after: [S] the same of the other arm, with the same seeds in the same order.

    Raises:
        ValueError: the arms differ in length, or have fewer than two seeds.
    """
    if len(before) < 2:
        raise ValueError(f"need two seeds or more to compare arms, got {len(before)}")
    changes = [second - first for first, second in zip(before, after, strict=True)]
    return SeedDifference(
        before=mean_over_seeds(before),
        after=mean_over_seeds(after),
        change=mean_over_seeds(changes),
        t_p_value=_t_test(changes),
        sign_p_value=sign_test(changes),
    )


def mean_over_seeds(values: Sequence[float]) -> Estimate:
    """Mean with Student's 95 % interval, which a single value does not have."""
    if not values:
        return estimate_nothing()
    n, mean = len(values), fmean(values)
    if n == 1:
        return Estimate(value=mean, low=None, high=None, n=1)
    half = t_quantile(n - 1) * stdev(values) / sqrt(n)
    return Estimate(value=mean, low=mean - half, high=mean + half, n=n)


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided p that the signs of the differences are those of fair coins.

    It is the share of all 2**n sign patterns whose sum is at least as far from 0. They are counted
    exactly by the sums of two halves; where these are too many, 20,000 seeded patterns are drawn.
    """
    moved = [abs(difference) for difference in differences if difference]
    reached = abs(sum(differences)) - 1e-9 * sum(moved)  # rounding must not lose a tie
    halves = [_sign_sums(moved[::2]), _sign_sums(moved[1::2])]
    if None in halves:
        rng = Random(SEED)
        draws = (sum(d if rng.random() < 0.5 else -d for d in moved) for _ in range(SIGN_DRAWS))
        # The observed signs count as one of the draws, so that p is never 0.
        return (1 + sum(abs(draw) >= reached for draw in draws)) / (1 + SIGN_DRAWS)
    first, second = (half for half in halves if half is not None)
    sums = sorted(second)
    below = [0, *accumulate(second[total] for total in sums)]  # patterns under the i-th sum
    extreme = sum(
        times
        * (
            below[-1]
            - below[bisect_left(sums, reached - total)]
            + below[bisect_right(sums, -reached - total)]
        )
        for total, times in first.items()
    )
    return min(1.0, extreme / (1 << len(moved)))


def joint_sign_tests(differences: Sequence[Sequence[float]]) -> list[float]:
    """Sign tests of several comparisons, adjusted: by chance, any of them is below p in p of cases.

    The step-down maximum of Westfall and Young (1993). A seed has the same sign in all comparisons:
    those that rise and fall together do not count as independent. Every pattern of signs is tried
    for up to 14 seeds, 20,000 seeded ones beyond; with n seeds p is at least 2 / 2**n.

    Args:
        differences: [C, S] of each comparison, by seed; 0 where it lacks the seed.
    """
    # Scaled to one length: otherwise the largest differences alone would make the maximum.
    lengths = [sqrt(fsum(value * value for value in row)) or 1.0 for row in differences]
    scaled = [
        [value / length for value in row] for row, length in zip(differences, lengths, strict=True)
    ]
    reached = [abs(fsum(row)) - 1e-9 for row in scaled]  # rounding must not lose a tie
    # Ascending: `largest` is then over this comparison and all that are less extreme.
    order = sorted(range(len(scaled)), key=reached.__getitem__)
    seeds = len(scaled[0]) if scaled else 0
    exact = seeds <= EXACT_SEEDS
    extreme = [0] * len(scaled)
    for signs in product((1, -1), repeat=seeds) if exact else _drawn_signs(seeds):
        largest = 0.0
        for place in order:
            largest = max(largest, abs(sum(map(mul, signs, scaled[place]))))
            extreme[place] += largest >= reached[place]
    total = 2**seeds if exact else SIGN_DRAWS
    adjusted, least = [0.0] * len(scaled), 0.0
    # A less extreme comparison never gets a smaller p than a more extreme one.
    for place in reversed(order):
        p_value = extreme[place] / total if exact else (1 + extreme[place]) / (1 + total)
        adjusted[place] = least = max(least, p_value)
    return adjusted


def _drawn_signs(seeds: int) -> Iterator[Sequence[int]]:
    rng = Random(SEED)
    return (rng.choices((1, -1), k=seeds) for _ in range(SIGN_DRAWS))


def t_quantile(degrees: int, probability: float = 0.975) -> float:
    """Quantile of Student's t above its median, by bisection."""
    low, high = 0.0, 1e6
    while high - low > 1e-10 * (1 + high):
        middle = (low + high) / 2
        low, high = (low, middle) if _t_tail(middle, degrees) < 1 - probability else (middle, high)
    return high


def _sign_sums(sizes: Sequence[float]) -> Counter[float] | None:
    """Count the sign patterns by their sum; None where there are too many sums."""
    sums: Counter[float] = Counter({0.0: 1})
    for size in sizes:
        longer: Counter[float] = Counter()
        for total, times in sums.items():
            for moved in (total + size, total - size):
                longer[round(moved, 12)] += times  # equal sums in another order are equal
        if len(longer) > MOST_SUMS:
            return None
        sums = longer
    return sums


def _t_test(differences: Sequence[float]) -> float:
    mean, spread = fmean(differences), stdev(differences)
    # Equal differences leave no doubt, whatever their number.
    if not spread:
        return 0.0 if mean else 1.0
    t = abs(mean) / (spread / sqrt(len(differences)))
    return 2 * _t_tail(t, len(differences) - 1)


def _t_tail(t: float, degrees: int) -> float:
    """P(T > t) for t >= 0: half the incomplete beta function I_x(d/2, 1/2), x = d / (d + t^2)."""
    return _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) by its continued fraction (DLMF 8.17.22), evaluated from the end."""
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _incomplete_beta(b, a, 1 - x)
    if x <= 0:
        return 0.0
    fraction = 1.0
    for m in range(200, 0, -1):
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        fraction = 1 + odd / (1 + even / fraction)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    return front / (a * fraction)
