"""Cancels the work for a client that has gone away, or does not send what it announced."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from waltzrl.errors import RequestError

Event: TypeAlias = MutableMapping[str, Any]  # as ASGI defines it
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]

PATIENCE_SECONDS = 0.25
"""Answers that are quicker need nobody to watch whether their client is still there."""
BODY_SECONDS = 30.0
"""A request's body may take so long; it holds a place meanwhile."""


class DisconnectWatcher:
    """While it is entered, the task that entered it ends when its client disconnects.

    One timer is all that a quick request costs.
    """

    def __init__(self, receive: Receive, *, body_seconds: float = BODY_SECONDS) -> None:
        """Watch the connection that `receive` belongs to.

        Args:
            receive: gives the connection's events.
            body_seconds: longest wait for the body, while `reads` is entered.
        """
        self._receive = receive
        self._body_seconds = body_seconds
        self._reading = self._impatient = self._late = self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._worker = asyncio.current_task(self._loop)
        self._timer = self._loop.call_later(PATIENCE_SECONDS, self._look)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Say that the work may end quietly when nobody waits for it any more.

        Raises:
            RequestError: 408, the body did not come in time.
        """
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._late and kind is asyncio.CancelledError:
            raise RequestError(
                408,
                "invalid_request",
                f"the request's body did not come within {self._body_seconds:g} s; send it again",
            ) from None
        return self._gone and kind is asyncio.CancelledError

    async def reads(self, body: Awaitable[bytes]) -> bytes:
        """Return the body; whoever reads it hears of a disconnect, so that nobody else must."""
        self._reading = True
        raw = await body
        self._reading = False
        if self._impatient:
            self._timer.cancel()
            self._begin()
        return raw

    def _look(self) -> None:
        """Watch from now on; while the body is read, only the time."""
        self._impatient = True
        if self._reading:
            self._timer = self._loop.call_later(self._body_seconds, self._give_up)
        else:
            self._begin()

    def _begin(self) -> None:
        self._watcher = self._loop.create_task(self._watch())

    def _give_up(self) -> None:
        self._late = True
        self._cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._cancel()

    def _cancel(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
