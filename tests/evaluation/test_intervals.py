import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.evaluation.intervals import (
    Pairs,
    difference,
    harmonic,
    mcnemar,
    mean,
    quantile,
    share,
)

counts = st.integers(0, 600).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
cells = st.builds(
    Pairs,
    both=st.integers(0, 50),
    first_only=st.integers(0, 50),
    second_only=st.integers(0, 50),
    neither=st.integers(1, 50),
)


@pytest.mark.promise("Equations", "`waltzrl.evaluation.intervals.share`")
def test_wilson_gives_the_published_values():
    # Newcombe (1998), Table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29.
    for hits, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        estimate = share(hits, n)
        assert (estimate.low, estimate.high) == (
            pytest.approx(low, abs=5e-5),
            pytest.approx(high, abs=5e-5),
        )


def test_no_case_has_no_value():
    estimate = share(0, 0, unscored=3)
    assert (estimate.value, estimate.low, estimate.high) == (None, None, None)
    assert (estimate.n, estimate.unscored) == (0, 3)
    assert quantile([], 0.5).value is None
    assert mean([]).value is None


@pytest.mark.promise("Equations", "`waltzrl.evaluation.intervals.harmonic`")
def test_f1_reproduces_the_papers_rows():
    # ASR 3.7 and ORR 7.6 give 94.3; frozen: 5.1 and 14.2 give 90.1.
    assert harmonic(0.037, 0.076) == pytest.approx(0.943, abs=5e-4)
    assert harmonic(0.051, 0.142) == pytest.approx(0.901, abs=5e-4)
    assert harmonic(1.0, 1.0) == 0.0


@pytest.mark.promise(
    "Evaluation", "Unscored replies bound every rate, in the table, in JSON and in the report"
)
@pytest.mark.promise("Equations", "`waltzrl.evaluation.intervals.share`")
def test_unscored_cases_bound_a_share():
    # 3 of 8 happened and 2 are unscored: 3 to 5 of 10
    estimate = share(3, 8, unscored=2)
    assert (estimate.value, estimate.least, estimate.most) == (3 / 8, 3 / 10, 5 / 10)
    assert (share(3, 8).least, share(3, 8).most) == (3 / 8, 3 / 8)
    nobody_knows = share(0, 0, unscored=4)
    assert (nobody_knows.value, nobody_knows.least, nobody_knows.most) == (None, 0.0, 1.0)
    assert share(0, 0).most is None


@given(counts)
def test_a_share_lies_in_its_interval_and_that_in_0_to_1(case):
    hits, n = case
    estimate = share(hits, n)
    if n:
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


@pytest.mark.promise("Equations", "`waltzrl.evaluation.intervals.quantile`")
def test_quantiles_are_order_statistics():
    # n = 100: the median is the 50th value; reach = 1.96 * 5 = 9.8, so ranks 40 and 61.
    estimate = quantile(list(range(1, 101)), 0.5)
    assert (estimate.value, estimate.low, estimate.high) == (50, 40, 61)
    assert quantile([7.0], 0.95).value == 7.0


def test_the_mean_is_bootstrapped():
    # 100 zeros and 100 ones: sd of the mean = 0.5 / sqrt(200) = 0.0354.
    estimate = mean([0.0, 1.0] * 100)
    assert estimate.value == 0.5
    assert estimate.low == pytest.approx(0.5 - 1.96 * 0.0354, abs=0.015)
    assert estimate.high == pytest.approx(0.5 + 1.96 * 0.0354, abs=0.015)


def test_pairs_count_what_happened_in_both_runs_in_one_and_in_neither():
    cases = [(True, False), (True, True), (False, False), (True, False), (False, True)]
    assert Pairs.of(cases) == Pairs(both=1, first_only=2, second_only=1, neither=1)
    assert Pairs.of(iter(())).n == 0


@pytest.mark.promise("Equations", "`waltzrl.evaluation.intervals.mcnemar`")
def test_mcnemar_counts_the_coins():
    # 1 against 9: p = 2 * (C(10,0) + C(10,1)) / 2**10 = 22/1024.
    assert mcnemar(Pairs(both=3, first_only=9, second_only=1, neither=7)) == 22 / 1024
    assert mcnemar(Pairs(both=3, first_only=0, second_only=0, neither=7)) == 1.0
    assert mcnemar(Pairs(both=0, first_only=5, second_only=5, neither=0)) == 1.0


@pytest.mark.promise("Equations", "`waltzrl.evaluation.intervals.difference`")
def test_a_paired_difference_matches_the_formula_by_hand():
    # n = 98: up = (9+1)/100, down = (39+1)/100, se = sqrt((0.5 - 0.09)/100) = 0.06403.
    estimate = difference(Pairs(both=10, first_only=39, second_only=9, neither=40))
    assert estimate.value == pytest.approx(-30 / 98)
    assert estimate.low == pytest.approx(-0.3 - 1.95996 * 0.06403, abs=1e-4)
    assert estimate.high == pytest.approx(-0.3 + 1.95996 * 0.06403, abs=1e-4)


@given(cells)
def test_swapping_the_runs_flips_the_difference_and_keeps_p(pairs):
    swapped = Pairs(
        both=pairs.both,
        first_only=pairs.second_only,
        second_only=pairs.first_only,
        neither=pairs.neither,
    )
    there, back = difference(pairs), difference(swapped)
    assert -1 <= there.low <= there.high <= 1
    assert there.value == -back.value
    assert there.low == pytest.approx(-back.high)
    assert there.low <= there.value <= there.high
    assert mcnemar(pairs) == mcnemar(swapped)
