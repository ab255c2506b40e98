import asyncio

import pytest

from waltzrl.errors import PolicyError
from waltzrl.foundation.background import gather_all


def test_results_come_in_the_order_of_what_was_begun():
    async def wait(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(gather_all(map(wait, (3, 1, 2)))) == [3, 1, 2]


def test_what_is_left_of_a_failure_has_ended_before_it_is_raised():
    ended = []

    async def reply(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # as a connection that is closed
            ended.append(name)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise PolicyError("the server is down")

    async def run() -> list[str]:
        with pytest.raises(PolicyError, match="the server is down"):
            await gather_all([reply("first"), fail(), reply("last")])
        return list(ended)

    assert asyncio.run(run()) == ["first", "last"]
