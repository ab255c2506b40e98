"""Estimates with 95 % intervals of independent cases, in plain Python.

Wilson (1927) for shares; Bonett and Price (2012) for a difference of paired shares; McNemar's exact
test; order statistics for quantiles; bootstrap for means. `clusters.py` has the intervals of cases
that come in clusters, and of functions of several shares.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, comb, floor, sqrt
from random import Random
from statistics import fmean
from typing import Self

Z_95 = 1.959963984540054
"""The standard normal leaves 2.5 % beyond it on each side."""
DRAWS = 2000
SEED = 20251


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured number, its 95 % interval, and how many cases it rests on."""

    value: float | None
    """The measured value; None, like `low` and `high`, when there was no case to measure."""
    low: float | None
    high: float | None
    n: int
    unscored: int = 0
    """Cases the judge left undecided; they are not in `n`."""
    least: float | None = None
    """The value if the judge had decided every unscored case for the smaller value; None for what
    is no share, or for nothing at all."""
    most: float | None = None
    """The same for the larger value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The same cases in two runs: how many happened in both, in one, in neither."""

    both: int
    first_only: int
    second_only: int
    neither: int

    @classmethod
    def of(cls, cases: Iterable[tuple[bool, bool]]) -> Self:
        """Count cases: whether it happened in the first run, and in the second."""
        counts = Counter(cases)
        return cls(
            both=counts[True, True],
            first_only=counts[True, False],
            second_only=counts[False, True],
            neither=counts[False, False],
        )

    @property
    def n(self) -> int:
        return self.both + self.first_only + self.second_only + self.neither

    @property
    def first(self) -> float:
        """Share in the first run."""
        return (self.both + self.first_only) / self.n

    @property
    def second(self) -> float:
        """Share in the second run."""
        return (self.both + self.second_only) / self.n


def estimate_nothing(unscored: int = 0) -> Estimate:
    return Estimate(value=None, low=None, high=None, n=0, unscored=unscored)


def share(hits: int, n: int, unscored: int = 0) -> Estimate:
    """Share of `n` cases, with Wilson's interval."""
    cases = n + unscored
    if cases == 0:
        return estimate_nothing()
    # Whatever the judge would have decided of the unscored cases, the share lies between these.
    least, most = hits / cases, (hits + unscored) / cases
    if n == 0:
        return replace(estimate_nothing(unscored), least=least, most=most)
    value, weight = hits / n, Z_95**2 / n
    centre = (value + weight / 2) / (1 + weight)
    half = sqrt(value * (1 - value) * weight + weight**2 / 4) / (1 + weight)
    estimate = make_estimate(value, max(0.0, centre - half), min(1.0, centre + half), n)
    return replace(estimate, unscored=unscored, least=least, most=most)


def share_of(outcomes: Iterable[bool | None]) -> Estimate:
    """Share of the outcomes that are true; None is unscored."""
    counts = Counter(outcomes)
    return share(counts[True], counts[True] + counts[False], counts[None])


def harmonic(asr: float, orr: float) -> float:
    """The paper's F1: harmonic mean of (1 - ASR) and (1 - ORR)."""
    safe, helpful = 1 - asr, 1 - orr
    return 2 * safe * helpful / (safe + helpful) if safe + helpful > 0 else 0.0


def quantile(values: Sequence[float], q: float) -> Estimate:
    """The `q` quantile; its interval is a pair of order statistics, whatever the distribution."""
    if not values:
        return estimate_nothing()
    ranked, n = sorted(values), len(values)
    reach = Z_95 * sqrt(n * q * (1 - q))

    def at(rank: float) -> float:
        return ranked[min(max(int(rank), 1), n) - 1]

    return make_estimate(at(ceil(n * q)), at(floor(n * q - reach)), at(ceil(n * q + reach) + 1), n)


def mean(values: Sequence[float]) -> Estimate:
    """The mean, with a percentile bootstrap."""
    if not values:
        return estimate_nothing()
    rng, n = Random(SEED), len(values)
    draws = [fmean(rng.choices(values, k=n)) for _ in range(DRAWS // 2)]
    return from_draws(fmean(values), draws, n)


def difference(pairs: Pairs) -> Estimate:
    """Share in the second run minus share in the first, after Bonett and Price."""
    n = pairs.n
    if n == 0:
        return estimate_nothing()
    up, down = (pairs.second_only + 1) / (n + 2), (pairs.first_only + 1) / (n + 2)
    half = Z_95 * sqrt((up + down - (up - down) ** 2) / (n + 2))
    value = (pairs.second_only - pairs.first_only) / n
    low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    return make_estimate(value, low, high, n)


def mcnemar(pairs: Pairs) -> float:
    """Exact two-sided p that a fair coin decided the cases in which the runs differ."""
    fewer, total = min(pairs.first_only, pairs.second_only), pairs.first_only + pairs.second_only
    tail = sum(comb(total, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / (1 << total))


def sign_p_value(draws: Sequence[float]) -> float:
    """Two-sided p that the sign is chance; at least what this number of draws can resolve."""
    # One more on each side: so many draws cannot show that p is smaller.
    below = sum(draw <= 0 for draw in draws) + 1
    above = sum(draw >= 0 for draw in draws) + 1
    return min(1.0, 2 * min(below, above) / (len(draws) + 1))


def from_draws(value: float, draws: Sequence[float], n: int) -> Estimate:
    """A value with the middle 95 % of its draws."""
    ranked = sorted(draws)
    tail = round(len(ranked) * 0.025)
    return make_estimate(value, ranked[tail], ranked[-tail - 1], n)


def make_estimate(value: float, low: float, high: float, n: int) -> Estimate:
    """An interval that holds its value, also where rounding or a boundary pushed it out."""
    return Estimate(value=value, low=min(low, value), high=max(high, value), n=n)
