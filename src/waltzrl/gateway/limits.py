"""Limits: sizes, times, rates of callers, requests in progress."""

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from waltzrl.errors import RequestError
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.shares import RateTable, WorkerLoad

RETRY_AFTER_SECONDS = (1.0, 5.0)
"""`Retry-After` of an overload is random between these, which spreads the retries out."""

LOOK_SECONDS = 0.005
"""The time between looks at the places that other workers have given back, while requests wait
here.
"""

ROUNDING_SECONDS = 1e-6
"""A client that waited for `Retry-After` is not refused for a rounding error below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the gateway accepts, all its workers together."""

    max_active: Annotated[int, Field(ge=1)] = 256
    """Requests in progress at once. Lower it if the model behind the gateway slows down under load;
    raise it if requests wait while the model is idle."""
    max_waiting: Annotated[int, Field(ge=0)] = 256
    """Requests that wait for a place; more are refused at once. With as many as `max_active`, an
    accepted request waits for about the time of one other; 0 lets none wait."""
    max_wait_seconds: Annotated[float, Field(ge=0)] = 2.0
    """Longest wait for a place."""
    max_request_bytes: Annotated[int, Field(ge=1)] = 4 * 1024 * 1024
    """Raise it for long documents and images."""
    max_reply_bytes: Annotated[int, Field(ge=1)] = 16 * 1024 * 1024
    """Largest reply of the upstream; a larger one is an error."""
    max_head_seconds: Annotated[float, Field(gt=0)] = 10.0
    """Longest time for a TLS handshake, and for the head of a request to arrive."""
    max_body_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Longest time for the body of a request to arrive: the request occupies a place meanwhile."""
    max_send_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Longest time that a client may leave more of a response unread than its connection holds."""
    max_idle_seconds: Annotated[float, Field(gt=0)] = 75.0
    """How long a connection is kept between two requests; longer than load balancers keep theirs,
    so that they close it and never send a request on a connection that is closing."""


def check_request_size(size: int, limits: Limits) -> None:
    """Refuse a request that is too large.

    Args:
        size: bytes, as announced or as read so far.
        limits: `max_request_bytes` counts here.

    Raises:
        RequestError: 413.
    """
    if size > limits.max_request_bytes:
        raise RequestError(
            413,
            "too_large",
            f"the request has more than {limits.max_request_bytes} bytes; shorten it",
        )


def check_reply_size(size: int, limits: Limits) -> None:
    """Refuse an upstream's reply that is too large.

    Args:
        size: bytes read so far.
        limits: `max_reply_bytes` counts here.

    Raises:
        RequestError: 502.
    """
    if size > limits.max_reply_bytes:
        raise RequestError(
            502,
            "upstream",
            f"the upstream's reply has more than {limits.max_reply_bytes} bytes; request fewer "
            "tokens",
        )


