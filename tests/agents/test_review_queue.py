"""The queue in front of a reviewer: places, the expected wait, and who is left out."""

import asyncio
from contextlib import suppress

import pytest

from support.timing import FakeClock, run_on_fake_time, settle
from waltzrl.agents.review_queue import PLANNED_SHARE, ReviewQueue

LIMIT = 10.0
PLACES = 8


async def review(queue, seconds, ended=None, name=None):
    async with queue.turn(LIMIT):
        await asyncio.sleep(seconds)
    if ended is not None:
        ended.append(name)


def started(queue, count, seconds=2.0, ended=None):
    return [asyncio.create_task(review(queue, seconds, ended, name)) for name in range(count)]


def test_before_a_review_was_measured_every_one_is_admitted():
    async def work():
        queue = ReviewQueue(1)
        tasks = started(queue, 20)
        await settle()
        admitted, waiting = queue.admits(LIMIT), queue.waiting
        for task in tasks:
            task.cancel()
        return admitted, waiting, queue.expected_seconds

    assert run_on_fake_time(work()) == (True, 19, 0.0)


@pytest.mark.parametrize(
    ("waiting", "expected", "admitted"),
    [
        # One place and 2 s a review: the one that runs and those that wait end first.
        (0, 2.0, True),
        (3, 8.0, True),  # and 2 s of its own: just in time
        (4, 10.0, False),
    ],
)
def test_the_expected_wait_is_the_reviews_ahead_by_the_measured_rate(waiting, expected, admitted):
    async def work():
        queue = ReviewQueue(1)
        await review(queue, 2.0)
        tasks = started(queue, 1 + waiting)
        await settle()
        outcome = queue.expected_seconds, queue.admits(LIMIT)
        await asyncio.gather(*tasks)
        return outcome

    assert run_on_fake_time(work()) == (expected, admitted)


def test_two_places_make_the_wait_half_as_long():
    async def work():
        queue = ReviewQueue(2)
        await review(queue, 2.0)
        tasks = started(queue, 5)  # two run, three wait: four must end before one more begins
        await settle()
        expected = queue.expected_seconds
        await asyncio.gather(*tasks)
        return expected

    assert run_on_fake_time(work()) == 4 * 2.0 / 2


def test_a_slow_review_is_known_for_its_time_and_a_free_place_is_tried_all_the_same():
    async def work():
        queue = ReviewQueue(1)
        await review(queue, 20.0)
        idle = queue.admits(LIMIT)
        tasks = started(queue, 1)
        await settle()
        busy = queue.admits(LIMIT)
        await asyncio.gather(*tasks)
        return idle, busy

    assert run_on_fake_time(work()) == (True, False)


def test_no_more_than_the_bound_wait_however_fast_the_reviewer_is():
    async def work():
        queue = ReviewQueue(1, most_waiting=3)
        tasks = started(queue, 4)
        await settle()
        admitted, expected = queue.admits(LIMIT), queue.expect(LIMIT)
        await asyncio.gather(*tasks)
        return admitted, expected, queue.admits(LIMIT)

    assert run_on_fake_time(work()) == (False, None, True)


def test_first_come_first_served_and_who_leaves_is_not_served():
    async def work():
        queue, ended = ReviewQueue(1), []
        tasks = started(queue, 4, ended=ended)
        await settle()
        tasks[2].cancel()
        await asyncio.wait(tasks)
        return ended, queue.waiting, asyncio.get_running_loop().time()

    assert run_on_fake_time(work()) == ([0, 1, 3], 0, 6.0)


def test_who_leaves_just_when_a_place_is_given_passes_it_on():
    async def work():
        queue, ended = ReviewQueue(1), []
        tasks = started(queue, 3, ended=ended)
        await settle()
        tasks[0].add_done_callback(lambda _: tasks[1].cancel())
        await asyncio.wait(tasks)
        return ended

    assert run_on_fake_time(work()) == [0, 2]


