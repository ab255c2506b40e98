"""Checks access: API keys, rate limits, requests in progress, sizes of requests."""

import logging
import os
import re
import secrets
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
)
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from waltzrl.errors import InputError, RequestError
from waltzrl.foundation.logs import RequestContext
from waltzrl.gateway.costs import ServingCosts
from waltzrl.gateway.keys import ANONYMOUS, Caller, Key, read_keys
from waltzrl.gateway.limits import Admission, Limits, RateLimits, check_request_size
from waltzrl.gateway.shares import RateTable, WorkerLoad

Event: TypeAlias = MutableMapping[str, Any]  # as ASGI defines it
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]

NOTHING = nullcontext()
KEY_FILE_SECONDS = 1.0
"""A changed key file is read again within this time."""
_requests = count()
KEY_HEADERS = (b"x-api-key", b"api-key")
"""The headers with nothing but a key: Anthropic's and Azure's."""

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
    """The client's key, from `Authorization: Bearer`, `x-api-key` or `api-key`."""
    length: int = 0
    """The `Content-Length` in bytes; 0 without one."""
    wants_collaboration: bool = False
    """`X-Waltzrl-Include: collaboration`: return drafts and feedback, if the key may see them."""
    takes_retractions: bool = False
    """`X-Waltzrl-Retract: yes`: the client understands `waltz.retract` events."""
    mode: str = ""
    """`X-Waltzrl-Mode`: how to send the stream, if the key may use that mode."""
    policy: str = ""
    """`X-Waltzrl-Policy`: the policy that serves, if the key may use it."""
    is_probe: bool = False
    """`X-Waltzrl-Probe: yes`: an operator's own check, if the key may send probes."""
    may_learn: bool | None = None
    """`X-Waltzrl-Learn`: whether the agents may learn from this request: True for `yes`, False for
    anything else, None without the header."""

    @classmethod
    def read(cls, scope: Event) -> Self:
        """Read the headers of an ASGI scope, in which names are lower case."""
        # Of a repeated header the last one counts, except for keys.
        values = dict(scope["headers"])
        length = values.get(b"content-length", b"0")
        consent = values.get(b"x-waltzrl-learn")
        id_ = make_request_id()
        return cls(
            id=id_,
            context=_read_context(id_, values),
            key=read_presented_key(scope["headers"]),
            length=int(length) if length.isdigit() else 0,
            mode=values.get(b"x-waltzrl-mode", b"").decode("latin-1"),
            policy=values.get(b"x-waltzrl-policy", b"").decode("latin-1"),
            wants_collaboration=values.get(b"x-waltzrl-include") == b"collaboration",
            takes_retractions=values.get(b"x-waltzrl-retract") == b"yes",
            is_probe=values.get(b"x-waltzrl-probe") == b"yes",
            may_learn=None if consent is None else consent.strip().lower() == b"yes",
        )


