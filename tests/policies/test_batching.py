import asyncio
import threading

import pytest

from waltzrl.policies.local import Batcher


class Kitchen:
    """Serves names in capitals, and remembers its batches."""

    def __init__(self, largest=100, in_thread=False):
        self.batches = []
        self.threads = set()
        self.call = Batcher(
            self._serve, lambda batch, _call: len(batch) < largest, in_thread=in_thread
        )

    def _serve(self, names):
        self.batches.append(list(names))
        self.threads.add(threading.current_thread())
        if "poison" in names:
            raise RuntimeError("spoilt")
        return [name.upper() for name in names]


async def after(passes, call):
    for _ in range(passes):
        await asyncio.sleep(0)
    return await call


async def serve_all(kitchen, names):
    return await asyncio.gather(*(kitchen.call(name) for name in names))


@pytest.mark.parametrize("in_thread", [False, True])
def test_calls_that_wait_together_are_served_together(in_thread):
    kitchen = Kitchen(in_thread=in_thread)
    assert asyncio.run(serve_all(kitchen, "abc")) == ["A", "B", "C"]
    assert kitchen.batches == [["a", "b", "c"]]
    assert (threading.current_thread() in kitchen.threads) is not in_thread


def test_a_call_that_comes_one_pass_later_still_joins():
    kitchen = Kitchen()

    async def come():
        return await asyncio.gather(kitchen.call("a"), after(1, kitchen.call("b")))

    assert asyncio.run(come()) == ["A", "B"]
    assert kitchen.batches == [["a", "b"]]


def test_a_full_batch_is_followed_by_another():
    kitchen = Kitchen(largest=2)
    assert asyncio.run(serve_all(kitchen, "abcde")) == list("ABCDE")
    assert kitchen.batches == [["a", "b"], ["c", "d"], ["e"]]


def test_what_comes_while_a_thread_serves_waits_for_the_next_batch():
    served, busy, resume = [], threading.Event(), threading.Event()

    def serve(names):
        served.append(list(names))
        busy.set()
        resume.wait(60)
        return names

    call = Batcher(serve, lambda _batch, _call: True, in_thread=True)

    async def come():
        first = asyncio.create_task(call("a"))
        await asyncio.to_thread(busy.wait, 60)
        later = asyncio.gather(*(after(10 * passes, call(str(passes))) for passes in range(4)))
        await after(50, asyncio.sleep(0))
        resume.set()
        return [await first, *await later]

    assert asyncio.run(come()) == ["a", "0", "1", "2", "3"]
    assert served == [["a"], ["0", "1", "2", "3"]]


def test_a_failure_reaches_every_caller_and_only_them():
    kitchen = Kitchen(largest=2)

    async def come():
        calls = [kitchen.call(name) for name in ("a", "poison", "b")]
        return await asyncio.gather(*calls, return_exceptions=True)

    spoilt, too, fine = asyncio.run(come())
    assert str(spoilt) == str(too) == "spoilt"
    assert fine == "B"


def test_a_cancelled_call_is_not_served():
    kitchen = Kitchen()

    async def come():
        staying, leaving = (asyncio.create_task(kitchen.call(name)) for name in ("a", "b"))
        await asyncio.sleep(0)
        leaving.cancel()
        return await asyncio.gather(staying, leaving, return_exceptions=True)

    stayed, left = asyncio.run(come())
    assert stayed == "A"
    assert isinstance(left, asyncio.CancelledError)
    assert kitchen.batches == [["a"]]


def test_a_loop_that_ended_early_leaves_nothing_behind():
    kitchen = Kitchen()

    async def give_up():
        asyncio.create_task(kitchen.call("a"))  # noqa: RUF006  nobody will wait for it
        await asyncio.sleep(0)

    asyncio.run(give_up())
    assert asyncio.run(serve_all(kitchen, "bc")) == ["B", "C"]
    assert kitchen.batches == [["b", "c"]]
