"""Runs coroutines beside others, none of which outlives whoever waits for it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

Result = TypeVar("Result")


@asynccontextmanager
async def in_background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run `work` until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        # If `work` has failed, this raises its error at the end of the block.
        with suppress(asyncio.CancelledError):
            await task


async def gather_all(works: Iterable[Awaitable[Result]]) -> list[Result]:
    """Await all at once; return their results in order.

    The first failure is raised when the others are stopped: after `asyncio.gather` they go on, and
    ask a policy that its user closes meanwhile. A TaskGroup would wrap the failure in a group.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
