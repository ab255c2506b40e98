"""The part of a gateway's recipe about the models behind it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

DEFAULT_UPSTREAM = "upstream"
"""The name of the table `[upstream]` as a fallback, in logs and in metrics."""
UpstreamName = Annotated[str, Field(pattern="^[a-z][a-z0-9_-]{0,31}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What all upstreams have in common."""

    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Longest wait for a whole reply, or for the next chunk of a stream; and, from the first
    attempt on, until the last retry begins."""
    retries: Annotated[int, Field(ge=0, le=10)] = 0
    """Further attempts if the connection fails, the status is 502, 503 or 504, or 429 with
    Retry-After; never once a part of a stream was received."""
    fallback: str | None = None
    """The upstream that answers while this one is down: a name of `upstreams`, or `upstream`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig(ServerConfig):
    """The model behind the gateway: on a server, or in this process."""

    url: str | None = None
    """URL of an OpenAI-compatible server, without `/chat/completions`."""
    folder: str | None = None
    """Weights to load instead, a folder or a GGUF file; its name is the model's for clients."""
    specialists: str | None = None
    """Folder of `waltzrl specialists train` to load instead; clients ask for one by its name."""
    program: str | None = None
    """File of a Python program to run in a sandbox instead, as `waltzrl evolve program` writes."""
    reviser: str | None = None
    """Folder of weights that write the revisions of what `folder` drafts; None is `folder`."""
    wording: str = "plain"
    """The prompt that asks for a revision: plain, or tiny for the demo's agents."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 1024
    """Longest reply in tokens, of a model in this process."""
    api_key_env: str = "WALTZRL_UPSTREAM_KEY"
    """Environment variable with the API key of `url`. If it is not set, and the gateway has no API
    keys of its own, each client's key is forwarded."""

    @property
    def name(self) -> str:
        """The folder, or the URL without a password and without a query."""
        if self.url is None:
            return str(self.folder or self.specialists or self.program)
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

    def __post_init__(self) -> None:
        places = (self.url, self.folder, self.specialists, self.program)
        if sum(place is not None for place in places) != 1:
            raise ValueError(
                "upstream needs one of url, folder, specialists and program; use --upstream"
                " http://host:8000/v1"
            )
        try:
            urlsplit(self.url or "")
        except ValueError as error:
            raise ValueError(
                f"upstream.url: {error}; use one such as http://[::1]:8000/v1"
            ) from None
        if self.reviser is not None and self.folder is None:
            raise ValueError(
                "upstream.reviser needs upstream.folder: only a model in this process has one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedUpstreamConfig(ServerConfig):
    """A further server; it never gets a client's own key."""

    url: str
    """URL of an OpenAI-compatible server, without `/chat/completions`."""
    models: tuple[str, ...] = ()
    """The models that it serves: names, or patterns such as `gpt-*`. The longest pattern that
    matches decides; a model that none matches is the default upstream's. As a fallback for a model
    that none of them matches, it is asked for the first, if that is a name."""
    api_key_env: str | None = None
    """Environment variable with its API key; None is WALTZRL_UPSTREAM_KEY_NAME with the name in
    capitals, and `_` for `-`."""


def check_fallbacks(default: UpstreamConfig, named: Mapping[str, NamedUpstreamConfig]) -> None:
    """Check that every fallback exists, and that no chain of them is a circle.

    Raises:
        ValueError: one does not exist, or leads back to where it began.
    """
    if DEFAULT_UPSTREAM in named:
        raise ValueError(
            f"upstreams.{DEFAULT_UPSTREAM}: this name is that of [upstream]; rename it"
        )
    servers: dict[str, ServerConfig] = {DEFAULT_UPSTREAM: default, **named}
    for start in servers:
        name, seen = start, {start}
        while (fallback := servers[name].fallback) is not None:
            if fallback not in servers:
                raise ValueError(
                    f"{name} has the fallback {fallback!r}; need one of {', '.join(servers)}"
                )
            if fallback in seen:
                raise ValueError(f"the fallbacks of {start} are a circle; remove one")
            name = fallback
            seen.add(name)
