import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.timing import FakeClock, hold, run_on_fake_time, settle
from waltzrl.errors import RecipeError, RequestError
from waltzrl.foundation.validation import validate_table
from waltzrl.gateway.keys import ANONYMOUS, Caller
from waltzrl.gateway.limits import (
    Admission,
    Limits,
    RateLimits,
    check_reply_size,
    check_request_size,
)


def wait_of(limits, caller):
    """Take a request; return the seconds to wait, 0 when it was let through."""
    try:
        limits.take(caller)
    except RequestError as refusal:
        return refusal.retry_after_seconds
    return 0.0


def test_a_burst_passes_and_the_next_request_is_told_when_to_come():
    clock = FakeClock(1_000.0)
    limits = RateLimits(clock=clock)
    caller = Caller(name="ada", requests_per_minute=6, burst=3)  # one more every 10 s
    assert [wait_of(limits, caller) for _ in range(4)] == [0, 0, 0, pytest.approx(10)]
    clock.now += 4
    assert wait_of(limits, caller) == pytest.approx(6)
    clock.now += 6
    assert wait_of(limits, caller) == 0
    assert wait_of(limits, caller) == pytest.approx(10)


def test_a_refusal_says_the_rate_and_the_wait():
    limits = RateLimits(clock=FakeClock(1_000.0))
    caller = Caller(name="ada", requests_per_minute=6, burst=1)
    limits.take(caller)
    with pytest.raises(RequestError, match=r"ada may send 6 .* a minute, .* in 10 s") as refusal:
        limits.take(caller)
    assert (refusal.value.status, refusal.value.kind) == (429, "rate_limit")


def test_callers_have_buckets_of_their_own_and_some_have_no_limit():
    limits = RateLimits(clock=FakeClock(1_000.0))
    ada, bob = (Caller(name=name, requests_per_minute=1, burst=1) for name in ("ada", "bob"))
    assert wait_of(limits, ada) == 0
    assert wait_of(limits, bob) == 0
    assert wait_of(limits, ada) > 0
    assert {wait_of(limits, ANONYMOUS) for _ in range(1000)} == {0}


def test_a_rate_that_is_raised_holds_at_once():
    clock = FakeClock(1_000.0)
    limits = RateLimits(clock=clock)
    slow = Caller(name="ada", requests_per_minute=1, burst=10)
    fast = Caller(name="ada", requests_per_minute=600, burst=10)
    assert [wait_of(limits, slow) for _ in range(11)] == [0] * 10 + [60]
    assert wait_of(limits, fast) == pytest.approx(0.1)
    clock.now += 0.1
    assert wait_of(limits, fast) == 0


def test_a_second_key_of_one_name_brings_no_second_allowance():
    limits = RateLimits(clock=FakeClock(1_000.0))
    old, new = (Caller(name="ada", requests_per_minute=1, burst=1) for _ in range(2))
    assert wait_of(limits, old) == 0
    assert wait_of(limits, new) > 0


def test_who_waits_as_long_as_told_is_let_through():
    clock = FakeClock(1_000.0)
    limits = RateLimits(clock=clock)
    caller = Caller(name="ada", requests_per_minute=7, burst=1)
    limits.take(caller)
    for _ in range(1000):
        clock.now += wait_of(limits, caller)
        assert wait_of(limits, caller) == 0


@given(
    pauses=st.lists(st.floats(0, 30), max_size=60),
    rate=st.integers(1, 600),
    burst=st.integers(1, 20),
)
def test_requests_pass_exactly_while_a_token_bucket_has_tokens(pauses, rate, burst):
    clock = FakeClock(1_000.0)
    limits = RateLimits(clock=clock)
    caller = Caller(name="ada", requests_per_minute=rate, burst=burst)
    tokens = float(burst)
    for pause in pauses:
        clock.now += pause
        tokens = min(burst, tokens + pause * rate / 60)
        wait = wait_of(limits, caller)
        if wait == 0:
            assert tokens > 1 - 1e-4
            tokens -= 1
        else:
            assert tokens < 1
            assert wait == pytest.approx((1 - tokens) * 60 / rate, abs=1e-6)


def test_sizes_at_the_limit_pass_and_beyond_are_refused():
    limits = Limits(max_request_bytes=10, max_reply_bytes=20)
    check_request_size(10, limits)
    check_reply_size(20, limits)
    with pytest.raises(RequestError, match="more than 10 bytes") as refusal:
        check_request_size(11, limits)
    assert (refusal.value.status, refusal.value.kind) == (413, "too_large")
    with pytest.raises(RequestError, match="more than 20 bytes") as failure:
        check_reply_size(21, limits)
    assert (failure.value.status, failure.value.kind) == (502, "upstream")


@pytest.mark.parametrize(
    "wrong",
    [{"max_active": 0}, {"max_waiting": -1}, {"max_reply_bytes": 0}, {"max_head_seconds": 0}],
)
def test_limits_that_let_nothing_through_are_refused(wrong):
    ((key, value),) = wrong.items()
    with pytest.raises(RecipeError, match=f"{key}: got {value}, need"):
        validate_table(Limits, wrong, "limits")


def small(**changed):
    return Admission(
        Limits(**{"max_active": 2, "max_waiting": 2, "max_wait_seconds": 9, **changed})
    )


def test_places_go_to_those_who_came_first_and_one_too_many_is_refused_at_once():
    async def story():
        admission, order, until = small(), [], asyncio.Event()
        held = [asyncio.create_task(hold(admission, n, order, until)) for n in range(4)]
        await settle()
        assert (order, admission.active, admission.waiting) == ([0, 1], 2, 2)
        with pytest.raises(RequestError, match="too many requests are waiting") as refusal:
            await hold(admission, 4, order, until)
        assert (refusal.value.status, refusal.value.kind) == (503, "overloaded")
        assert 1 <= refusal.value.retry_after_seconds <= 5
        until.set()
        await asyncio.gather(*held)
        assert (order, admission.active, admission.waiting) == ([0, 1, 2, 3], 0, 0)

    run_on_fake_time(story())


