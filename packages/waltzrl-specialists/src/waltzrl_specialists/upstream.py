"""Specialists as the gateway's upstream: the request's model names the one that replies."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import (
    ChatBody,
    Deltas,
    Json,
    ModelCard,
    UpstreamReply,
    UpstreamRequest,
    UpstreamResponse,
)
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.policy_upstream import PolicyUpstream
from waltzrl.gateway.upstream_errors import UpstreamError
from waltzrl.policies import Policy
from waltzrl.policies.settings import UpstreamConfig
from waltzrl_specialists.agents import open_specialists


class SpecialistUpstream:
    """Serves specialists, all adapters of one base in memory.

    What it cannot answer it leaves to the fallback, if there is one: an unknown model, a request
    that a specialist cannot honour, such as one that is too long, and a failure.
    """

    def __init__(
        self, policies: Mapping[str, Policy], systems: Mapping[str, str], max_new_tokens: int
    ) -> None:
        """Serve each policy by its name, with its system prompt."""
        self._systems = systems
        self._upstreams = {
            name: PolicyUpstream(name, policy, max_new_tokens) for name, policy in policies.items()
        }

    async def complete(
        self, body: ChatBody, bearer: str | None, received: list[bytes] | None = None
    ) -> UpstreamReply:
        upstream, request = self._read_request(body)
        try:
            return await upstream.complete(request, bearer, received)
        except (RequestError, RuntimeError) as error:
            raise _make_fallback_error(error) from error

    async def stream(self, body: ChatBody, bearer: str | None) -> Deltas:
        upstream, request = self._read_request(body)
        try:
            async with aclosing(upstream.stream(request, bearer)) as deltas:
                async for delta in deltas:
                    yield delta
        except (RequestError, RuntimeError) as error:
            raise _make_fallback_error(error) from error

    async def forward(self, request: UpstreamRequest) -> UpstreamResponse:
        raise UpstreamError(
            404, "not_found", f"specialists only chat; they have no {request.path}", is_down=True
        )

    async def models(self, bearer: str | None) -> list[ModelCard]:
        return [ModelCard(id=name) for name in self._upstreams]

    @property
    def names(self) -> Collection[str]:
        return self._upstreams.keys()

    def health(self) -> Health:
        return OK

    def _read_request(self, body: ChatBody) -> tuple[PolicyUpstream, Mapping[str, Json]]:
        """Return who replies, and the request with the system prompt before the client's own."""
        name = body.get("model")
        if not isinstance(name, str) or name not in self._upstreams:
            raise UpstreamError(
                404,
                "not_found",
                f"there is no specialist {name!r}; use {', '.join(self._upstreams)}",
                is_down=True,
            )
        system, turns = self._systems[name], body["messages"]
        assert isinstance(turns, list), "the gateway has checked the request"
        first = turns[0]
        if isinstance(first, dict) and first.get("role") in {"system", "developer"}:
            own = first.get("content")
            if isinstance(own, str):
                system, turns = f"{system}\n\n{own}", turns[1:]
        # One system message, as in the training.
        messages: list[Json] = [{"role": "system", "content": system}, *turns]
        return self._upstreams[name], {**body, "messages": messages}


def open_specialist_upstream(folder: Path, max_new_tokens: int) -> SpecialistUpstream:
    """Load all specialists in a folder of `finetune`, to be served.

    Raises:
        InputError: there is none, or they have several bases.
        CheckpointError: the base or an adapter is missing or damaged.
    """
    opened = open_specialists(folder, in_thread=True)
    policies = {name: agent.policy for name, agent in opened.agents.items()}
    systems = {name: trained.system for name, trained in opened.trained.items()}
    return SpecialistUpstream(policies, systems, max_new_tokens)


@asynccontextmanager
async def open_upstream(
    config: UpstreamConfig, model: str | None
) -> AsyncIterator[SpecialistUpstream]:
    """Open the gateway's upstream `specialists`; each specialist has its own name."""
    assert config.specialists is not None
    folder = Path(config.specialists)
    yield await asyncio.to_thread(open_specialist_upstream, folder, config.max_new_tokens)


def _make_fallback_error(error: RequestError | RuntimeError) -> UpstreamError:
    """Return an error after which the router asks the fallback; without one clients get it."""
    if isinstance(error, RequestError):
        return UpstreamError(error.status, error.kind, str(error), is_down=True)
    return UpstreamError(503, "upstream", "the specialist failed", is_down=True)
