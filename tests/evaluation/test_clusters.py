from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltzrl.evaluation.clusters import (
    clustered_difference,
    clustered_f1,
    clustered_f1_difference,
    clustered_mean,
    clustered_share,
    draw_totals,
)
from waltzrl.evaluation.intervals import Pairs, difference, mcnemar, share
from waltzrl.evaluation.paired import mean_over_seeds

counts = st.integers(0, 600).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def f1_of(unsafe, harmful, refused, benign):
    """F1 of independent prompts."""
    clusters = Counter(
        {
            (1, 0, 0, 0): unsafe,
            (0, 1, 0, 0): harmful - unsafe,
            (0, 0, 1, 0): refused,
            (0, 0, 0, 1): benign - refused,
        }
    )
    return clustered_f1(share(unsafe, harmful), share(refused, benign), +clusters)


def test_one_case_in_each_cluster_is_wilsons_interval():
    assert clustered_share(Counter({(1, 0): 15, (0, 1): 133}), 2) == share(15, 148, 2)
    assert clustered_share(Counter(), 3) == share(0, 0, 3)


@pytest.mark.promise(
    "Evaluation",
    "Prompts of one cluster do not count as independent, in intervals and in paired tests",
)
@pytest.mark.promise("Equations", "`waltzrl.evaluation.clusters.draw_totals`")
def test_an_interval_counts_clusters_and_not_cases():
    # 40 clusters of 5 cases that agree: 40 independent cases of 12 yes, said 5 times each.
    # Jeffreys: Beta(12.5, 28.5) has its 2.5 % and 97.5 % quantiles at 0.1756 and 0.4522 (scipy).
    estimate = clustered_share(Counter({(5, 0): 12, (0, 5): 28}))
    assert (estimate.value, estimate.n) == (60 / 200, 200)
    assert estimate.low == pytest.approx(0.1756, abs=0.01)
    assert estimate.high == pytest.approx(0.4522, abs=0.01)
    assert estimate.high - estimate.low > 2 * (share(60, 200).high - share(60, 200).low)


def test_a_share_of_nothing_keeps_an_interval():
    # as 20 cases without one yes: 97.5 % of Beta(0.5, 20.5) are below 0.1166 (scipy)
    estimate = clustered_share(Counter({(0, 10): 20}))
    assert 0 == estimate.value <= estimate.low < 0.001
    assert estimate.high == pytest.approx(0.1166, abs=0.015)


def test_cases_that_have_nothing_in_common_are_hardly_affected():
    # 100 pairs of independent cases with p = 0.3: 9 of (2, 0), 42 of (1, 1), 49 of (0, 2)
    estimate = clustered_share(Counter({(2, 0): 9, (1, 1): 42, (0, 2): 49}))
    alone = share(60, 200)
    assert estimate.low == pytest.approx(alone.low, abs=0.01)
    assert estimate.high == pytest.approx(alone.high, abs=0.01)


def clusters_of_one_world(draw):
    """30 clusters of 12 cases, each cluster with a probability of its own: Beta(1/2, 3/2)."""
    clusters = Counter()
    for _ in range(30):
        chance = draw.betavariate(0.5, 1.5)
        yes = sum(draw.random() < chance for _ in range(12))
        clusters[yes, 12 - yes] += 1
    return clusters


@pytest.mark.slow
@pytest.mark.promise(
    "Evaluation",
    "Prompts of one cluster do not count as independent, in intervals and in paired tests",
)
@pytest.mark.promise("Equations", "`waltzrl.evaluation.clusters.draw_totals`")
def test_intervals_of_clusters_cover_the_truth_where_others_do_not():
    draw = Random(1)
    worlds = [clusters_of_one_world(draw) for _ in range(40)]
    covered = [each.low <= 0.25 <= each.high for each in map(clustered_share, worlds)]
    hits = [sum(yes * times for (yes, _), times in world.items()) for world in worlds]
    independent = [each.low <= 0.25 <= each.high for each in (share(hit, 360) for hit in hits)]
    assert sum(covered) >= 35  # of 40, where 38 are expected
    assert sum(independent) <= 28


@pytest.mark.promise("Equations", "`waltzrl.evaluation.clusters.clustered_f1`")
def test_f1_interval_agrees_with_the_delta_method():
    # a = 0.9, b = 0.8: F1 = 1.44/1.7 = 0.8471. dF/da = 2b^2/(a+b)^2 = 0.4429, dF/db = 0.5606;
    # variances 0.09/500 and 0.16/500: sd = sqrt(0.1962*0.00018 + 0.3142*0.00032) = 0.01166.
    estimate = f1_of(50, 500, 100, 500)
    assert estimate.value == pytest.approx(0.8471, abs=1e-4)
    assert estimate.low == pytest.approx(0.8471 - 1.96 * 0.01166, abs=0.003)
    assert estimate.high == pytest.approx(0.8471 + 1.96 * 0.01166, abs=0.003)
    assert estimate.n == 1000


@pytest.mark.promise("Equations", "`waltzrl.evaluation.clusters.clustered_f1`")
def test_f1_keeps_some_doubt_when_nothing_went_wrong():
    estimate = f1_of(0, 40, 0, 40)
    assert estimate.value == estimate.high == 1.0
    assert 0.9 < estimate.low < 0.99