def test_who_waited_too_long_is_refused_and_takes_no_place():
    async def story():
        admission, order, until = small(max_active=1, max_wait_seconds=0.01), [], asyncio.Event()
        first = asyncio.create_task(hold(admission, 0, order, until))
        await settle()
        with pytest.raises(RequestError, match=r"no place was free for 0\.01 s"):
            await hold(admission, 1, order, until)
        until.set()
        await first
        assert (order, admission.active, admission.waiting) == ([0], 0, 0)

    run_on_fake_time(story())


def test_a_place_that_was_given_to_a_cancelled_request_goes_to_the_next():
    async def story():
        admission, order, until = small(max_active=1), [], asyncio.Event()
        first, second, third = (
            asyncio.create_task(hold(admission, n, order, until)) for n in range(3)
        )
        await settle()
        first.cancel()
        await asyncio.sleep(0)  # `first` gives its place to `second`, which has not run yet
        second.cancel()
        await settle()
        assert order == [0, 2]
        until.set()
        await asyncio.wait([first, second, third])
        assert (admission.active, admission.waiting) == (0, 0)

    run_on_fake_time(story())


def test_a_cancelled_request_waits_no_more():
    async def story():
        admission, until = small(max_active=1, max_waiting=1), asyncio.Event()
        first = asyncio.create_task(hold(admission, 0, [], until))
        await settle()
        second = asyncio.create_task(hold(admission, 1, [], until))
        await settle()
        second.cancel()
        await settle()
        assert admission.waiting == 0
        until.set()
        await first

    run_on_fake_time(story())


@pytest.mark.parametrize("event", ["cancelled", "let in"])
def test_the_end_of_the_wait_may_fall_together_with(event):
    async def story():
        loop, mistakes = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _, context: mistakes.append(context))
        admission, order = small(max_active=1, max_wait_seconds=0.01), []
        leave, stay = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(hold(admission, 0, order, leave))
        await settle()
        second = asyncio.create_task(hold(admission, 1, order, stay))
        await settle()
        loop.call_later(0.001, second.cancel if event == "cancelled" else first.cancel)
        loop.advance(0.03)  # both timers go off in one turn of the loop
        await settle()
        leave.set()
        stay.set()
        await asyncio.wait([first, second])
        assert mistakes == []
        assert (admission.active, admission.waiting) == (0, 0)

    run_on_fake_time(story())


@pytest.mark.parametrize("seed", range(20))
def test_random_cancellations_lose_no_place_and_never_let_in_too_many(seed):
    chance = random.Random(seed)

    async def request(admission, most):
        async with admission:
            most.append(admission.active)
            await asyncio.sleep(chance.choice([0, 0.0005, 0.002]))

    async def story():
        admission = Admission(Limits(max_active=3, max_waiting=10, max_wait_seconds=0.003))
        most, tasks = [], []
        for _ in range(300):
            tasks.append(asyncio.create_task(request(admission, most)))
            if chance.random() < 0.5:
                chance.choice(tasks).cancel()
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0, 0, 0.001]))
            assert 0 <= admission.active <= 3
            assert admission.waiting == 0 or admission.active == 3
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in done} <= {type(None), RequestError, asyncio.CancelledError}
        assert max(most) == 3
        assert (admission.active, admission.waiting) == (0, 0)
        assert await admission.drain(0) == 0

    run_on_fake_time(story())


def test_draining_finishes_what_is_under_way_or_waits_and_refuses_what_comes():
    async def story():
        admission, order, until = small(max_active=1), [], asyncio.Event()
        held = [asyncio.create_task(hold(admission, n, order, until)) for n in range(2)]
        await settle()
        drained = asyncio.create_task(admission.drain(5))
        await settle()
        assert admission.draining
        with pytest.raises(RequestError, match="shutting down") as refusal:
            await hold(admission, 2, order, until)
        assert refusal.value.status == 503
        assert not drained.done()
        until.set()
        assert await drained == 0
        await asyncio.gather(*held)
        assert order == [0, 1]

    run_on_fake_time(story())


def test_draining_stops_waiting_in_time_and_says_how_many_are_left():
    async def story():
        admission, until = small(), asyncio.Event()
        held = asyncio.create_task(hold(admission, 0, [], until))
        await settle()
        assert await admission.drain(0.01) == 1
        until.set()
        await held

    run_on_fake_time(story())


def test_in_a_tenfold_overload_who_gets_in_is_served_soon_and_the_rest_is_refused_at_once():
    service = 0.01  # seconds; 10 places serve 1,000 requests a second, and 10,000 come
    admission = Admission(Limits(max_active=10, max_waiting=10, max_wait_seconds=0.5))
    served, refused = [], []

    async def request(now):
        came = now()
        try:
            async with admission:
                await asyncio.sleep(service)
        except RequestError:
            refused.append(now() - came)
        else:
            served.append(now() - came)

    async def story():
        now, waves = asyncio.get_running_loop().time, []
        for _ in range(50):
            waves += [asyncio.create_task(request(now)) for _ in range(100)]
            await asyncio.sleep(service)
        await asyncio.gather(*waves)

    run_on_fake_time(story())
    assert len(served) + len(refused) == 5000
    assert len(served) >= 500
    assert max(served) == pytest.approx(2 * service)  # one wait for a place and one service
    assert set(refused) == {0.0}
