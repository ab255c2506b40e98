from math import comb, exp, log

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.operations.release.eprocess import (
    ALTERNATIVES,
    LARGEST_BLOCK,
    LONGEST_QUEUE,
    Comparison,
    block_growth,
    limit_e_value,
    mean_exp,
    raise_rate,
)

rates = st.floats(0, 1)
streams = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=80)
"""Whether it was the candidate, and whether the outcome was bad."""


def played(arms, bad):
    comparison = Comparison()
    for is_candidate, outcome in zip(arms, bad, strict=True):
        after = comparison.after_candidate if is_candidate else comparison.after_serving
        comparison = after(outcome)
    return comparison


def counts(thetas):
    """Return the probability of 0, 1, ... bad outcomes among independent ones."""
    chances = [1.0]
    for theta in thetas:
        none, one = [*chances, 0.0], [0.0, *chances]
        chances = [a * (1 - theta) + b * theta for a, b in zip(none, one, strict=True)]
    return chances


def expectations(serving, candidate):
    """Return E[S] of a block for each of the alternatives, by enumeration of its outcomes."""
    total = [0.0] * len(ALTERNATIVES)
    for bad, chance in enumerate(counts(serving)):
        for outcome in (False, True):
            weight = chance * (candidate if outcome else 1 - candidate)
            growth = block_growth(len(serving), bad, outcome)
            total = [sum_ + weight * exp(g) for sum_, g in zip(total, growth, strict=True)]
    return total


def test_odds_are_multiplied():
    # 15 % is 3 to 17; 2.5 times that is 15 to 34, a rate of 15/49.
    assert raise_rate(0.15, 2.5) == pytest.approx(15 / 49)


def test_a_block_of_two_grows_as_worked_by_hand():
    # q_a = 3/20, q_b = 15/49, p0 = 447/1960: S = (15/49)/(447/1960) * (17/20)/(1513/1960).
    where = ALTERNATIVES.index((0.15, raise_rate(0.15, 2.5)))
    grown = block_growth(1, 0, True)[where]
    assert exp(grown) == pytest.approx(600 / 447 * 1666 / 1513)
    # The other way round: (34/49)/(1513/1960) * (3/20)/(447/1960) = 1360/1513 * 294/447.
    assert exp(block_growth(1, 1, False)[where]) == pytest.approx(1360 / 1513 * 294 / 447)


@given(st.lists(rates, min_size=1, max_size=LARGEST_BLOCK), rates)
def test_nothing_is_won_in_expectation_while_the_candidate_is_no_worse(serving, share):
    # However the serving bundle's rate drifts within the block.
    candidate = share * sum(serving) / len(serving)
    assert max(expectations(serving, candidate)) <= 1 + 1e-9


@given(st.integers(1, LARGEST_BLOCK), st.integers(0, len(ALTERNATIVES) - 1))
def test_evidence_grows_when_an_alternative_is_true(size, which):
    q_a, q_b = ALTERNATIVES[which]
    drift = 0.0
    for bad in range(size + 1):
        chance = comb(size, bad) * q_a**bad * (1 - q_a) ** (size - bad)
        for outcome in (False, True):
            weight = chance * (q_b if outcome else 1 - q_b)
            drift += weight * block_growth(size, bad, outcome)[which]
    assert drift > 0


def test_each_outcome_of_the_candidate_meets_all_that_wait_up_to_nineteen():
    arms = [False] * 25 + [True, True, True, False, False]
    comparison = played(arms[:26], [False] * 26)
    assert (comparison.serving, comparison.candidate) == ("0" * 6, "")
    comparison = played(arms[:28], [False] * 28)
    assert (comparison.serving, comparison.candidate) == ("", "0")
    comparison = played(arms, [False] * 30)
    assert (comparison.serving, comparison.candidate) == ("0", "")
    grown = [block_growth(size, 0, False) for size in (19, 6, 1)]
    assert comparison.log_wealth == pytest.approx([sum(each) for each in zip(*grown, strict=True)])


def test_the_oldest_outcomes_are_compared_first():
    comparison = played([False] * 20 + [True], [True] + [False] * 20)
    assert comparison.serving == "0"
    assert comparison.log_wealth == pytest.approx(block_growth(19, 1, False))


def test_a_queue_gives_up_its_oldest_outcomes():
    for is_candidate in (False, True):
        bad = [True] * 5 + [False] * LONGEST_QUEUE
        comparison = played([is_candidate] * len(bad), bad)
        assert comparison.serving + comparison.candidate == "0" * LONGEST_QUEUE


@given(streams)
def test_what_an_outcome_is_never_decides_what_it_is_compared_with(stream):
    arms = [is_candidate for is_candidate, _ in stream]
    one = played(arms, [bad for _, bad in stream])
    other = played(arms, [not bad for _, bad in stream])
    assert len(one.serving) == len(other.serving)
    assert len(one.candidate) == len(other.candidate)
    assert not (one.serving and one.candidate)


@given(streams, st.integers(0, 80))
def test_another_process_goes_on_with_the_same_bits(stream, stop):
    comparison = played([], [])
    for position, (is_candidate, bad) in enumerate(stream):
        if position == stop:
            line = msgspec.json.encode(comparison)
            comparison = msgspec.json.decode(line, type=Comparison)
        after = comparison.after_candidate if is_candidate else comparison.after_serving
        comparison = after(bad)
    assert comparison == played(*zip(*stream, strict=True))


def test_no_evidence_is_an_e_value_of_one():
    assert Comparison().e_value == pytest.approx(1)
    assert limit_e_value(0, 0, 0.1) == pytest.approx(1)


def test_evidence_without_end_is_still_a_number():
    assert 1e299 < limit_e_value(100_000, 100_000, 0.1) < 1e300
    assert mean_exp([-1e6, log(3)]) == pytest.approx(1.5)


def test_a_limit_is_tested_as_worked_by_hand():
    # Odds of 1 to 4 times 1.25, 1.5, 2, 3, 6, 20 are rates of 5/21, 3/11, 1/3, 3/7, 3/5, 5/6.
    higher = [5 / 21, 3 / 11, 1 / 3, 3 / 7, 3 / 5, 5 / 6]
    by_hand = sum((p / 0.2) ** 2 * (1 - p) / 0.8 for p in higher) / 6
    assert limit_e_value(2, 3, 0.2) == pytest.approx(by_hand)


@given(st.integers(0, 40), st.floats(0.001, 0.999), st.floats(0, 1))
def test_a_rate_within_its_limit_wins_nothing_in_expectation(n, limit, share):
    rate = share * limit
    chances = [comb(n, bad) * rate**bad * (1 - rate) ** (n - bad) for bad in range(n + 1)]
    mean = sum(p * limit_e_value(bad, n, limit) for bad, p in enumerate(chances))
    assert mean <= 1 + 1e-9


def test_no_rate_is_beyond_a_limit_of_all_and_any_bad_answer_is_beyond_none():
    assert limit_e_value(1000, 1000, 1.0) == pytest.approx(1, abs=0.01)
    assert limit_e_value(0, 1000, 0.0) <= 1
    assert limit_e_value(2, 1000, 0.0) > 20
