"""The model behind the gateway: a server that speaks chat completions, or policies of ours."""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from waltzrl.errors import PolicyError, RequestError
from waltzrl.policies import Policy, Sampling
from waltzrl.serving.exchange import Json, UpstreamDelta, UpstreamReply
from waltzrl.serving.wire.turns import turns_of


class Upstream(Protocol):
    """Something that completes chats."""

    async def complete(self, body: Mapping[str, Json], bearer: str | None) -> UpstreamReply:
        """Return the whole reply to a chat-completions request.

        Args:
            body: the request, without `stream` and `n`.
            bearer: the client's own key, when the gateway has none for the upstream.

        Raises:
            RequestError: it refused, failed, or said what is not a chat completion.
        """
        ...

    def stream(
        self, body: Mapping[str, Json], bearer: str | None
    ) -> AsyncGenerator[UpstreamDelta, None]:
        """Yield the reply as it is written; closing the generator stops the writing.

        Raises:
            RequestError: it refused, failed, or the stream ended before its end.
        """
        ...

    async def models(self, bearer: str | None) -> list[str]:
        """Return the names of what it serves.

        Raises:
            RequestError: it could not say.
        """
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class PolicyUpstream:
    """A policy of this process in the upstream's place."""

    def __init__(self, name: str, policy: Policy, max_new_tokens: int) -> None:
        """Serve `policy` as the model `name`; a request may ask for `max_new_tokens` at most."""
        self.name = name
        self.policy = policy
        self.max_new_tokens = max_new_tokens

    async def complete(self, body: Mapping[str, Json], bearer: str | None) -> UpstreamReply:
        if body.get("model") != self.name:
            raise RequestError(
                404, "not_found", f"there is no model {body.get('model')!r}; say {self.name!r}"
            )
        try:
            reply = await self.policy.reply(turns_of(body["messages"]), self._sampling(body))
        except PolicyError as error:
            raise RequestError(400, "invalid_request", str(error)) from error
        return UpstreamReply(reply=reply, finish=reply.finish)

    async def stream(
        self, body: Mapping[str, Json], bearer: str | None
    ) -> AsyncGenerator[UpstreamDelta, None]:
        said = await self.complete(body, bearer)
        yield UpstreamDelta(
            text=said.reply.text,
            finish=said.finish,
            usage=said.reply.usage,
        )

    async def models(self, bearer: str | None) -> list[str]:
        return [self.name]

    async def aclose(self) -> None:
        """Leave the policy to its owner."""

    def _sampling(self, body: Mapping[str, Json]) -> Sampling:
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or self.max_new_tokens
        warmth = body.get("temperature") or 0.0
        if not isinstance(asked, int) or not isinstance(warmth, int | float):
            raise RequestError(400, "invalid_request", "max_tokens and temperature must be numbers")
        limit = max(1, min(asked, self.max_new_tokens))
        return Sampling(max_new_tokens=limit, temperature=max(0.0, float(warmth)))
