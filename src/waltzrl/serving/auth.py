"""Who comes in: what a request's headers say, whose key it bears, and how much it may bring."""

import secrets
from itertools import count
from typing import Self

import msgspec

from waltzrl.errors import RequestError
from waltzrl.serving.disconnect import Event, Receive
from waltzrl.serving.keys import Caller, KeyRing, presented_key
from waltzrl.serving.limits import Admission, Limits, RateLimits, check_request_size

PROCESS = secrets.token_hex(6)
"""Begins the ids of this process's requests, so that no other's are like them."""
_requests = count()


class RequestHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway needs of a request's headers."""

    id: str
    """Ours, new for every request; in the reply's headers, the audit log and the traces."""
    key: str = ""
    """The client's key, from `Authorization: Bearer` or `x-api-key`."""
    length: int = 0
    """Bytes of the body, as announced; 0 when not."""
    wants_collaboration: bool = False
    """`X-Waltzrl-Include: collaboration`: drafts and feedback in the body, if the key may."""
    takes_retractions: bool = False
    """`X-Waltzrl-Retract: yes`: the client takes back what a `waltz.retract` event names."""
    mode: str = ""
    """`X-Waltzrl-Mode`: how the stream shall leave, if the key may ask."""
    may_learn: bool | None = None
    """`X-Waltzrl-Learn: yes`: the agents may learn from this request; not when it says anything
    else."""
    traceparent: str = ""
    """W3C trace context of the caller."""

    @classmethod
    def read(cls, scope: Event) -> Self:
        """Read the headers of an ASGI scope, in which names are lower case."""
        found = dict(scope["headers"])
        length = found.get(b"content-length", b"0")
        consent = found.get(b"x-waltzrl-learn")
        return cls(
            id=f"wz{PROCESS}{next(_requests):x}",
            key=presented_key(scope["headers"]),
            length=int(length) if length.isdigit() else 0,
            mode=found.get(b"x-waltzrl-mode", b"").decode("latin-1"),
            wants_collaboration=found.get(b"x-waltzrl-include") == b"collaboration",
            takes_retractions=found.get(b"x-waltzrl-retract") == b"yes",
            may_learn=None if consent is None else consent.strip().lower() == b"yes",
            traceparent=found.get(b"traceparent", b"").decode("latin-1"),
        )


class AccessControl:
    """Lets a request in when its key is known, its caller is not too fast, and there is room."""

    def __init__(self, keys: KeyRing, limits: Limits) -> None:
        self.keys = keys
        self.admission = Admission(limits)
        self._rates = RateLimits()
        self._limits = limits

    def caller(self, head: RequestHeaders) -> Caller:
        """Say who asks.

        Raises:
            RequestError: 401 for an unknown key, 429 for a caller that is too fast.
        """
        caller = self.keys.find(head.key)
        if caller is None:
            said = "this API key opens nothing here" if head.key else "an API key is needed"
            raise RequestError(401, "authentication", f"{said}; send one as a bearer token")
        self._rates.take(caller)
        return caller

    async def body(self, head: RequestHeaders, receive: Receive) -> bytes:
        """Read the request's body.

        Raises:
            RequestError: 413, it is too long.
        """
        check_request_size(head.length, self._limits)
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
