"""The model behind the gateway: a server that speaks chat completions, or policies of ours."""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from waltzrl.serving.exchange import Completion, Delta, Json


class Upstream(Protocol):
    """Something that completes chats."""

    async def complete(self, body: Mapping[str, Json]) -> Completion:
        """Return the whole reply to a chat-completions request.

        Raises:
            RequestError: it refused, failed, or said what is not a chat completion.
        """
        ...

    def stream(self, body: Mapping[str, Json]) -> AsyncGenerator[Delta, None]:
        """Yield the reply as it is written; closing the generator stops the writing.

        Raises:
            RequestError: it refused, failed, or the stream ended before its end.
        """
        ...

    async def models(self) -> list[str]:
        """Return the names of what it serves.

        Raises:
            RequestError: it could not say.
        """
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...
