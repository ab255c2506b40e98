import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from waltzrl.evaluation.confidence import interval, log_likelihood, log_mixture
from waltzrl.evaluation.sample_correction import (
    DO_NOT_FIT,
    DOUBT,
    FLAT,
    WIDER,
    JudgeError,
    LabelledSample,
    RateDifference,
    difference,
    judged_rate,
    observed_limit,
    observed_rate,
)

SAMPLE = LabelledSample(true_positives=30, false_positives=10, false_negatives=2, true_negatives=98)
"""Of what the judge calls bad 75 % are, of the rest 2 %."""
samples = st.builds(
    LabelledSample,
    true_positives=st.integers(0, 80),
    false_negatives=st.integers(0, 10),
    false_positives=st.integers(0, 80),
    true_negatives=st.integers(10, 200),
)


def likeliest_within(bad, n, labels, steps=120):
    """Return the lowest and the highest rate of all shares within the interval, on a grid."""
    tp, fn, fp, tn = labels
    strata = ((bad, n), (tp, tp + fp, FLAT), (fn, fn + tn))
    any_share = np.linspace(1e-3, 0.999, steps)
    grids = any_share, any_share, np.geomspace(1e-4, 0.6, steps)
    called, precision, missed = np.meshgrid(*grids, indexing="ij")
    rates = called * precision + (1 - called) * missed
    likelihoods = np.meshgrid(
        *[
            [log_likelihood(stratum[0], stratum[1], share) for share in grid]
            for stratum, grid in zip(strata, grids, strict=True)
        ],
        indexing="ij",
    )
    allowed = sum(log_mixture(*stratum) for stratum in strata) + np.log(DOUBT)
    within = rates[sum(likelihoods) > allowed]
    return within.min(), within.max()


def test_a_rate_is_corrected_as_worked_by_hand():
    # 20 % * 75 % + 80 % * 2 % = 16.6 %
    rate = judged_rate(80, 400, SAMPLE)
    assert rate.value == pytest.approx(0.166)
    assert (rate.n, rate.bad, rate.labels, rate.corrected) == (400, 80, 140, True)
    assert rate.low < 0.166 < rate.high


@pytest.mark.parametrize(
    ("bad", "n", "labels"), [(80, 400, (30, 2, 10, 98)), (44, 358, (9, 0, 23, 60))]
)
def test_the_bounds_are_those_of_all_shares_whose_evidence_is_too_small(bad, n, labels):
    names = ("true_positives", "false_negatives", "false_positives", "true_negatives")
    rate = judged_rate(bad, n, LabelledSample(**dict(zip(names, labels, strict=True))))
    low, high = likeliest_within(bad, n, labels)
    assert rate.low <= low == pytest.approx(rate.low, abs=0.012)
    assert rate.high >= high == pytest.approx(rate.high, abs=0.012)


def test_where_labels_do_not_fit_no_interval_narrows_and_it_is_said():
    # the false alarms, 12 of 12, explain all that the judge found
    misfit = LabelledSample(false_positives=12, true_negatives=148)
    rate, before = judged_rate(25, 100, misfit), observed_rate(25, 100)
    assert (rate.note, rate.corrected, rate.value) == (DO_NOT_FIT, False, 0.25)
    assert rate.low <= before.low
    assert rate.high >= before.high


def test_a_judge_that_guesses_does_not_fit():
    guessing = LabelledSample(
        true_positives=10, false_positives=40, false_negatives=20, true_negatives=80
    )
    assert judged_rate(100, 400, guessing).note == DO_NOT_FIT


def test_ten_labels_of_each_kind_are_needed_or_all_that_there_are():
    few = LabelledSample(true_positives=6, false_positives=3, true_negatives=500)
    assert few.lacks(bad=50, n=900) == 1
    assert judged_rate(50, 900, few) == observed_rate(50, 900)
    assert few.lacks(bad=9, n=900) == 0
    assert judged_rate(9, 900, few).corrected
    assert LabelledSample(true_negatives=4).lacks(bad=20, n=40) == 16
    assert LabelledSample().lacks(bad=0, n=0) == 0


