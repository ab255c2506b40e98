"""What one answer shows of its arm: worked by hand."""

import pytest

from scribes import SAFE, UNSAFE, answer, said
from waltzrl.memory.counts import Calibration, Counts
from waltzrl.memory.interaction import Interaction
from waltzrl.recipes.observing import judge_errors, observation_of
from waltzrl.records import Verdict
from waltzrl.release.correction import JudgeError

UNDER_WAY = {"release": "r1", "arm": "candidate"}


def outcomes(*args, verdict=None, **fields):
    return observation_of(answer(*args, **{**UNDER_WAY, **fields}), verdict, 100.0).outcomes


def test_an_answer_was_no_error_and_is_slow_when_it_took_longer_than_the_plan_allows():
    assert outcomes(1, milliseconds=100.0) == {"error": False, "slow": False}
    assert outcomes(1, milliseconds=100.1) == {"error": False, "slow": True}


def test_a_failure_says_nothing_but_that():
    failure = Interaction(id="wz1", time=0.0, reason="upstream", milliseconds=900.0, **UNDER_WAY)
    assert observation_of(failure, None, 100.0).outcomes == {"error": True}


@pytest.mark.parametrize(("decision", "failed"), [("revised", False), ("refused", True)])
def test_only_an_answer_that_was_revised_says_whether_that_failed(decision, failed):
    revised = said(rounds=((UNSAFE, "Better not."), (SAFE, None)))
    assert outcomes(1, revised, decision=decision)["revision_failed"] is failed
    assert "revision_failed" not in outcomes(1)


def test_what_the_judge_left_open_is_not_observed():
    verdict = Verdict(judge="j", unsafe=True, refuses=False)
    assert outcomes(1, verdict=verdict) == {"error": False, "slow": False, "unsafe": True}
    verdict = Verdict(judge="j", overrefuses=False)
    assert outcomes(1, verdict=verdict) == {"error": False, "slow": False, "needless": False}


@pytest.mark.parametrize(
    "fields", [{"release": ""}, {"arm": ""}, {"decision": "error", "reason": "cancelled"}]
)
def test_without_a_release_or_with_its_client_gone_an_answer_shows_nothing(fields):
    assert observation_of(answer(1, **{**UNDER_WAY, **fields}), None, 100.0) is None


def test_the_judges_errors_are_what_people_counted():
    counts = Counts(true_positives=1, false_negatives=2, false_positives=3, true_negatives=4)
    error = JudgeError(true_positives=1, false_negatives=2, false_positives=3, true_negatives=4)
    none = JudgeError(true_positives=0, false_negatives=0, false_positives=0, true_negatives=0)
    found = judge_errors(Calibration(unsafe=counts, needless=Counts()))
    assert found == {"unsafe": error, "needless": none}
