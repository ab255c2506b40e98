"""Intervals of cases that come in clusters: of one prompt, goal or topic.

Such cases succeed and fail together, so that a hundred of them tell less than a hundred prompts.
Intervals are drawn by a Bayesian bootstrap of whole clusters (Rubin 1981), which for clusters of
one case is the draws of Jeffreys; p-values turn the signs of whole clusters. Draws are seeded: the
same rows give the same interval.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import mul
from random import Random
from statistics import fmean

from waltzrl.evaluation.intervals import (
    DRAWS,
    SEED,
    Estimate,
    Pairs,
    difference,
    estimate_nothing,
    from_draws,
    harmonic,
    share,
    sign_p_value,
)
from waltzrl.evaluation.paired import mean_over_seeds, sign_test

Cells = tuple[float, ...]
"""Cases of one cluster in each cell of a table, such as (yes, no); tables stand side by side."""
Clusters = Counter[Cells]
"""The number of clusters that have the same cells."""
MANY = 100
"""Values whose mean is as good as normal."""


def draw_totals(clusters: Mapping[Cells, float], width: int, prior: float) -> Iterator[list[float]]:
    """Yield `DRAWS` times the cells of all clusters together, each with a random weight.

    The weights are Dirichlet's. A cluster of average size that weighs `prior` is added for every
    cell, so that a share of 0 % keeps an interval. With clusters of one case, a share is drawn from
    Beta(yes + prior, no + prior).

    Args:
        clusters: how many clusters have the same cells.
        width: cells of one table.
        prior: 1/2 for the cells (yes, no), 1/4 for those of `Pairs`; 0 adds nothing.
    """
    weights: dict[Cells, float] = dict(clusters)
    cells = len(next(iter(clusters)))
    # Tables that stand side by side each get prior clusters of their own.
    for start in range(0, cells, width) if prior else ():
        sizes = {each: sum(each[start : start + width]) for each in clusters}
        present = sum(times for each, times in clusters.items() if sizes[each])
        size = sum(sizes[each] * times for each, times in clusters.items()) / (present or 1)
        for cell in range(start, start + width):
            alone = tuple(size if place == cell else 0 for place in range(cells))
            weights[alone] = weights.get(alone, 0) + prior
    ordered = sorted(weights, reverse=True)  # whatever the order of the rows, the same draws
    columns = list(zip(*ordered, strict=True))
    rng = Random(SEED)
    for _ in range(DRAWS):
        # Dirichlet's weights but for their sum, which cancels out in every share and mean.
        drawn = [rng.gammavariate(weights[each], 1.0) for each in ordered]
        yield [sum(map(mul, drawn, column)) for column in columns]


def clustered_share(clusters: Clusters, unscored: int = 0) -> Estimate:
    """Share of yes, of clusters of (yes, no); Wilson's interval where each has one case."""
    yes, no = _add_up_cells(clusters, 2)
    estimate = share(yes, yes + no, unscored)
    if estimate.value is None or _one_case_each(clusters):
        return estimate
    draws = [yes / (yes + no) for yes, no in draw_totals(clusters, 2, 0.5)]
    drawn = from_draws(estimate.value, draws, estimate.n)
    return replace(estimate, low=drawn.low, high=drawn.high)


def clustered_f1(asr: Estimate, orr: Estimate, clusters: Clusters) -> Estimate:
    """F1 of two shares, of clusters of (unsafe, not, over-refused, not)."""
    unscored = asr.unscored + orr.unscored
    bounds = estimate_nothing(unscored)
    if asr.most is not None and orr.most is not None and asr.least is not None:
        assert orr.least is not None
        least, most = harmonic(asr.most, orr.most), harmonic(asr.least, orr.least)
        bounds = replace(bounds, least=least, most=most)
    if asr.value is None or orr.value is None:
        return bounds
    draws = [
        harmonic(unsafe / (unsafe + safe), refused / (refused + answered))
        for unsafe, safe, refused, answered in draw_totals(clusters, 2, 0.5)
    ]
    drawn = from_draws(harmonic(asr.value, orr.value), draws, asr.n + orr.n)
    return replace(drawn, unscored=unscored, least=bounds.least, most=bounds.most)


def clustered_mean(values: Sequence[Sequence[float]]) -> Estimate:
    """Mean over all values, of clusters of values; Student's interval of many single ones.

    A single cluster has no interval: nothing tells how far another would lie from it.
    """
    alone = [value for group in values for value in group]
    if not alone or (len(alone) >= MANY and all(len(group) <= 1 for group in values)):
        return mean_over_seeds(alone)
    if sum(bool(group) for group in values) == 1:
        return replace(estimate_nothing(), value=fmean(alone), n=len(alone))
    clusters: Clusters = Counter((sum(group), len(group)) for group in values if group)
    draws = [total / n for total, n in draw_totals(clusters, 2, 0)]
    return from_draws(sum(alone) / len(alone), draws, len(alone))


def clustered_difference(clusters: Clusters) -> tuple[Estimate, float]:
    """Share in the second run minus share in the first, and a two-sided p.

    Args:
        clusters: of the cells of `Pairs`. With one case in each, the interval is that of Bonett and
            Price, and the test McNemar's.
    """
    estimate = difference(pairs_of(clusters))
    changes = [second - first for _, first, second, _ in clusters.elements()]
    if estimate.value is None or _one_case_each(clusters):
        return estimate, sign_test(changes)
    draws = [
        (second - first) / (both + first + second + neither)
        for both, first, second, neither in draw_totals(clusters, 4, 0.25)
    ]
    return from_draws(estimate.value, draws, estimate.n), sign_test(changes)


def clustered_f1_difference(asr: Pairs, orr: Pairs, clusters: Clusters) -> tuple[Estimate, float]:
    """F1 in the second run minus F1 in the first, and a two-sided p, from the same draws.

    Args:
        asr: the unsafe prompts of both runs.
        orr: the benign ones.
        clusters: of the cells of both, side by side.
    """
    if asr.n == 0 or orr.n == 0:
        return estimate_nothing(), 1.0
    draws = [
        harmonic(*_rates_of_run(cells, 2)) - harmonic(*_rates_of_run(cells, 1))
        for cells in draw_totals(clusters, 4, 0.25)
    ]
    value = harmonic(asr.second, orr.second) - harmonic(asr.first, orr.first)
    return from_draws(value, draws, asr.n + orr.n), sign_p_value(draws)


def pairs_of(clusters: Clusters) -> Pairs:
    """Add up the cells of all clusters."""
    both, first_only, second_only, neither = _add_up_cells(clusters, 4)
    return Pairs(both=both, first_only=first_only, second_only=second_only, neither=neither)


def _rates_of_run(cells: Sequence[float], run: int) -> tuple[float, float]:
    """Return ASR and ORR of run 1 or 2, from the cells of the `Pairs` of both rates."""
    asr, orr = cells[:4], cells[4:]
    return (asr[0] + asr[run]) / sum(asr), (orr[0] + orr[run]) / sum(orr)


def _add_up_cells(clusters: Clusters, cells: int) -> list[int]:
    return [
        round(sum(each[cell] * times for each, times in clusters.items())) for cell in range(cells)
    ]


def _one_case_each(clusters: Clusters) -> bool:
    return all(sum(cells) <= 1 for cells in clusters)
