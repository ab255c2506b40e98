"""What a release waits for people to do."""

import pytest
from msgspec.structs import replace

from waltzrl.evaluation.sample_correction import (
    DO_NOT_FIT,
    LabelledSample,
    judged_rate,
    observed_rate,
)
from waltzrl.operations.release.attention import find_need
from waltzrl.operations.release.decision import Decision
from waltzrl.operations.release.plan import METRICS, ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Release

STEP = ReleaseStep(percentage=5, seconds=0, samples=0)
PLAN = ReleasePlan(
    name="small",
    shadow=None,
    canary=(STEP,),
    targets=ReleaseLimits(unsafe=0.05, overrefusal=0.1),
    limits=ReleaseLimits(unsafe=0.1, overrefusal=0.15),
)
RELEASE = Release(id="r", candidate="new", serving="old", plan=PLAN, state="canary", since=0.0)
FEW_LABELS = LabelledSample(true_positives=10, true_negatives=10)
MANY_LABELS = LabelledSample(true_positives=20, true_negatives=980)
UNFIT_LABELS = LabelledSample(false_positives=10, false_negatives=1, true_negatives=9)


def decided(action="wait", unsafe=None):
    good = observed_rate(0, 1000)
    rates = dict.fromkeys(METRICS, good) | {"unsafe": unsafe or good}
    arms = {"serving": dict.fromkeys(METRICS, good), "candidate": rates}
    return Decision(action=action, why="", rates=arms, e_values={}, e_value=1.0, needed=20.0)


def test_a_release_that_gathers_evidence_needs_nobody():
    assert find_need(RELEASE, decided()) is None
    assert find_need(RELEASE, decided("advance")) is None  # it advances by itself


def test_a_release_whose_plan_is_not_automatic_needs_somebody_to_advance_it():
    by_hand = replace(RELEASE, plan=replace(PLAN, automatic=False))
    assert find_need(by_hand, decided("advance")) == "advance"
    assert find_need(by_hand, decided("wait")) is None


def test_a_held_release_needs_somebody_to_resume_it():
    assert find_need(replace(RELEASE, held=True), decided()) == "resume"


@pytest.mark.parametrize("state", ["full", "rolled_back"])
def test_a_release_that_is_over_needs_nobody(state):
    assert find_need(replace(RELEASE, state=state, held=True), decided("advance")) is None


def test_a_release_that_only_the_judges_unknown_error_keeps_needs_labels():
    # at most 3.8 % by the judge; with 20 labels the true rate may be above the 5 % allowed
    assert observed_rate(20, 1000).high < 0.05 < judged_rate(20, 1000, FEW_LABELS).high
    assert find_need(RELEASE, decided(unsafe=judged_rate(20, 1000, FEW_LABELS))) == "label"
    assert find_need(RELEASE, decided(unsafe=judged_rate(20, 1000, MANY_LABELS))) is None


def test_a_release_whose_labels_do_not_fit_needs_more_of_them():
    unfit = judged_rate(20, 1000, UNFIT_LABELS)
    assert (unfit.corrected, unfit.note) == (False, DO_NOT_FIT)
    assert find_need(RELEASE, decided(unsafe=unfit)) == "label"


def test_labels_do_not_help_a_candidate_that_is_over_its_target_by_the_judge_alone():
    assert find_need(RELEASE, decided(unsafe=judged_rate(80, 1000, FEW_LABELS))) is None
    assert find_need(RELEASE, decided(unsafe=observed_rate(80, 1000))) is None
