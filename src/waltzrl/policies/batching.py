"""Joining calls that wait at the same time into batches, without a timer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Call = TypeVar("Call")
Result = TypeVar("Result")


class Batcher(Generic[Call, Result]):
    """Serves single calls in batches.

    A batch starts when the one before it is done and a pass of the event loop has brought no
    further call; so every task that was ready has joined, and the same calls always make the
    same batches.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[Call]], Sequence[Result]],
        fits: Callable[[Sequence[Call], Call], bool],
        *,
        in_thread: bool = False,
    ) -> None:
        """Prepare to gather.

        Args:
            serve: answers a batch, in order.
            fits: says whether one more call may join a batch that has some.
            in_thread: leave the event loop free while a batch is served.
        """
        self._serve = serve
        self._fits = fits
        self._in_thread = in_thread
        self._open: list[_Batch[Call, Result]] = []
        self._newest: asyncio.Task[dict[int, Result]] | None = None

    async def __call__(self, call: Call) -> Result:
        """Wait for the batch that `call` joins; what `serve` raises reaches all who wait for it."""
        batch = self._batch_for(call)
        place = batch.join(call)
        try:
            return (await asyncio.shield(batch.task))[place]
        finally:
            batch.waiting.pop(place, None)

    def _batch_for(self, call: Call) -> "_Batch[Call, Result]":
        self._open = [batch for batch in self._open if not batch.task.done()]
        for batch in self._open:
            if self._fits(list(batch.waiting.values()), call):
                return batch
        batch = _Batch()
        batch.task = self._newest = asyncio.create_task(self._run(batch, self._newest))
        self._open.append(batch)
        return batch

    async def _run(
        self, batch: "_Batch[Call, Result]", before: "asyncio.Task[dict[int, Result]] | None"
    ) -> dict[int, Result]:
        if before is not None and not before.done():
            await asyncio.wait([before])
        seen = 0
        while batch.joined > seen:
            seen = batch.joined
            await asyncio.sleep(0)
        self._open.remove(batch)
        waiting = dict(batch.waiting)
        if not waiting:
            return {}
        calls = list(waiting.values())
        if self._in_thread:
            served = await asyncio.to_thread(self._serve, calls)
        else:
            served = self._serve(calls)
        return dict(zip(waiting, served, strict=True))


class _Batch(Generic[Call, Result]):
    """Calls that will be served together."""

    task: "asyncio.Task[dict[int, Result]]"

    def __init__(self) -> None:
        self.joined = 0
        self.waiting: dict[int, Call] = {}
        """By place; a call that is cancelled leaves."""

    def join(self, call: Call) -> int:
        place = self.joined
        self.waiting[place] = call
        self.joined += 1
        return place
