"""Who may ask, and how much: API keys, rate limits, requests at once, bytes per message."""

import asyncio
import ipaddress
import logging
import math
import os
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec

from waltzrl.errors import InputError, RequestError
from waltzrl.serving.keys import ANONYMOUS, Caller, Key, read_keys

Event: TypeAlias = MutableMapping[str, Any]  # as ASGI defines it
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]

KEY_FILE_SECONDS = 1.0
"""A changed key file is read again within this time."""
PROCESS = secrets.token_hex(6)
"""Prefix of this process's request ids, which makes them unique across processes."""
_requests = count()

log = logging.getLogger(__name__)


class RequestHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway needs of a request's headers."""

    id: str
    """Made by us for every request; also in the response, the audit log and the traces."""
    key: str = ""
    """The client's key, from `Authorization: Bearer` or `x-api-key`."""
    length: int = 0
    """Bytes of the body as announced; 0 when not announced."""
    wants_collaboration: bool = False
    """`X-Waltzrl-Include: collaboration`: drafts and feedback in the body, if the key may."""
    takes_retractions: bool = False
    """`X-Waltzrl-Retract: yes`: the client takes back what a `waltz.retract` event names."""
    mode: str = ""
    """`X-Waltzrl-Mode`: how to send the stream, if the key may choose."""
    may_learn: bool | None = None
    """`X-Waltzrl-Learn`: whether the agents may learn from this request: only `yes` says so; None
    when the header is missing."""
    traceparent: str = ""
    """W3C trace context of the caller."""

    @classmethod
    def read(cls, scope: Event) -> Self:
        """Read the headers of an ASGI scope, in which names are lower case."""
        values = dict(scope["headers"])
        length = values.get(b"content-length", b"0")
        consent = values.get(b"x-waltzrl-learn")
        return cls(
            id=f"wz{PROCESS}{next(_requests):x}",
            key=presented_key(scope["headers"]),
            length=int(length) if length.isdigit() else 0,
            mode=values.get(b"x-waltzrl-mode", b"").decode("latin-1"),
            wants_collaboration=values.get(b"x-waltzrl-include") == b"collaboration",
            takes_retractions=values.get(b"x-waltzrl-retract") == b"yes",
            may_learn=None if consent is None else consent.strip().lower() == b"yes",
            traceparent=values.get(b"traceparent", b"").decode("latin-1"),
        )


RETRY_AFTER_SECONDS = (1.0, 5.0)
"""A refused client is told a random time between these, so that retries are spread out."""

