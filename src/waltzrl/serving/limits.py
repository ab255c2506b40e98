"""How much may come: requests a minute per caller, requests at once, bytes per message."""

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from waltzrl.errors import RequestError
from waltzrl.serving.keys import Caller

RETRY_AFTER_SECONDS = (1.0, 5.0)
"""A refused client is told a time between these, so that not all come back in one wave."""

ROUNDING_SECONDS = 1e-6
"""Who waited as long as asked is not refused for less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one worker of the gateway takes on."""

    max_active: int = 256
    """Requests under way at once; more only make each other slower. Lower it where the model
    behind the gateway slows down, raise it where requests wait although the model is idle."""
    max_waiting: int = 256
    """Requests that wait for a place; more are refused at once. As many as may be active make an
    overload cost those who get in about the time of one more request; 0 never lets wait."""
    max_wait_seconds: float = 2.0
    """Longest wait for a place."""
    max_request_bytes: int = 4 * 1024 * 1024
    """Raise it for long documents and pictures."""
    max_reply_bytes: int = 16 * 1024 * 1024
    """What the upstream may send for one reply, before it is refused."""

    def __post_init__(self) -> None:
        if min(self.max_active, self.max_request_bytes, self.max_reply_bytes) < 1:
            raise ValueError(f"max_active and the sizes must be 1 or more, got {self}")
        if min(self.max_waiting, self.max_wait_seconds) < 0:
            raise ValueError(f"max_waiting and max_wait_seconds must be 0 or more, got {self}")


def check_request_size(size: int, limits: Limits) -> None:
    """Refuse a request that is too large.

    Args:
        size: bytes, as announced or as read so far.
        limits: say how many are too many.

    Raises:
        RequestError: 413.
    """
    if size > limits.max_request_bytes:
        raise RequestError(
            413,
            "too_large",
            f"the request has more than {limits.max_request_bytes} bytes; send a shorter one",
        )


def check_reply_size(size: int, limits: Limits) -> None:
    """Refuse a reply of the upstream that is too large.

    Args:
        size: bytes read so far.
        limits: say how many are too many.

    Raises:
        RequestError: 502.
    """
    if size > limits.max_reply_bytes:
        raise RequestError(
            502,
            "upstream",
            f"the upstream's reply has more than {limits.max_reply_bytes} bytes; ask for fewer "
            "tokens",
        )


class RateLimits:
    """A token bucket for each caller's name, so that a second key brings no second allowance.

    A bucket is kept as the one moment at which it will be full again (the "theoretical arrival
    time" of the generic cell rate algorithm, ITU-T I.371), so nothing has to be refilled.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def take(self, caller: Caller) -> None:
        """Take one request out of the caller's bucket.

        Raises:
            RequestError: 429, and nothing was taken: the bucket is empty.
        """
        if caller.requests_per_minute is None:
            return
        now = self._clock()
        seconds_each = 60.0 / caller.requests_per_minute
        full_at = max(self._full_at.get(caller.name, now), now)
        wait = full_at - now - (caller.burst - 1) * seconds_each
        if wait > ROUNDING_SECONDS:
            raise RequestError(
                429,
                "rate_limit",
                f"{caller.name} may send {caller.requests_per_minute} requests a minute, "
                f"{caller.burst} at once; try again in {math.ceil(wait)} s",
                retry_after_seconds=wait,
            )
        self._full_at[caller.name] = full_at + seconds_each


class Admission:
    """Lets so many requests in at once, a few wait briefly, and refuses the rest at once.

        async with admission:
            ... answer the request

    Places go to those who came first. In an overload everyone who gets in has then waited for
    `max_waiting` others at most, which keeps even the slowest quick as long as few may wait;
    serving the newest first would be quicker for most and far slower for the unlucky.
    """

    def __init__(self, limits: Limits) -> None:
        self.active = 0
        self.draining = False
        """Nothing new is let in."""
        self._limits = limits
        self._waiting: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        """In the order in which they came; each becomes true with a place, false without."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def __aenter__(self) -> None:
        """Take a place.

        Raises:
            RequestError: 503: too many wait, this one waited too long, or the gateway stops.
        """
        if self.draining:
            raise _overloaded("the gateway is shutting down")
        if self.active < self._limits.max_active:
            self.active += 1
            self._idle.clear()
            return
        if len(self._waiting) >= self._limits.max_waiting:
            raise _overloaded("too many requests are waiting")
        if not await self._wait():
            raise _overloaded(f"no place was free for {self._limits.max_wait_seconds:g} s")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()

    async def drain(self, within_seconds: float) -> int:
        """Let nothing new in, and wait for what is under way or already waits.

        Returns:
            How many requests are still under way at the end of the time.
        """
        self.draining = True
        try:
            async with asyncio.timeout(within_seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
        return self.active

    async def _wait(self) -> bool:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[bool] = loop.create_future()
        self._waiting[place] = None
        alarm = loop.call_later(self._limits.max_wait_seconds, self._give_up, place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self._give_back()  # it was given a place and will not use it
            self._waiting.pop(place, None)
            raise
        finally:
            alarm.cancel()

    def _give_up(self, place: asyncio.Future[bool]) -> None:
        if not place.done():
            del self._waiting[place]
            place.set_result(False)

    def _give_back(self) -> None:
        while self._waiting:
            place, _ = self._waiting.popitem(last=False)
            if not place.done():
                place.set_result(True)
                return
        self.active -= 1
        if self.active == 0:
            self._idle.set()


def _overloaded(why: str) -> RequestError:
    return RequestError(
        503,
        "overloaded",
        f"{why}; try again",
        retry_after_seconds=random.uniform(*RETRY_AFTER_SECONDS),
    )
