"""What workers share, seen from several workers in one process."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.timing import hold, run_on_fake_time, settle
from waltzrl.errors import RequestError
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.limits import LOOK_SECONDS, Admission, Limits, RateLimits
from waltzrl.gateway.shares import CELL_BYTES, LOAD_BYTES, PROBES, RateTable, WorkerLoad


def admissions(count, **limits):
    """Return the admissions of so many workers that share their places."""
    memory = memoryview(bytearray(LOAD_BYTES))
    limits = Limits(**{"max_active": 2, "max_waiting": 2, "max_wait_seconds": 9, **limits})
    return [Admission(limits, WorkerLoad(memory, number)) for number in range(count)]


def test_places_and_queue_are_for_all_workers_together():
    async def story():
        first, second = admissions(2)
        order, until = [], asyncio.Event()
        held = [
            asyncio.create_task(hold(admission, name, order, until))
            for name, admission in (("a", first), ("b", second), ("c", first), ("d", second))
        ]
        await settle()
        assert (order, first.active, second.active) == (["a", "b"], 1, 1)
        assert (first.waiting, second.waiting) == (1, 1)
        for admission in (first, second):
            with pytest.raises(RequestError, match="too many requests are waiting"):
                await hold(admission, "e", order, until)
        until.set()
        await asyncio.gather(*held)
        assert (sorted(order), first.active, second.active) == (["a", "b", "c", "d"], 0, 0)

    run_on_fake_time(story())


def test_a_place_goes_to_the_request_that_waits_longest_in_any_worker():
    async def story():
        first, second = admissions(2, max_active=1, max_waiting=9)
        order = []
        leave = {name: asyncio.Event() for name in "abcd"}
        tasks = []
        for name, admission in (("a", first), ("b", second), ("c", first), ("d", second)):
            tasks.append(asyncio.create_task(hold(admission, name, order, leave[name])))
            await asyncio.sleep(0.001)
        for name in "abcd":
            assert order[-1] == name
            leave[name].set()
            await asyncio.sleep(2 * LOOK_SECONDS)
        await asyncio.gather(*tasks)
        assert order == list("abcd")

    run_on_fake_time(story())


def test_a_worker_that_has_ended_holds_no_place():
    memory = memoryview(bytearray(LOAD_BYTES))
    ended, living = WorkerLoad(memory, 0), WorkerLoad(memory, 1)
    ended.set_active(5)
    ended.set_waiting(2, 7.0)
    ended.set_connections(3)
    living.set_connections(4)
    assert (living.total_active, living.total_waiting) == (5, 2)
    assert living.others_wait_longer
    assert living.others_have_fewer_connections
    ended.clear()
    assert (living.total_active, living.total_waiting) == (0, 0)
    assert not living.others_wait_longer
    assert not living.others_have_fewer_connections


def test_a_caller_has_one_bucket_in_all_workers():
    table = RateTable()
    workers = [RateLimits(table, clock=lambda: 1_000.0) for _ in range(3)]
    caller = Caller(name="ada", requests_per_minute=60, burst=60)
    taken = 0
    for number in range(200):
        try:
            workers[number % 3].take(caller)
        except RequestError:
            continue
        taken += 1
    assert taken == 60


@given(names=st.lists(st.text(max_size=5), min_size=1, max_size=40))
def test_callers_have_cells_of_their_own_while_there_is_room(names):
    table = RateTable()
    cells = {}
    for name in names:
        cell = table.cell(name, 1.0)
        table[cell] = 2.0
        assert cells.setdefault(name, cell) == cell
    assert len(set(cells.values())) == len(cells)


def test_a_full_table_gives_up_the_bucket_that_is_full_soonest():
    table = RateTable(memoryview(bytearray(CELL_BYTES * (PROBES + 1))))
    for number in range(PROBES):
        table[table.cell(f"caller {number}", 0.0)] = 100.0 - number
    soonest = table.cell(f"caller {PROBES - 1}", 0.0)
    assert table.cell("one more", 0.0) == soonest
