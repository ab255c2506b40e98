"""Routes that not every gateway has: what answers them is built elsewhere."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from waltzrl.gateway.access import Event, Receive, Send
from waltzrl.gateway.keys import Caller
from waltzrl.records import Feedback, Reply


@dataclass(frozen=True, slots=True)
class MemoryRoutes:
    """Routes of a gateway with a memory."""

    console: Callable[[Event, Receive, Send], Awaitable[None]]
    """Serves the pages below `/desk`; an ASGI 3 application."""
    decision: Callable[[], Awaitable[bytes]]
    """Returns JSON: the state of the release, for tools that control a deployment.

    Raises:
        RequestError: the database is unavailable.
    """
    feedback: Callable[[bytes, Caller], Awaitable[bytes]]
    """Keeps what a user said of a reply.

    Raises:
        RequestError: the body is invalid, the reply is unknown, or the database is unavailable.
    """


Review: TypeAlias = Callable[[str, Reply, int], Awaitable[Feedback]]
"""Reviews a draft that answers a request; the number is that of the review."""


class RoutingHandler(Protocol):
    """Plans tasks: `waltzrl_routing.service.RoutingService`."""

    async def respond(self, body: bytes, key: str, request_id: str, review: Review) -> bytes:
        """Return JSON: a plan, and the review of each task's request.

        Raises:
            RequestError: the request is invalid, or the database is unavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExtraRoutes:
    """Routes that not every gateway has."""

    memory: MemoryRoutes | None = None
    routing: RoutingHandler | None = None
    pass_through: bool = False
    """True if other paths below `/v1` go to the upstream, without a review."""


NO_EXTRA_ROUTES = ExtraRoutes()
