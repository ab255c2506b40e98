from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from waltzrl.foundation.buckets import BUCKETS, bucket
from waltzrl.operations.release.assignment import is_shadowed, serves_candidate
from waltzrl.operations.release.plan import ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Release

NAMES = [f"conversation {number}" for number in range(10_000)]
BOUNDS = ReleaseLimits(unsafe=0.05, overrefusal=0.1)


def release_at(percentage, name="r1", state="canary"):
    step = ReleaseStep(percentage=percentage, seconds=0, samples=0)
    plan = ReleasePlan(name="p", shadow=step, canary=(step,), targets=BOUNDS, limits=BOUNDS)
    return Release(id=name, candidate="b", serving="a", plan=plan, state=state, since=0.0)


def test_a_conversation_falls_where_it_always_fell():
    # Written down once: a change of the hash would move conversations in the middle of a release.
    assert bucket("r1", "ada") == 5481
    assert bucket("r2", "ada") == 8863
    assert bucket("", "") == 9876


@pytest.mark.promise("Requirements", "flags and rollout variables")
@given(st.text(), st.floats(0, 100), st.floats(0, 100))
def test_raising_the_percentage_takes_no_conversation_out(name, one, other):
    low, high = release_at(min(one, other)), release_at(max(one, other))
    assert serves_candidate(high, name) or not serves_candidate(low, name)


@given(st.text(), st.sampled_from(["shadow", "rolled_back"]))
def test_nobody_has_the_candidate_before_the_canary_or_after_a_rollback(name, state):
    assert not serves_candidate(release_at(100, state=state), name)


@given(st.text())
def test_all_have_the_candidate_at_100_percent_and_none_at_0(name):
    assert serves_candidate(release_at(100), name)
    assert not serves_candidate(release_at(0), name)


def test_a_percentage_is_that_share_of_the_conversations():
    for percentage in (1, 5, 25, 50):
        n = sum(serves_candidate(release_at(percentage), name) for name in NAMES)
        share, deviation = percentage / 100, (percentage * (100 - percentage)) ** 0.5
        assert abs(n - share * len(NAMES)) < 4 * deviation  # 4 standard deviations: sqrt(n p q)


def test_conversations_spread_evenly():
    tenths = Counter(bucket("r1", name) * 10 // BUCKETS for name in NAMES)
    assert set(tenths) == set(range(10))
    assert all(abs(n - 1000) < 120 for n in tenths.values())  # 4 standard deviations of 30


def test_two_releases_choose_independently():
    first = {name for name in NAMES if serves_candidate(release_at(50, "r1"), name)}
    second = {name for name in NAMES if serves_candidate(release_at(50, "r2"), name)}
    assert abs(len(first & second) - 2500) < 175  # 4 standard deviations of sqrt(10000 * 3 / 16)


def test_a_shadow_answers_its_share_and_nobody_sees_it():
    shadow = release_at(10, state="shadow")
    n = sum(is_shadowed(shadow, name) for name in NAMES)
    assert abs(n - 1000) < 120
    assert not any(serves_candidate(shadow, name) for name in NAMES)
    assert not any(is_shadowed(release_at(10), name) for name in NAMES)


def test_who_knows_the_id_but_not_the_secret_does_not_know_who_meets_the_candidate():
    known = release_at(50)
    real = replace(known, secret="0123456789abcdef")
    agreed = sum(serves_candidate(known, name) is serves_candidate(real, name) for name in NAMES)
    assert 4_800 < agreed < 5_200