ROUNDING_SECONDS = 1e-6
"""Tolerance: a client that waited as long as it was told is not refused for less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one worker of the gateway accepts."""

    max_active: int = 256
    """Requests in progress at once. Lower it when the model behind the gateway slows down under
    load; raise it when requests wait although the model is idle."""
    max_waiting: int = 256
    """Requests that wait for a place; more are refused at once. With as many as `max_active`, an
    overload costs an accepted request about the time of one more; 0 lets none wait."""
    max_wait_seconds: float = 2.0
    """Longest wait for a place."""
    max_request_bytes: int = 4 * 1024 * 1024
    """Raise it for long documents and images."""
    max_reply_bytes: int = 16 * 1024 * 1024
    """Largest reply of the upstream; a larger one is an error."""

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
    """Admits a number of requests at once, lets a few wait briefly, and refuses the rest.

        async with admission:
            ... answer the request

    First come, first served. In an overload an admitted request has waited for at most
    `max_waiting` others, which bounds the slowest; last in, first out would be faster for most
    and far slower for the rest.
    """

    def __init__(self, limits: Limits) -> None:
        self.active = 0
        self.draining = False
        """No new request is admitted."""
        self._limits = limits
        self._waiting: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        """In order of arrival; each resolves to True with a place, False without."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def __aenter__(self) -> None:
        """Take a place.

        Raises:
            RequestError: 503: too many wait, this one waited too long, or the gateway is stopping.
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
        """Admit no new request, and wait for those in progress or waiting.

        Returns:
            How many requests are still in progress when the time is over.
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
                self._give_back()  # it got a place that it will not use
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


class KeyRing:
    """Finds the caller that a key belongs to, and follows the key file as it changes.

    A key is looked up by its digest, which no client can steer, so the time of a look-up reveals
    nothing about any key.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the key file; None admits everybody, as `ANONYMOUS`.

        Raises:
            InputError: the file cannot be read, or a key in it is invalid.
        """
        self.stale = False
        """The file changed and cannot be read; the keys from before the change stay valid."""
        self._path = path
        self._clock = clock
        self._checked_at = clock()
        self._stamp = None if path is None else _stamp(path)
        self._keys = {} if path is None else _by_digest(read_keys(path))

    def __len__(self) -> int:
        """Count the valid keys."""
        return sum(key.state == "valid" for key in self._keys.values())

    @property
    def is_open(self) -> bool:
        return self._path is None

    def find(self, key: str) -> Caller | None:
        """Return the caller of a key; None when it is not valid."""
        if self._path is None:
            return ANONYMOUS
        self._follow(self._path)
        entry = self._keys.get(sha256(key.encode()).digest())
        return entry if entry is not None and entry.state == "valid" else None

    def named(self, key_id: str) -> list[Key]:
        """Return the valid keys with an id: one, none, or very rarely several."""
        if self._path is not None:
            self._follow(self._path)
        keys = (key for key in self._keys.values() if key.id == key_id)
        return [key for key in keys if key.state == "valid"]

    def _follow(self, path: Path) -> None:
        now = self._clock()
        if now - self._checked_at < KEY_FILE_SECONDS:
            return
        self._checked_at = now
        stamp = _stamp(path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = _by_digest(read_keys(path))
        except InputError as error:
            self.stale = True
            log.error("%s; the keys read before stay valid", error)  # noqa: TRY400 - one line
        else:
            self.stale = False
            log.warning("%s changed: %d keys are valid now", path, len(self))


class AccessControl:
    """Checks the API key of a request, its caller's rate, and the size of its body."""

    def __init__(self, keys: KeyRing, limits: Limits) -> None:
        self.keys = keys
        self.admission = Admission(limits)
        self._rates = RateLimits()
        self._limits = limits

    def caller(self, headers: RequestHeaders) -> Caller:
        """Return who sends the request.

        Raises:
            RequestError: 401 for an unknown key, 429 for a caller that is too fast.
        """
        caller = self.keys.find(headers.key)
        if caller is None:
            problem = "this API key is not valid here" if headers.key else "an API key is needed"
            raise RequestError(401, "authentication", f"{problem}; send one as a bearer token")
        self._rates.take(caller)
        return caller

    async def body(self, headers: RequestHeaders, receive: Receive) -> bytes:
        """Read the request's body.

        Raises:
            RequestError: 413, it is too large.
        """
        check_request_size(headers.length, self._limits)
        event = await receive()
        raw: bytes = event.get("body", b"")
        if not event.get("more_body"):
            return raw
        parts, size = [raw], len(raw)
        while event.get("more_body"):
            event = await receive()
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            check_request_size(size, self._limits)
        return b"".join(parts)


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the key in `Authorization: Bearer` or `x-api-key`, whichever comes first, or "".

    Args:
        headers: with names in lower case, as ASGI gives them.
    """
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return key.strip().decode("latin-1")
        elif name == b"x-api-key":
            return value.strip().decode("latin-1")
    return ""


def check_bind(host: str, ring: KeyRing, *, open_to_all: bool) -> None:
    """Refuse to answer the network without keys, unless that was asked for by name.

    Raises:
        InputError: `host` is not loopback, there are no keys and `open_to_all` is False.
    """
    if ring.is_open and not open_to_all and not _is_loopback(host):
        raise InputError(
            f"without API keys the gateway answers this machine only, not {host}: make a key with "
            "`waltzrl keys add NAME --file keys.toml` and give --keys keys.toml, or say --open"
        )


def _overloaded(why: str) -> RequestError:
    return RequestError(
        503,
        "overloaded",
        f"{why}; try again",
        retry_after_seconds=random.uniform(*RETRY_AFTER_SECONDS),
    )


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what any change of the file changes; None when it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - on the request path
    except OSError:
        return None
    return status.st_ctime_ns, status.st_size, status.st_ino


def _by_digest(keys: Iterable[Key]) -> dict[bytes, Key]:
    return {bytes.fromhex(key.sha256): key for key in keys}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
