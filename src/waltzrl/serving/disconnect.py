"""Cancels the work for a client that disconnected, or does not send the body it announced."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from waltzrl.errors import RequestError

Event: TypeAlias = MutableMapping[str, Any]  # as ASGI defines it
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]

GRACE_SECONDS = 0.25
"""Answers that are quicker than this are not watched for a disconnect."""
BODY_SECONDS = 30.0
"""Longest time for a request's body, which occupies a place meanwhile."""


class DisconnectWatcher:
    """Cancels the task that entered it when its client disconnects.

    A quick request costs one timer.
    """

    def __init__(self, receive: Receive, *, body_seconds: float = BODY_SECONDS) -> None:
        """Watch the connection that `receive` belongs to.

        Args:
            receive: gives the connection's events.
            body_seconds: longest wait for the body, inside `read`.
        """
        self._receive = receive
        self._body_seconds = body_seconds
        self._reading = self._grace_over = self._late = self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._worker = asyncio.current_task(self._loop)
        self._timer = self._loop.call_later(GRACE_SECONDS, self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Suppress the cancellation when the client is gone.

        Raises:
            RequestError: 408, the body did not arrive in time.
        """
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._late and kind is asyncio.CancelledError:
            raise RequestError(
                408,
                "invalid_request",
                f"the request's body did not arrive within {self._body_seconds:g} s; send it again",
            ) from None
        return self._gone and kind is asyncio.CancelledError

    async def read(self, body: Awaitable[bytes]) -> bytes:
        """Return the body; reading it reports a disconnect by itself."""
        self._reading = True
        raw = await body
        self._reading = False
        if self._grace_over:
            self._timer.cancel()
            self._watch_soon()
        return raw

    def _start(self) -> None:
        """Watch from now on; while the body is read, only its time limit."""
        self._grace_over = True
        if self._reading:
            self._timer = self._loop.call_later(self._body_seconds, self._give_up)
        else:
            self._watch_soon()

    def _watch_soon(self) -> None:
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