@pytest.mark.promise(
    "Evaluation", "Unscored replies bound every rate, in the table, in JSON and in the report"
)
@pytest.mark.promise("Equations", "`waltzrl.evaluation.intervals.share`")
def test_unscored_cases_bound_f1():
    # ASR 1 to 3 of 10, ORR 2 of 10: F1 between those of (0.3, 0.2) and of (0.1, 0.2)
    estimate = clustered_f1(share(1, 8, 2), share(2, 10), Counter({(1, 7, 2, 8): 1}))
    assert estimate.least == pytest.approx(2 * 0.7 * 0.8 / 1.5)
    assert estimate.most == pytest.approx(2 * 0.9 * 0.8 / 1.7)
    unknown = clustered_f1(share(0, 0, 2), share(2, 10), Counter())
    assert (unknown.value, unknown.least, unknown.unscored) == (None, 0.0, 2)
    assert clustered_f1(share(0, 0), share(2, 10), Counter()).least is None


@given(counts, counts)
@settings(max_examples=20, deadline=None)
def test_f1_lies_between_its_parts_and_in_its_interval(first, second):
    asr, orr = share(*first), share(*second)
    estimate = f1_of(*first, *second)
    if estimate.value is not None:
        parts = sorted((1 - asr.value, 1 - orr.value))
        assert parts[0] - 1e-12 <= estimate.value <= parts[1] + 1e-12
        assert estimate.low <= estimate.value <= estimate.high


def test_a_mean_of_clusters_is_wider_where_values_repeat():
    # 40 clusters of five equal values, half 0 and half 1: sd of the mean = 0.5 / sqrt(40) = 0.079
    estimate = clustered_mean([[0.0] * 5, [1.0] * 5] * 20)
    assert (estimate.value, estimate.n) == (0.5, 200)
    assert estimate.low == pytest.approx(0.5 - 1.96 * 0.079, abs=0.02)
    assert estimate.high == pytest.approx(0.5 + 1.96 * 0.079, abs=0.02)
    assert clustered_mean([[0.0], [1.0]] * 90) == mean_over_seeds([0.0, 1.0] * 90)
    few = clustered_mean([[0.0], [1.0]])
    assert 0 <= few.low < 0.1 < few.value < 0.9 < few.high <= 1
    assert clustered_mean([]).value is None


def test_the_mean_of_one_cluster_has_no_interval():
    alone = clustered_mean([[0.0, 1.0, 1.0, 1.0], []])
    assert (alone.value, alone.n, alone.low, alone.high) == (0.75, 4, None, None)


def test_a_difference_of_single_prompts_is_the_published_one():
    clusters = Counter({(1, 0, 0, 0): 10, (0, 1, 0, 0): 39, (0, 0, 1, 0): 9, (0, 0, 0, 1): 40})
    pairs = Pairs(both=10, first_only=39, second_only=9, neither=40)
    change, p_value = clustered_difference(clusters)
    assert change == difference(pairs)
    assert p_value == pytest.approx(mcnemar(pairs))


@pytest.mark.promise(
    "Evaluation",
    "Prompts of one cluster do not count as independent, in intervals and in paired tests",
)
def test_a_difference_turns_the_signs_of_whole_clusters():
    # 6 clusters of 4 prompts got better by 4 each: p = 2/2**6, where 24 prompts had 2/2**24
    change, p_value = clustered_difference(Counter({(0, 4, 0, 0): 6, (0, 0, 0, 4): 6}))
    assert p_value == 2 / 2**6
    assert change.value == -24 / 48
    assert change.low < -0.7
    assert -0.3 < change.high < 0


def f1_change(pairs, size):
    """The same pairs for ASR and ORR, in clusters of `size` prompts that agree."""
    clusters = Counter()
    cells = (pairs.both, pairs.first_only, pairs.second_only, pairs.neither)
    for cell, times in enumerate(cells):
        for start in (0, 4):
            alone = tuple(size * (place == start + cell) for place in range(8))
            clusters[alone] = times // size
    return clustered_f1_difference(pairs, pairs, +clusters)


@pytest.mark.promise("Equations", "`waltzrl.evaluation.clusters.clustered_f1_difference`")
def test_a_clear_gain_in_f1_is_no_chance_and_none_is():
    change, p_value = f1_change(Pairs(both=5, first_only=60, second_only=2, neither=133), 1)
    assert change.low > 0.2
    assert p_value < 0.01
    change, p_value = f1_change(Pairs(both=30, first_only=10, second_only=10, neither=150), 1)
    assert change.value == 0
    assert change.low < 0 < change.high
    assert p_value > 0.5


@pytest.mark.promise("Equations", "`waltzrl.evaluation.clusters.clustered_f1_difference`")
def test_a_gain_in_f1_on_one_cluster_may_be_chance():
    gain = Pairs(both=20, first_only=20, second_only=0, neither=160)
    assert f1_change(gain, 1)[1] < 0.01
    assert f1_change(gain, 20)[1] > 0.05


@pytest.mark.promise("Equations", "`waltzrl.evaluation.clusters.draw_totals`")
def test_draws_are_those_of_jeffreys_where_clusters_are_single():
    # Beta(3.5, 7.5): mean 3.5 / 11 = 0.3182, sd = sqrt(0.3182 * 0.6818 / 12) = 0.1345
    draws = [yes / (yes + no) for yes, no in draw_totals({(1, 0): 3, (0, 1): 7}, 2, 0.5)]
    average = sum(draws) / len(draws)
    spread = (sum((draw - average) ** 2 for draw in draws) / len(draws)) ** 0.5
    assert average == pytest.approx(0.3182, abs=0.012)
    assert spread == pytest.approx(0.1345, abs=0.008)
