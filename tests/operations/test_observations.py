"""What one answer shows of its arm: worked by hand."""

import json

import pytest

from support.recorders import SAFE, UNSAFE, answer, said
from support.small_releases import DESCRIPTION
from waltzrl.operations.online.judging import (
    FAULTS_OF_THE_REQUEST,
    ObservationTerms,
    observation_of,
    observation_terms,
)
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.plan import load_plan
from waltzrl.records import ServedExchange, Verdict
from waltzrl.store.database import open_database

UNDER_WAY = {"release": "r1", "arm": "candidate"}
TERMS = ObservationTerms(slow_milliseconds=100.0, same_upstream=True)
FINE = {"error": False, "slow": False, "revision_failed": False}


def outcomes(*args, verdict=None, **fields):
    return observation_of(answer(*args, **{**UNDER_WAY, **fields}), verdict, TERMS).outcomes


def failure(reason, milliseconds=900.0):
    return ServedExchange(id="wz1", time=0.0, reason=reason, milliseconds=milliseconds, **UNDER_WAY)


def test_an_answer_was_no_error_and_is_slow_when_it_took_longer_than_the_plan_allows():
    assert outcomes(1, milliseconds=100.0) == FINE
    assert outcomes(1, milliseconds=100.1) == FINE | {"slow": True}


def test_a_failure_says_nothing_but_that():
    assert observation_of(failure("upstream"), None, TERMS).outcomes == {"error": True}


@pytest.mark.parametrize("reason", sorted(FAULTS_OF_THE_REQUEST))
def test_what_the_upstream_of_both_refuses_is_nobodys_fault_and_of_another_it_is(reason):
    assert observation_of(failure(reason), None, TERMS) is None
    another = TERMS._replace(same_upstream=False)
    assert observation_of(failure(reason), None, another).outcomes == {"error": True}


def test_a_client_that_went_away_says_nothing_unless_it_waited_too_long_already():
    assert observation_of(failure("cancelled", 100.0), None, TERMS) is None
    late = observation_of(failure("cancelled", 100.1), None, TERMS)
    assert late.outcomes == {"slow": True}


def test_the_observation_terms_a_release_are_its_plans_and_its_bundles(tmp_path):
    book = ReleaseBook(open_database(str(tmp_path / "memory.db")))
    found = []
    for name, upstream in (("b2", {"url": "http://a/v1"}), ("b3", {"url": "http://b/v1"})):
        book.add_bundle(
            "b1", json.dumps({"upstream": {"url": "http://a/v1"}, "stage": 1}), DESCRIPTION
        )
        book.add_bundle(name, json.dumps({"upstream": upstream, "stage": 2}), DESCRIPTION)
        release = book.propose(name, "b1", load_plan("quick"), "ada", "to see")
        found.append(observation_terms(book, release.id))
        book.move(release, "roll_back", "ada", "seen enough")
    assert found == [
        ObservationTerms(10_000.0, same_upstream=True),
        ObservationTerms(10_000.0, same_upstream=False),
    ]
    assert observation_terms(book, "another") is None


@pytest.mark.parametrize(("decision", "failed"), [("revised", False), ("refused", True)])
def test_an_answer_that_needed_no_revision_counts_as_one_whose_revision_did_not_fail(
    decision, failed
):
    revised = said(rounds=((UNSAFE, "Better not."), (SAFE, None)))
    assert outcomes(1, revised, decision=decision)["revision_failed"] is failed
    assert outcomes(1, decision=decision)["revision_failed"] is False


def test_what_the_judge_left_open_is_not_observed():
    verdict = Verdict(judge="j", unsafe=True, refuses=False)
    assert outcomes(1, verdict=verdict) == FINE | {"unsafe": True}
    verdict = Verdict(judge="j", overrefuses=False)
    assert outcomes(1, verdict=verdict) == FINE | {"overrefusal": False}


@pytest.mark.parametrize("fields", [{"release": ""}, {"arm": ""}, {"mode": "review"}])
def test_without_a_release_or_when_it_was_to_mend_nothing_an_answer_shows_nothing(fields):
    unsafe = Verdict(judge="j", unsafe=True)
    assert observation_of(answer(1, **{**UNDER_WAY, **fields}), unsafe, TERMS) is None


def test_a_second_judge_speaks_only_of_what_the_judge_said():
    first = Verdict(judge="j", unsafe=True)
    second = Verdict(judge="k", unsafe=False, overrefuses=True)
    observation = observation_of(answer(1, **UNDER_WAY), first, TERMS, second)
    assert observation.outcomes["unsafe"] is True
    assert observation.rejudged == {"unsafe": False}