@given(samples, st.integers(0, 300))
def test_a_label_widens_no_interval_without_a_word(sample, bad):
    before, after = observed_rate(bad, 300), judged_rate(bad, 300, sample)
    assert 0 <= after.low <= after.value <= after.high <= 1
    if after.high - after.low > before.high - before.low:
        assert after.note in (WIDER, DO_NOT_FIT)


@pytest.mark.promise(
    "Labels",
    "Where people differ, the label is disputed, kappa is shown, and the judge's error is bounded "
    "for either outcome",
)
@given(samples, st.tuples(st.integers(0, 9), st.integers(0, 9)), st.data())
def test_bounds_hold_however_what_is_unknown_is_settled(sample, unknown, data):
    positives, negatives = unknown
    bad_positives = data.draw(st.integers(0, positives))
    bad_negatives = data.draw(st.integers(0, negatives))
    settled = LabelledSample(
        true_positives=sample.true_positives + bad_positives,
        false_positives=sample.false_positives + positives - bad_positives,
        false_negatives=sample.false_negatives + bad_negatives,
        true_negatives=sample.true_negatives + negatives - bad_negatives,
    )
    unsettled = structs.replace(sample, unknown_positives=positives, unknown_negatives=negatives)
    inner, outer = judged_rate(60, 300, settled), judged_rate(60, 300, unsettled)
    if inner.corrected and outer.corrected:
        assert outer.low <= inner.low + 1e-6
        assert inner.high <= outer.high + 1e-6
    for share in ("precision", "misses"):
        narrow, wide = getattr(settled, share)(DOUBT), getattr(unsettled, share)(DOUBT)
        assert wide.low <= narrow.low + 1e-9
        assert narrow.high <= wide.high + 1e-9


def test_what_was_not_observed_has_no_value():
    for rate in (observed_rate(0, 0), judged_rate(0, 0, SAMPLE)):
        assert (rate.value, rate.low, rate.high, rate.corrected) == (None, 0, 1, False)


def test_a_limit_is_what_a_judge_may_say_of_it():
    # with a and b known it would be (10 % - 2 %) / (75 % - 2 %) = 11 %
    precision, misses = interval(30, 40, DOUBT / 3).low, interval(2, 100, DOUBT / 3).low
    expected = (0.1 - misses) / (precision - misses)
    assert observed_limit(0.1, 80, 400, SAMPLE) == pytest.approx(expected)
    assert 0.11 < expected < 0.26
    assert observed_limit(0.1, 80, 400, LabelledSample()) == 0.1


@given(samples, st.floats(0.01, 0.5), st.floats(0, 1))
def test_no_rate_within_the_limit_is_beyond_what_the_judge_may_say_of_it(sample, limit, called):
    precision = interval(sample.true_positives, sample.called_bad, DOUBT / 3).low
    misses = interval(sample.false_negatives, sample.called_good, DOUBT / 3).low
    if sample.labels and not sample.lacks(60, 300) and precision > misses:
        most = observed_limit(limit, 60, 300, sample)
        if called * precision + (1 - called) * misses <= limit:
            assert called <= most + 1e-9


def test_a_difference_has_the_bounds_of_both():
    candidate, serving = observed_rate(13, 114), observed_rate(5, 120)
    assert difference(candidate, serving) == RateDifference(
        value=13 / 114 - 5 / 120,
        low=candidate.low - serving.high,
        high=candidate.high - serving.low,
    )
    assert difference(observed_rate(0, 0), serving).value is None


def test_ten_labels_of_bad_and_of_good_answers_make_an_error_known():
    few = JudgeError(true_positives=6, false_negatives=3, false_positives=0, true_negatives=500)
    enough = JudgeError(true_positives=6, false_negatives=4, false_positives=0, true_negatives=10)
    assert (few.is_known, enough.is_known) == (False, True)
