"""Checks access: API keys, rate limits, requests in progress, sizes of requests and replies."""

import asyncio
import logging
import math
import os
import random
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from waltzrl.errors import InputError, RequestError
from waltzrl.serving.health import OK, Health
from waltzrl.serving.keys import ANONYMOUS, Caller, Key, read_keys
from waltzrl.telemetry.logs import RequestContext

Event: TypeAlias = MutableMapping[str, Any]  # as ASGI defines it
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]

KEY_FILE_SECONDS = 1.0
"""A changed key file is read again within this time."""
PROCESS = secrets.token_hex(6)
"""Prefix of this process's request ids, so that they are unique across processes."""
_requests = count()

CLIENT_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
"""A client's `x-request-id` that is kept; any other is replaced by ours."""
TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
"""https://www.w3.org/TR/trace-context/#traceparent-header"""
TRACESTATE = re.compile(rb"[\x20-\x7e]{0,512}")

log = logging.getLogger(__name__)


class RequestHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """The headers of a request that the gateway uses."""

    id: str
    """Generated for every request, so unique: it names the request in audit log and memory."""
    context: RequestContext
    """The id that the client sees, which is its own if it sent one, and its trace."""
    key: str = ""
    """The client's key, from `Authorization: Bearer` or `x-api-key`."""
    length: int = 0
    """`Content-Length` in bytes; 0 without one."""
    wants_collaboration: bool = False
    """`X-Waltzrl-Include: collaboration`: return drafts and feedback, if the key may see them."""
    takes_retractions: bool = False
    """`X-Waltzrl-Retract: yes`: the client understands `waltz.retract` events."""
    mode: str = ""
    """`X-Waltzrl-Mode`: how to send the stream, if the key may use that mode."""
    may_learn: bool | None = None
    """`X-Waltzrl-Learn`: whether the agents may learn from this request: True for `yes`, False for
    anything else, None without the header."""

    @classmethod
    def read(cls, scope: Event) -> Self:
        """Read the headers of an ASGI scope, in which names are lower case."""
        values = dict(scope["headers"])
        length = values.get(b"content-length", b"0")
        consent = values.get(b"x-waltzrl-learn")
        id_ = f"wz{PROCESS}{next(_requests):x}"
        return cls(
            id=id_,
            context=_context(id_, values),
            key=presented_key(scope["headers"]),
            length=int(length) if length.isdigit() else 0,
            mode=values.get(b"x-waltzrl-mode", b"").decode("latin-1"),
            wants_collaboration=values.get(b"x-waltzrl-include") == b"collaboration",
            takes_retractions=values.get(b"x-waltzrl-retract") == b"yes",
            may_learn=None if consent is None else consent.strip().lower() == b"yes",
        )


RETRY_AFTER_SECONDS = (1.0, 5.0)
"""`Retry-After` of an overload is random between these, which spreads the retries out."""

ROUNDING_SECONDS = 1e-6
"""A client that waited for `Retry-After` is not refused for a rounding error below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one worker of the gateway accepts."""

    max_active: int = 256
    """Requests in progress at once. Lower it if the model behind the gateway slows down under load;
    raise it if requests wait while the model is idle."""
    max_waiting: int = 256
    """Requests that wait for a place; more are refused at once. With as many as `max_active`, an
    accepted request waits for about the time of one other; 0 lets none wait."""
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
    """A token bucket per caller name; several keys of one name share it.

    A bucket is stored as the time at which it will be full again (the "theoretical arrival time"
    of the generic cell rate algorithm, ITU-T I.371), so no task has to refill it.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def take(self, caller: Caller) -> None:
        """Take one token from the caller's bucket.

        Raises:
            RequestError: 429, the bucket is empty.
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
    """Limits the requests in progress: lets some more wait briefly, and refuses the rest.

        async with admission:
            ... answer the request

    First come, first served: in an overload an admitted request has waited for at most
    `max_waiting` others. Last in, first out would be faster for most requests and far slower for
    the others.
    """

    def __init__(self, limits: Limits) -> None:
        self.active = 0
        self.draining = False
        """No new request is admitted."""
        self._limits = limits
        self._waiting: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        """In order of arrival; each resolves to True if it got a place, else to False."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def health(self) -> Health:
        return Health("down", "shutting down") if self.draining else OK

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

    async def _wait(self) -> bool:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[bool] = loop.create_future()
        self._waiting[place] = None
        alarm = loop.call_later(self._limits.max_wait_seconds, self._give_up, place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self._give_back()  # it got a place just before it was cancelled
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
    """Finds the caller of a key, and reloads the key file when it changes.

    Keys are looked up by their SHA-256, which a client cannot control, so the time of a look-up
    reveals nothing about any key.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the key file; without one, every request is of `ANONYMOUS`.

        Raises:
            InputError: the file cannot be read, or a key in it is invalid.
        """
        self.stale = False
        """The file has changed and is invalid; the earlier keys stay valid."""
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
        """Return the caller of a key, or None if the key is invalid."""
        if self._path is None:
            return ANONYMOUS
        self._reload_if_changed(self._path)
        entry = self._keys.get(sha256(key.encode()).digest())
        return entry if entry is not None and entry.state == "valid" else None

    def named(self, key_id: str) -> list[Key]:
        """Return the valid keys with an id; short ids of different keys may rarely coincide."""
        if self._path is not None:
            self._reload_if_changed(self._path)
        keys = (key for key in self._keys.values() if key.id == key_id)
        return [key for key in keys if key.state == "valid"]

    def _reload_if_changed(self, path: Path) -> None:
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
        """Return the caller of a request.

        Raises:
            RequestError: 401, the key is invalid or missing; 429, the rate limit is reached.
        """
        caller = self.keys.find(headers.key)
        if caller is None:
            problem = "invalid API key" if headers.key else "missing API key"
            raise RequestError(
                401, "authentication", f"{problem}; send a valid one as a bearer token"
            )
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


def _context(own_id: str, received: Mapping[bytes, bytes]) -> RequestContext:
    """Return the ids that the client sent, where they are valid."""
    client_id = received.get(b"x-request-id")
    if client_id is None or CLIENT_ID.fullmatch(client_id) is None:
        request_id = own_id
    else:
        request_id = client_id.decode()
    headers = {"X-Request-ID": request_id}
    traceparent = received.get(b"traceparent")
    if traceparent is None or TRACEPARENT.fullmatch(traceparent) is None:
        return RequestContext(request_id, "", headers)
    headers["traceparent"] = traceparent.decode()
    tracestate = received.get(b"tracestate")
    if tracestate and TRACESTATE.fullmatch(tracestate):
        headers["tracestate"] = tracestate.decode()
    return RequestContext(request_id, headers["traceparent"][3:35], headers)


def _overloaded(why: str) -> RequestError:
    return RequestError(
        503,
        "overloaded",
        f"{why}; try again",
        retry_after_seconds=random.uniform(*RETRY_AFTER_SECONDS),
    )


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that every change of the file changes; None if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - on the request path
    except OSError:
        return None
    return status.st_ctime_ns, status.st_size, status.st_ino


def _by_digest(keys: Iterable[Key]) -> dict[bytes, Key]:
    return {bytes.fromhex(key.sha256): key for key in keys}
