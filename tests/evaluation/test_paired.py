from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltzrl.evaluation.intervals import Pairs, mcnemar
from waltzrl.evaluation.paired import (
    SIGN_DRAWS,
    compare_seeds,
    joint_sign_tests,
    mean_over_seeds,
    sign_test,
    t_quantile,
)


@pytest.mark.promise("Equations", "`waltzrl.evaluation.paired.compare_seeds`")
def test_students_t_has_the_published_quantiles():
    for degrees, value in ((1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (19, 2.093)):
        assert t_quantile(degrees) == pytest.approx(value, abs=5e-4)
    assert t_quantile(9, 0.95) == pytest.approx(1.833, abs=5e-4)


@pytest.mark.promise(
    "Evaluation",
    "Arms are compared over the same seeds, by the paired t-test and the exact test of random "
    "signs",
)
@pytest.mark.promise("Equations", "`waltzrl.evaluation.paired.compare_seeds`")
def test_arms_are_compared_seed_by_seed_as_by_hand():
    # changes 1, 0.5, 0.1, 1.5: mean 0.775, s = 0.6076, t = 0.775 / (s / 2) = 2.551, df 3;
    # scipy.stats.ttest_rel gives p = 0.083866. Of 16 sign patterns only ++++ and its mirror image
    # reach a sum of 3.1.
    found = compare_seeds([1, 2, 3, 4.5], [2, 2.5, 3.1, 6])
    assert found.t_p_value == pytest.approx(0.083866, abs=1e-6)
    assert found.sign_p_value == 2 / 16
    assert found.change.value == pytest.approx(0.775)
    assert found.change.high - 0.775 == pytest.approx(3.1824 * 0.60759 / 2, abs=1e-3)
    assert (found.before.value, found.after.value, found.change.n) == (2.625, 3.4, 4)


def test_one_seed_has_a_mean_without_an_interval_and_no_comparison():
    estimate = mean_over_seeds([3.0])
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (3.0, None, None, 1)
    assert mean_over_seeds([]).value is None
    with pytest.raises(ValueError, match="two seeds or more"):
        compare_seeds([1.0], [2.0])


def test_equal_arms_differ_by_nothing():
    found = compare_seeds([1.0, 2.0], [1.0, 2.0])
    assert (found.change.value, found.t_p_value, found.sign_p_value) == (0.0, 1.0, 1.0)
    assert compare_seeds([0.0, 0.0], [1.0, 1.0]).t_p_value == 0.0


VALUES = st.integers(-40, 40).map(lambda tenths: tenths / 10)
DIFFERENCES = st.lists(VALUES, max_size=8)


@pytest.mark.promise(
    "Evaluation",
    "Arms are compared over the same seeds, by the paired t-test and the exact test of random "
    "signs",
)
@pytest.mark.promise("Equations", "`waltzrl.evaluation.paired.sign_test`")
@given(DIFFERENCES)
@settings(deadline=None)
def test_the_sign_test_counts_all_patterns(differences):
    reached = abs(sum(differences)) - 1e-9
    patterns = list(product((1, -1), repeat=len(differences)))
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in patterns]
    assert sign_test(differences) == pytest.approx(
        sum(abs(total) >= reached for total in sums) / len(patterns)
    )


@pytest.mark.promise("Equations", "`waltzrl.evaluation.paired.sign_test`")
@given(st.integers(0, 60), st.integers(0, 60))
@settings(deadline=None, max_examples=30)
def test_with_one_vote_a_prompt_the_sign_test_is_mcnemars(worse, better):
    pairs = Pairs(both=0, first_only=worse, second_only=better, neither=3)
    votes = [-1] * worse + [1] * better + [0] * 3
    assert sign_test(votes) == pytest.approx(mcnemar(pairs))


@pytest.mark.slow
def test_many_uneven_differences_are_drawn_and_still_resolved():
    uneven = [1 + 0.001 * 1.3**n for n in range(40)]
    assert sign_test(uneven) == 1 / (1 + SIGN_DRAWS)


@pytest.mark.promise(
    "Evaluation", "A study's tests are paired by seed, and adjusted for the number of rows"
)
def test_joint_sign_tests_are_those_of_a_pen():
    # of the eight patterns of three signs, two add the first row up to 3, and two the second: 4 / 8
    assert joint_sign_tests([[1, 1, 1], [1, -1, 1]]) == [0.5, 1.0]
    assert joint_sign_tests([[1, -1, 1], [1, 1, 1]]) == [1.0, 0.5]
    assert joint_sign_tests([]) == []


@given(DIFFERENCES)
def test_rows_that_rise_and_fall_together_are_one_test(differences):
    alone = sign_test(differences)
    doubled = [2 * one for one in differences]
    assert joint_sign_tests([differences]) == pytest.approx([alone])
    assert joint_sign_tests([differences, doubled]) == pytest.approx([alone, alone])


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=2, max_size=7))
def test_a_joint_sign_test_is_never_below_the_test_alone(rows):
    rows = [list(row) for row in zip(*rows, strict=True)]
    for joint, row in zip(joint_sign_tests(rows), rows, strict=True):
        assert sign_test(row) - 1e-9 <= joint <= 1


def test_joint_sign_tests_of_many_seeds_are_drawn():
    rows = [[1.0 + 0.01 * n for n in range(20)], [(-1.0) ** n for n in range(20)]]
    first, second = joint_sign_tests(rows)
    assert first < 1e-3
    assert second > 0.9