def test_a_wait_that_leaves_too_little_time_ends_without_a_review():
    async def work():
        queue, ended = ReviewQueue(1), []
        tasks = started(queue, 3, seconds=6.0, ended=ended)  # the second has 4 s left when it is on
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        return ended, [type(outcome) for outcome in outcomes], asyncio.get_running_loop().time()

    assert run_on_fake_time(work()) == ([0], [type(None), TimeoutError, TimeoutError], 6.0)


def test_reviews_that_end_soon_add_places_up_to_the_most():
    async def work():
        queue = ReviewQueue(11, first_places=8)
        first = started(queue, 40, seconds=1.0)
        await settle()
        waiting = [queue.waiting]
        await asyncio.sleep(1.5)
        waiting.append(queue.waiting)
        await asyncio.gather(*first)
        return waiting

    # Eight run at first, then eleven.
    assert run_on_fake_time(work()) == [32, 32 - 11]


def test_reviews_that_take_a_large_part_of_the_time_limit_add_none():
    async def work():
        queue = ReviewQueue(16, first_places=8)
        await asyncio.gather(*started(queue, 8, seconds=6.0))
        tasks = started(queue, 40, seconds=0.5)
        await settle()
        waiting = queue.waiting
        await asyncio.gather(*tasks)
        return waiting

    assert run_on_fake_time(work()) == 40 - 8


def test_a_time_out_halves_the_places_once_for_all_that_were_under_way():
    async def work():
        queue = ReviewQueue(PLACES)
        turns = [queue.turn(LIMIT) for _ in range(PLACES)]
        for turn in turns:
            await turn.__aenter__()
        waits = queue.turn(LIMIT)
        await asyncio.sleep(LIMIT)
        news = [queue.timed_out(turn) for turn in [*turns, waits]]
        for turn in turns:
            await turn.__aexit__(TimeoutError, None, None)
        tasks = started(queue, PLACES)
        await settle()
        waiting = queue.waiting
        await asyncio.gather(*tasks)
        return news, waiting

    news, waiting = run_on_fake_time(work())
    assert news == [True] + [False] * PLACES
    assert waiting == PLACES / 2


def test_a_time_out_after_a_long_wait_halves_nothing():
    async def work():
        queue = ReviewQueue(2)
        first = asyncio.create_task(review(queue, 6.0))
        turn = queue.turn(LIMIT)
        await asyncio.sleep(5.5)
        async with turn:
            await asyncio.sleep(4.5)  # it came when 5.5 s had passed, and had less than half
            return queue.timed_out(turn), await first

    assert run_on_fake_time(work()) == (False, None)


def drafted(queue, clock, seconds):
    """Let a draft take its time."""
    with queue.expect(LIMIT):
        clock.now += seconds


def measured_queue(clock):
    """One place, and 2 s a review."""
    queue = ReviewQueue(1, clock=clock)
    queue.reviewed(2.0, soon=True)
    return queue


@pytest.mark.parametrize(
    ("draft_seconds", "admitted"),
    [
        # The wait behind d drafts is 2 d less the draft's own time, and the review takes 2.
        (0.0, 3),  # 2 * 2 + 2 is within the planned 7 s, and 2 * 3 + 2 is not
        (4.0, 5),  # 2 * 4 - 4 + 2
    ],
)
def test_drafts_under_way_are_expected_and_the_reviewer_goes_on_meanwhile(draft_seconds, admitted):
    assert PLANNED_SHARE * LIMIT == 7.0
    clock = FakeClock()
    queue = measured_queue(clock)
    for _ in range(200):  # the mean comes close to each
        drafted(queue, clock, draft_seconds)
    expected = []
    while (one := queue.expect(LIMIT)) is not None:
        expected.append(one)
    assert len(expected) == admitted


def test_a_draft_that_failed_is_no_longer_expected():
    clock = FakeClock()
    queue = measured_queue(clock)
    for _ in range(20):
        with suppress(ValueError), queue.expect(LIMIT):
            clock.now += 100.0
            raise ValueError("the upstream failed")
    assert [queue.expect(LIMIT) is not None for _ in range(5)] == [True] * 3 + [False] * 2