class RateLimits:
    """A token bucket per caller name; several keys of one name, and all workers, share it.

    A bucket is stored as the time at which it will be full again (the "theoretical arrival time"
    of the generic cell rate algorithm, ITU-T I.371), so no task has to refill it.
    """

    def __init__(
        self, table: RateTable | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keep the buckets in a table; None keeps them in this process.

        Args:
            table: the buckets' times.
            clock: monotonic seconds, the same for all processes that share the table.
        """
        self._table = table or RateTable()
        self._clock = clock

    def take(self, caller: Caller) -> None:
        """Take one token from the caller's bucket.

        Raises:
            RequestError: 429, the bucket is empty.
        """
        if caller.requests_per_minute is None:
            return
        seconds_each = 60.0 / caller.requests_per_minute
        with self._table.lock():
            now = self._clock()
            cell = self._table.cell(caller.name, now)
            # No emptier than empty: what a lower rate of before took is forgotten.
            full_at = min(max(self._table[cell], now), now + caller.burst * seconds_each)
            # GCRA: conforms if it comes at most `burst - 1` intervals before the bucket is full.
            wait = full_at - now - (caller.burst - 1) * seconds_each
            is_allowed = wait <= ROUNDING_SECONDS
            self._table[cell] = full_at + seconds_each if is_allowed else full_at
        if not is_allowed:
            raise RequestError(
                429,
                "rate_limit",
                f"{caller.name} may send {caller.requests_per_minute} requests a minute, "
                f"{caller.burst} at once; try again in {math.ceil(wait)} s",
                retry_after_seconds=wait,
            )


class Admission:
    """Limits the requests in progress: lets some more wait briefly, and refuses the rest.

        async with admission:
            ... answer the request

    First come, first served: in an overload an admitted request has waited for at most
    `max_waiting` others. Last in, first out would be faster for most requests and far slower for
    the others. The workers of a gateway share all places: one that could give a place to a request
    of its own leaves it to another worker whose first request waits longer.
    """

    def __init__(self, limits: Limits, load: WorkerLoad | None = None) -> None:
        """Admit requests of this worker.

        Args:
            limits: for all workers together.
            load: of all workers; None for a single one.
        """
        self.active = 0
        self.draining = False
        """True if no new request is admitted."""
        self._limits = limits
        self._load = load or WorkerLoad()
        self._waiting: OrderedDict[asyncio.Future[bool], float] = OrderedDict()
        """The waiting requests in order of arrival, with its time; each resolves to True if it got
        a place, else to False.
        """
        self._looking: asyncio.TimerHandle | None = None
        """The next look at the places that other workers have given back."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def health(self) -> Health:
        return Health("down", "shutting down") if self.draining else OK

    async def __aenter__(self) -> float:
        """Take a place, and return the wait for it in milliseconds.

        Raises:
            RequestError: 503: too many wait, this one waited too long, or the gateway is stopping.
        """
        if self.draining:
            raise shutdown_error()
        if not self._waiting and self._take():
            return 0.0
        # Two workers that saw the last place at the same time have both left it; one gets it here.
        with self._load.lock():
            if not self._waiting and self._take():
                return 0.0
            if self._load.total_waiting >= self._limits.max_waiting:
                raise _overloaded_error("too many requests are waiting")
            place = self._line_up()
        started = time.perf_counter()
        if not await self._wait(place):
            raise _overloaded_error(f"no place was free for {self._limits.max_wait_seconds:g} s")
        return (time.perf_counter() - started) * 1e3

    async def __aexit__(self, *exception: object) -> None:
        self._give_back()

    async def drain(self, within_seconds: float) -> int:
        """Stop admitting requests, and wait for those in progress or waiting.

        Returns:
            The number of requests still in progress after `within_seconds`.
        """
        self.draining = True
        try:
            async with asyncio.timeout(within_seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
        return self.active

    def _line_up(self) -> asyncio.Future[bool]:
        """Begin to wait; every worker sees it at once."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[bool] = loop.create_future()
        # Monotonic time of the machine, which the workers compare.
        self._waiting[place] = loop.time()
        self._publish_waiting()
        return place

    async def _wait(self, place: asyncio.Future[bool]) -> bool:
        loop = asyncio.get_running_loop()
        if self._load.is_shared and self._looking is None:
            self._looking = loop.call_later(LOOK_SECONDS, self._look)
        alarm = loop.call_later(self._limits.max_wait_seconds, self._give_up, place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self._give_back()  # it got a place just before it was cancelled
            if self._waiting.pop(place, None) is not None:
                self._publish_waiting()
            raise
        finally:
            alarm.cancel()

    def _give_up(self, place: asyncio.Future[bool]) -> None:
        if not place.done():
            del self._waiting[place]
            self._publish_waiting()
            place.set_result(False)

    def _take(self) -> bool:
        """Take a place, if one is free in any worker."""
        self._set_active(self.active + 1)  # first, so that two workers never take the last place
        if self._load.total_active > self._limits.max_active:
            self._set_active(self.active - 1)
            return False
        self._idle.clear()
        return True

    def _give_back(self) -> None:
        # A place that is passed on stays counted, so that no other worker takes it in between.
        if self._load.others_wait_longer or not self._pass_on():
            self._set_active(self.active - 1)
            if self.active == 0:
                self._idle.set()

    def _pass_on(self) -> bool:
        """Give a place that was taken to the first request that waits, if there is one."""
        while self._waiting:
            place, _ = self._waiting.popitem(last=False)
            self._publish_waiting()
            if not place.done():
                place.set_result(True)
                return True
        return False

    def _look(self) -> None:
        """Look for places that other workers have given back."""
        self._looking = None
        while self._waiting and not self._load.others_wait_longer and self._take():
            # Those that waited may all have been cancelled meanwhile.
            if not self._pass_on():
                self._give_back()
        if self._waiting:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _set_active(self, active: int) -> None:
        self.active = active
        self._load.set_active(active)

    def _publish_waiting(self) -> None:
        first = next(iter(self._waiting.values()), 0.0)
        self._load.set_waiting(len(self._waiting), first)


def shutdown_error() -> RequestError:
    """Return what a client is told whose request the gateway does not admit or finish any more."""
    return _overloaded_error("the gateway is shutting down")


def _overloaded_error(why: str) -> RequestError:
    return RequestError(
        503,
        "overloaded",
        f"{why}; try again",
        retry_after_seconds=random.uniform(*RETRY_AFTER_SECONDS),
    )
