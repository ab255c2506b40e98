import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.timing import FakeClock
from waltzrl.agents.breaker import Breaker


@pytest.fixture
def clock():
    return FakeClock(1000.0)


@pytest.fixture
def breaker(clock):
    return Breaker(clock=clock)


def end(breaker, succeeded):
    """Make one attempt with this outcome; say whether it was let through."""
    with breaker.attempt() as attempt:
        if attempt is not None:
            attempt.succeeded = succeeded
    return attempt is not None


def fail(breaker, times):
    return [end(breaker, False) for _ in range(times)]


def test_five_failures_in_a_row_open_it_and_then_nothing_passes(breaker):
    assert fail(breaker, 4) == [True] * 4
    assert breaker.state == "closed"
    assert fail(breaker, 3) == [True, False, False]
    assert breaker.state == "open"


def test_a_success_between_failures_keeps_it_closed(breaker):
    for _ in range(3):
        fail(breaker, 4)
        end(breaker, True)
    assert breaker.state == "closed"


def test_it_stays_open_for_sixty_seconds_and_is_then_half_open(breaker, clock):
    fail(breaker, 5)
    clock.now += 59.9
    assert not end(breaker, True)
    clock.now += 0.1
    assert breaker.state == "half_open"


def test_the_probe_alone_passes_and_its_success_closes_it(breaker, clock):
    fail(breaker, 5)
    clock.now += 60
    with breaker.attempt() as probe:
        assert probe is not None
        assert not end(breaker, True)
        assert breaker.state == "half_open"
        probe.succeeded = True
    assert breaker.state == "closed"
    assert fail(breaker, 4) == [True] * 4
    assert breaker.state == "closed"


def test_the_failure_of_the_probe_opens_it_for_another_minute(breaker, clock):
    fail(breaker, 5)
    clock.now += 75
    assert end(breaker, False)
    assert breaker.state == "open"
    clock.now += 59
    assert not end(breaker, True)
    clock.now += 1
    assert end(breaker, True)
    assert breaker.state == "closed"


def test_a_probe_that_was_given_up_leaves_room_for_another(breaker, clock):
    fail(breaker, 5)
    clock.now += 60
    with pytest.raises(asyncio.CancelledError), breaker.attempt():
        raise asyncio.CancelledError
    assert breaker.state == "half_open"
    assert end(breaker, True)
    assert breaker.state == "closed"


def test_what_began_before_it_opened_does_not_close_it(breaker):
    with breaker.attempt() as old:
        fail(breaker, 5)
        old.succeeded = True
    assert breaker.state == "open"


def test_what_began_before_it_opened_does_not_answer_for_the_probe(breaker, clock):
    with breaker.attempt() as old:
        fail(breaker, 5)
        clock.now += 60
        with breaker.attempt() as probe:
            assert probe is not None
            old.succeeded = False
        assert breaker.state == "half_open"
    assert end(breaker, True)
    assert breaker.state == "closed"


def test_both_numbers_can_be_chosen(clock):
    breaker = Breaker(failures=1, open_seconds=2, clock=clock)
    fail(breaker, 1)
    assert breaker.state == "open"
    clock.now += 2
    assert breaker.state == "half_open"


@given(st.lists(st.tuples(st.integers(0, 90), st.booleans()), max_size=60))
def test_however_it_goes_what_passes_in_vain_is_bounded(calls):
    """Between two successes at most five failures pass, and then one a minute."""
    clock = FakeClock(1000.0)
    breaker = Breaker(clock=clock)
    in_vain, since = 0, clock.now
    for wait, succeeds in calls:
        clock.now += wait
        if not end(breaker, succeeds):
            continue
        if succeeds:
            in_vain, since = 0, clock.now
        else:
            in_vain += 1
            assert in_vain <= 5 + (clock.now - since) / 60
