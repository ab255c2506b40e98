"""Whole releases, simulated: how often a good candidate goes, and how soon a bad one."""

from collections import Counter

import numpy as np
import pytest

from support.many_releases import (
    IN_CANARY,
    IN_SHADOW,
    NEVER,
    block_sizes,
    blocks_of,
    comparison_e_values,
    erring_judge,
    false_rollbacks,
    first_at,
    judged_arms,
    limit_e_values,
    one_large_user,
    outcomes,
    release_e_values,
    rolled_back,
    unequal_users,
)
from waltzrl.operations.release.decision import WEIGHTS, decide
from waltzrl.operations.release.eprocess import limit_e_value
from waltzrl.operations.release.evidence import Evidence, updated
from waltzrl.operations.release.plan import ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Observation, Release

STEP = ReleaseStep(percentage=25, seconds=0, samples=10**6)
PLAN = ReleasePlan(
    name="simulated",
    shadow=STEP,
    canary=(STEP,),
    targets=ReleaseLimits(unsafe=0.05, overrefusal=0.1),
    limits=ReleaseLimits(unsafe=0.1, overrefusal=0.15),
)
RELEASE = Release(id="r", candidate="new", serving="old", plan=PLAN, state="canary", since=0.0)


def test_the_simulation_is_the_real_thing():
    dice = np.random.default_rng(3)
    is_candidate = dice.random(600) < 0.25
    bad = dice.random(600) < np.where(is_candidate, 0.2, 0.1)
    serving, candidate = bad[~is_candidate], bad[is_candidate].astype(int)
    blocks = blocks_of(is_candidate)
    pair = (
        np.array([[serving[first : first + size].sum() for first, size, _ in blocks]]),
        candidate[None, blocks[:, 2]],
    )
    simulated = comparison_e_values(blocks[:, 1], *pair)[0]
    evidence, real, seen = Evidence(), [], zip(is_candidate, bad, strict=True)
    for arm, outcome in seen:
        observation = Observation(
            release="r", arm="candidate" if arm else "serving", outcomes={"unsafe": bool(outcome)}
        )
        evidence = updated(evidence, [observation], PLAN, Counter())
        real.append(evidence.comparison("candidate", "unsafe").e_value)
    changes = [e for e, before in zip(real, [1.0, *real], strict=False) if e != before]
    assert changes == pytest.approx(simulated.tolist())
    decision = decide(RELEASE, evidence, {}, now=0.0)
    assert decision.e_values["unsafe"] == pytest.approx(simulated[-1])
    limit = limit_e_values(candidate[None], 0.1)[0, -1]
    assert decision.e_values["unsafe_limit"] == pytest.approx(limit)


@pytest.mark.parametrize(
    ("percentage", "rate"), [(1, 0.01), (5, 0.01), (5, 0.05), (5, 0.2), (25, 0.05), (50, 0.2)]
)
def test_a_candidate_that_is_no_worse_is_hardly_ever_rolled_back(percentage, rate):
    """Both arms alike, and exactly at the limits; a look after each of 1,000 + 4,000 answers."""
    dice = np.random.default_rng(7)
    gone = np.zeros(200, dtype=bool)
    for answers, needed in ((1000, IN_SHADOW), (4000, IN_CANARY)):
        sizes = block_sizes(percentage, answers, dice)
        unsafe = outcomes(sizes, rate, rate, 200, dice)
        e_values = release_e_values(sizes, unsafe, rate, (rate, rate), dice)
        assert e_values.shape == (200, answers)
        gone |= first_at(e_values, needed) < NEVER
    assert gone.mean() <= 0.05


def test_rates_that_rise_and_fall_together_are_no_evidence():
    dice = np.random.default_rng(9)
    sizes = block_sizes(5, 4000, dice)
    rates = 0.05 + 0.045 * np.sin(np.arange(4000) / 200)
    unsafe = outcomes(sizes, rates, rates, 200, dice)
    e_values = release_e_values(sizes, unsafe, rates, (0.1, 0.15), dice)
    assert (first_at(e_values, IN_CANARY) < NEVER).mean() <= 0.05


def test_a_rise_of_unsafe_replies_from_1_to_3_percent_is_caught_within_500_answers():
    dice = np.random.default_rng(7)
    sizes = block_sizes(5, 4000, dice)
    unsafe = outcomes(sizes, 0.01, 0.03, 400, dice)
    fired = first_at(release_e_values(sizes, unsafe, 0.01, (0.1, 0.15), dice), IN_CANARY)
    assert np.median(fired) <= 500
    assert (fired < NEVER).mean() >= 0.99