class KeyRing:
    """Finds the caller of a key, and reloads the key file when it changes.

    Keys are looked up by their SHA-256, which a client cannot control, so the time of a look-up
    reveals nothing about any key.
    """

    def __init__(
        self,
        path: Path | None,
        anonymous: Caller = ANONYMOUS,
        *,
        has_ledger: bool = False,
        policies: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the key file; without one, every request is of `anonymous`.

        Args:
            path: the key file; None without one.
            anonymous: what every client may do without one.
            has_ledger: costs are recorded, so keys may have a daily budget.
            policies: the names of those that keys may have.
            clock: monotonic seconds.

        Raises:
            InputError: the file cannot be read, or a key in it is invalid.
        """
        self._has_ledger, self._policies = has_ledger, policies
        self.stale = False
        """True if the file has changed and is invalid; the earlier keys stay valid."""
        self._path, self._anonymous = path, anonymous
        self._clock = clock
        self._checked_at = clock()
        self._stamp = None if path is None else _read_stamp(path)
        self._unread = False
        self._keys = {} if path is None else self._read(path)

    def __len__(self) -> int:
        """Count the valid keys."""
        return sum(key.state == "valid" for key in self._keys.values())

    @property
    def is_open(self) -> bool:
        return self._path is None

    @property
    def anonymous(self) -> Caller:
        """What every client may do without a key file."""
        return self._anonymous

    def find(self, key: str) -> Caller | None:
        """Return the caller of a key, or None if the key is invalid."""
        if self._path is None:
            return self._anonymous
        self._reload_if_changed(self._path)
        entry = self._keys.get(sha256(key.encode()).digest())
        return entry if entry is not None and entry.state == "valid" else None

    def named(self, key_id: str) -> list[Key]:
        """Return the valid keys with an id; short ids of different keys may rarely coincide."""
        return [key for key in self._read_valid() if key.id == key_id]

    def reviewers(self) -> list[str]:
        """Return the names of the valid keys that may label at the review desk."""
        may_label = (key for key in self._read_valid() if key.role not in (None, "viewer"))
        return sorted({key.name for key in may_label})

    def _read_valid(self) -> list[Key]:
        if self._path is not None:
            self._reload_if_changed(self._path)
        return [key for key in self._keys.values() if key.state == "valid"]

    def _read(self, path: Path) -> dict[bytes, Key]:
        keys = read_keys(path)
        valid = [key for key in keys if key.state == "valid"]
        limited = [key.name for key in valid if key.has_budget]
        if limited and not self._has_ledger:
            raise InputError(
                f"{path}: {limited[0]} has a daily budget, which needs a ledger; set budget.folder"
            )
        for key in valid:
            if unknown := set(key.policies) - set(self._policies):
                raise InputError(
                    f"{path}: {key.name} has the policy {min(unknown)!r}, which the recipe has not;"
                    f" it has {', '.join(sorted(self._policies)) or 'none'}"
                )
        return {bytes.fromhex(key.sha256): key for key in keys}

    def _reload_if_changed(self, path: Path) -> None:
        now = self._clock()
        if now - self._checked_at < KEY_FILE_SECONDS:
            return
        self._checked_at = now
        stamp = _read_stamp(path)
        if stamp == self._stamp and not self._unread:
            return
        # Before the file is read: what changes in the meantime is seen at the next look.
        unread, self._stamp, self._unread = self._unread, stamp, False
        try:
            self._keys = self._read(path)
        except InputError as error:
            self.stale = True
            # A file that could not be opened, as with too many open files, may be the next time.
            self._unread = stamp is not None and isinstance(error.__cause__, OSError)
            if not (unread and self._unread):
                log.error("%s; the keys read before stay valid", error)  # noqa: TRY400 - one line
        else:
            self.stale = False
            log.warning("%s changed: %d keys are valid now", path, len(self))


class AccessControl:
    """Checks the API key of a request, its caller's rate, and the size of its body."""

    def __init__(
        self,
        keys: KeyRing,
        limits: Limits,
        load: WorkerLoad | None = None,
        rates: RateTable | None = None,
        costs: ServingCosts | None = None,
    ) -> None:
        """Check by these keys and limits.

        Args:
            keys: of the callers.
            limits: for all workers together.
            load: of all workers; None for a single one.
            rates: of all workers; None for a single one.
            costs: knows what each key has used today; None where that is not recorded.
        """
        self.keys = keys
        self.costs = costs
        self.limits = limits
        self.load = load or WorkerLoad()
        self.admission = Admission(limits, self.load)
        self._rates = RateLimits(rates)

    def caller(self, headers: RequestHeaders) -> Caller:
        """Return the caller of a request.

        Raises:
            RequestError: 401, the key is invalid or missing; 429, the rate limit is reached, or
                the budget of the day is used up.
        """
        caller = self.keys.find(headers.key)
        if caller is None:
            problem = "invalid API key" if headers.key else "missing API key"
            raise RequestError(
                401, "authentication", f"{problem}; send a valid one as a bearer token"
            )
        # without keys everybody is an operator
        if headers.is_probe and not (caller.may_probe or self.keys.is_open):
            raise RequestError(
                403,
                "permission",
                "this key may not send probes, which the memory leaves out; make one with "
                "`waltzrl keys add --may-probe`",
            )
        self.admit(caller)
        return caller

    def admit(self, caller: Caller) -> None:
        """Count a request of a caller.

        Raises:
            RequestError: 429, the rate limit is reached, or the budget of the day is used up.
        """
        self._rates.take(caller)
        if self.costs is not None:
            self.costs.require(caller)

    def spending(self, caller: Caller) -> AbstractContextManager[None]:
        """Return what counts a request of a key with a budget while its cost is not known."""
        if self.costs is None or not caller.has_budget:
            return NOTHING
        return self.costs.in_progress(caller)

    async def body(self, headers: RequestHeaders, receive: Receive) -> bytes:
        """Read the request's body.

        Raises:
            RequestError: 413, it is too large.
        """
        # A length that is too large is refused before anything is received.
        check_request_size(headers.length, self.limits)
        event = await receive()
        raw: bytes = event.get("body", b"")
        if not event.get("more_body"):
            return raw
        parts, size = [raw], len(raw)
        # A disconnect has no `more_body` and ends it; nobody gets the answer to the part.
        while event.get("more_body"):
            event = await receive()
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            check_request_size(size, self.limits)
        return b"".join(parts)


def make_request_id() -> str:
    """Return an id that no other request has."""
    return f"{_process}{next(_requests):x}"


def read_presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the first key in `Authorization: Bearer`, `x-api-key` or Azure's `api-key`, or "".

    Clients that are configured for one of them may send another one empty.

    Args:
        headers: with names in lower case, as ASGI gives them.
    """
    for name, value in headers:
        key = b""
        if name == b"authorization":
            scheme, _, credentials = value.partition(b" ")
            key = credentials if scheme.lower() == b"bearer" else b""
        elif name in KEY_HEADERS:
            key = value
        if key := key.strip():
            return key.decode("latin-1")
    return ""


def _read_context(own_id: str, received: Mapping[bytes, bytes]) -> RequestContext:
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


def _read_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that every change of the file changes; None if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - on the request path
    except OSError:
        return None
    # Not the mtime, which a copy that preserves times sets back to that of its source.
    return status.st_ctime_ns, status.st_size, status.st_ino


def _choose_process_prefix() -> None:
    global _process
    _process = f"wz{secrets.token_hex(6)}"


_process: str
"""The prefix of this process's request ids, so that they are unique across processes."""
_choose_process_prefix()
os.register_at_fork(after_in_child=_choose_process_prefix)
