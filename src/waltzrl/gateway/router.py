"""Several upstreams as one: each model has its own, which is retried and has a fallback."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from msgspec import structs

from waltzrl.errors import RequestError
from waltzrl.foundation.logs import fields
from waltzrl.gateway.exchange import (
    ChatBody,
    Deltas,
    Fallback,
    ModelCard,
    Upstream,
    UpstreamDelta,
    UpstreamReply,
    UpstreamRequest,
    UpstreamResponse,
)
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.upstream_errors import UpstreamError

FIRST_WAIT_SECONDS = 0.25
"""The wait before the first retry; doubled before each further one."""
LONGEST_WAIT_SECONDS = 8.0

Result = TypeVar("Result")
Work = Callable[["UpstreamRoute", str | None], Awaitable[Result]]
"""Sends a request to an upstream, with the client's own key if that upstream may get it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRoute:
    """An upstream, and when it is used."""

    name: str
    upstream: Upstream
    models: tuple[str, ...] = ()
    """The patterns of the models that it serves."""
    fallback: str | None = None
    """The name of the upstream that answers while this one is down."""
    retries: int = 0
    timeout_seconds: float = 60.0
    """The time from the first attempt on in which a retry may begin."""

    def serves(self, model: str) -> list[str]:
        """Return the patterns that match a model."""
        return [pattern for pattern in self.models if fnmatchcase(model, pattern)]

    def renamed(self, body: ChatBody) -> ChatBody:
        """Return a request for the first model of a fallback, if it serves others than that."""
        asked = body.get("model")
        if not self.models or not isinstance(asked, str) or self.serves(asked):
            return body
        first = self.models[0]
        # A pattern is not the name of a model.
        return body if set(first) & set("*?[") else {**body, "model": first}


class UpstreamRouter:
    """Sends each request to the upstream of its model, or to a fallback."""

    def __init__(self, default: UpstreamRoute, named: Sequence[UpstreamRoute]) -> None:
        """Set up the routes.

        Args:
            default: serves the models that no pattern matches, and alone gets clients' own keys.
            named: further upstreams.
        """
        self._default = default
        self._routes = {route.name: route for route in (default, *named)}

    async def complete(
        self, body: ChatBody, bearer: str | None, received: list[bytes] | None = None
    ) -> UpstreamReply:
        async def work(route: UpstreamRoute, key: str | None) -> UpstreamReply:
            upstream_reply = await route.upstream.complete(route.renamed(body), key, received)
            return structs.replace(upstream_reply, fallback=self._name_fallback(route, body))

        return await self._answer(body.get("model"), bearer, work)

    async def stream(self, body: ChatBody, bearer: str | None) -> Deltas:
        told: list[UpstreamDelta] = []

        async def begin(route: UpstreamRoute, key: str | None) -> Deltas:
            deltas = route.upstream.stream(route.renamed(body), key)
            fallback = self._name_fallback(route, body)
            told.clear()  # nothing of an attempt that failed before
            async for delta in deltas:
                told.append(structs.replace(delta, fallback=None if told else fallback))
                if delta.text or delta.reasoning or delta.begun or delta.finish is not None:
                    break
            return deltas

        # Only until something of the reply has come may another attempt take this one's place.
        try:
            deltas = await self._answer(body.get("model"), bearer, begin)
        except RequestError:
            for delta in told:  # the tokens that the server has counted are charged
                yield delta
            raise
        async with aclosing(deltas):
            for delta in told:
                yield delta
            async for delta in deltas:
                yield delta

    async def forward(self, request: UpstreamRequest) -> UpstreamResponse:
        def work(route: UpstreamRoute, key: str | None) -> Awaitable[UpstreamResponse]:
            return route.upstream.forward(structs.replace(request, bearer=key))

        if request.repeatable:
            return await self._answer(request.model, request.bearer, work)
        route = self._route(request.model)
        return await work(route, self._key(route, request.bearer))

    async def models(self, bearer: str | None) -> list[ModelCard]:
        """Return the models of all upstreams that answer, each from the one that serves it."""
        lists = await asyncio.gather(
            *(route.upstream.models(self._key(route, bearer)) for route in self._routes.values()),
            return_exceptions=True,
        )
        for listed in lists:
            if isinstance(listed, BaseException) and not isinstance(listed, RequestError):
                raise listed
        if all(isinstance(listed, RequestError) for listed in lists):
            raise next(listed for listed in lists if isinstance(listed, RequestError))
        return [
            model
            for route, listed in zip(self._routes.values(), lists, strict=True)
            if not isinstance(listed, BaseException)
            for model in listed
            if self._route(model.id) is route
        ]

    @property
    def names(self) -> Collection[str]:
        return {name for route in self._routes.values() for name in route.upstream.names}

    def health(self) -> Health:
        """Return `down` if all upstreams are, and `degraded` if some are."""
        healths = [route.upstream.health() for route in self._routes.values()]
        down = sum(health.status == "down" for health in healths)
        if down == len(healths):
            return healths[0]
        return Health("degraded", f"{down} of {len(healths)} are down") if down else OK

    def _route(self, model: object) -> UpstreamRoute:
        """Return the route of a model: that with the longest pattern which matches."""
        matching = [
            (len(pattern), route.name)
            for route in self._routes.values()
            if isinstance(model, str)
            for pattern in route.serves(model)
        ]
        return self._routes[max(matching)[1]] if matching else self._default

    def _name_fallback(self, route: UpstreamRoute, body: ChatBody) -> Fallback | None:
        """Return what answers a request in the place of the upstream of its model, if it does."""
        if route is self._route(body.get("model")):
            return None
        return Fallback(route.name, str(route.renamed(body).get("model", "")))

    def _key(self, route: UpstreamRoute, bearer: str | None) -> str | None:
        """Return the client's own key, which is meant for the default upstream and for no other."""
        return bearer if route is self._default else None

    async def _answer(self, model: object, bearer: str | None, work: Work[Result]) -> Result:
        """Return the answer of the model's upstream, or while that is down of its fallback.

        Raises:
            RequestError: the last upstream that was asked refused or failed.
        """
        route = self._route(model)
        while True:
            try:
                return await _send_with_retries(route, self._key(route, bearer), work)
            except UpstreamError as error:
                if not error.is_down or route.fallback is None:
                    raise
                names = fields(upstream=route.name, fallback=route.fallback)
                log.warning("the fallback takes a request", extra=names)
                # The loop ends, because `check_fallbacks` refuses fallbacks in a circle.
                route = self._routes[route.fallback]


async def _send_with_retries(route: UpstreamRoute, key: str | None, work: Work[Result]) -> Result:
    """Return the answer of an upstream, from the first attempt that succeeds.

    Raises:
        RequestError: of the last attempt.
    """
    clock = asyncio.get_running_loop().time
    deadline, retries = clock() + route.timeout_seconds, 0
    while True:
        try:
            return await work(route, key)
        except UpstreamError as error:
            wait = _choose_wait_seconds(retries, error)
            if retries == route.retries or not error.is_transient or clock() + wait > deadline:
                raise
        retries += 1
        await asyncio.sleep(wait)


def _choose_wait_seconds(retries: int, error: UpstreamError) -> float:
    """Return how long to wait: random, so that clients which failed together do not retry so."""
    longest = min(FIRST_WAIT_SECONDS * 2**retries, LONGEST_WAIT_SECONDS)
    return random.uniform(longest / 2, longest) + (error.retry_after_seconds or 0.0)