@pytest.mark.promise(
    "Evidence of a release",
    "At the default `memory.judge_share` a rise of unsafe replies from 1 to 3 % is caught within "
    "4,000 candidate answers in 95 % of runs, at 5, 25 and 50 %",
)
@pytest.mark.parametrize("percentage", [5, 25, 50])
def test_the_power_holds_at_the_share_that_is_judged_by_default(percentage):
    """A rise from 1 to 3 %, in 4,000 candidate answers; the other tests could only add."""
    dice = np.random.default_rng(19)
    sizes = blocks_of(judged_arms(percentage, 4000, dice))[:, 1]
    e_values = comparison_e_values(sizes, *outcomes(sizes, 0.01, 0.03, 60, dice))
    fired = first_at(e_values, IN_CANARY / WEIGHTS["unsafe"])
    assert (fired < NEVER).mean() >= 0.95


@pytest.mark.promise(
    "Evidence of a release",
    "Users that differ roll back no candidate that is no worse: each counts once in an arm and "
    "step",
)
@pytest.mark.parametrize(("users", "percentage"), [(unequal_users, 5), (one_large_user, 50)])
def test_users_that_differ_roll_back_no_candidate_that_is_no_worse(users, percentage):
    """Of 40 runs 5 and 19 were rolled back when every answer counted."""
    assert false_rollbacks(users, percentage, 40, 4000, np.random.default_rng(5)) <= 2


@pytest.mark.promise(
    "Evidence of a release",
    "Beside a second judge, a judge that errs more on one arm rolls nothing back, and the card "
    "says how they agreed",
)
def test_a_judge_that_errs_more_on_one_arm_rolls_nothing_back_beside_a_second():
    """One unsafe reply of 100 in both arms; of the others 1 and 3 % are false alarms."""
    dice = np.random.default_rng(23)
    alone = [rolled_back(erring_judge(4000, dice, second=False), 100) for _ in range(6)]
    beside = [rolled_back(erring_judge(4000, dice, second=True), 100) for _ in range(20)]
    assert sum(alone) >= 3
    assert sum(beside) <= 1


@pytest.mark.parametrize(
    ("percentage", "serving", "candidate", "answers"),
    [(5, 0.01, 0.1, 300), (5, 0.05, 0.3, 100), (50, 0.01, 0.03, 1000)],
)
def test_ville_sees_the_same_and_no_sooner(percentage, serving, candidate, answers):
    """Its test of two arms knows the percentage; ours need not."""
    from ville import BettingABTest  # slow to import

    dice = np.random.default_rng(13)
    ours, theirs = [], []
    for _ in range(15):
        share = percentage / 100
        is_candidate = dice.random(int(answers / share)) < share
        bad = dice.random(len(is_candidate)) < np.where(is_candidate, candidate, serving)
        oracle = BettingABTest(propensity=share).fit(bad, is_candidate)
        hits = np.flatnonzero(oracle.lower_ > 0)
        theirs.append(is_candidate[: hits[0] + 1].sum() if hits.size else NEVER)
        blocks, a = blocks_of(is_candidate), bad[~is_candidate]
        bad_serving = [a[first : first + size].sum() for first, size, _ in blocks]
        pair = np.array([bad_serving]), bad[is_candidate].astype(int)[None, blocks[:, 2]]
        ours.append(first_at(comparison_e_values(blocks[:, 1], *pair), 20)[0])
    assert np.median(theirs) < NEVER
    assert np.median(ours) <= np.median(theirs)


def test_ville_agrees_about_a_limit():
    from ville import BernoulliTest

    dice = np.random.default_rng(17)
    beyond, within = dice.binomial(1, 0.2, (200, 1000)), dice.binomial(1, 0.1, (200, 1000))
    ours = first_at(limit_e_values(beyond, 0.1), 20)
    theirs = [BernoulliTest(0.1).fit(run).stopping_time() or NEVER for run in beyond]
    assert np.median(ours) <= np.median(theirs) < 2 * np.median(ours)
    assert (first_at(limit_e_values(within, 0.1), 20) < NEVER).mean() <= 0.05
    assert limit_e_value(int(beyond[0].sum()), 1000, 0.1) > 20
    assert BernoulliTest(0.1).fit(beyond[0]).rejected_
