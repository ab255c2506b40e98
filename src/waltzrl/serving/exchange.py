"""The records that pass through the gateway, whatever API a request came by.

request bytes -> ChatRequest -> guarded() -> Answer -> reply bytes, or a stream of them
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from waltzrl.agents import Reviewer, Wording
from waltzrl.collaboration import Pattern
from waltzrl.policies.chat_completion import Json as Json
from waltzrl.records import (
    Arm,
    Collaboration,
    Decision,
    Prompt,
    Reply,
    ServedExchange,
    ToolCall,
    Usage,
)
from waltzrl.serving.keys import Caller

Api = Literal["chat", "responses", "messages"]
Mode = Literal["whole", "buffer", "window", "speculative", "audit", "review"]
"""How an answer is returned: whole, streamed in one of four ways, or not at all: a mere review."""
Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, spelled as a chat whatever API it came by."""

    api: Api
    prompt: Prompt
    """What the agents are shown: the conversation as plain turns."""
    body: Mapping[str, Json]
    """The chat-completions request for the upstream: all that the client sent, unknown keys too,
    without `stream`, `stream_options` and `n`."""
    model: str
    n: int = 1
    """Choices asked for; each is a collaboration of its own."""
    stream: bool = False
    stream_usage: bool = False
    """The client asked for token counts at the end of the stream."""
    subject: str = ""
    """The client's own name for its user or conversation, for decisions that must stick."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is returned for one choice."""

    reply: Reply
    """The final reply; its usage is that of all replies that were drafted for it."""
    finish: Finish
    decision: Decision
    raw: bytes | None = None
    """The upstream's own bytes, when they may be returned as they are: a draft, nothing else."""
    collaboration: Collaboration | None = None
    """How the answer came about, for callers who may see drafts."""


class UpstreamReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply of the upstream."""

    reply: Reply
    finish: Finish
    raw: bytes | None = None
    """Its bytes, when all text in them has been read into `reply`."""


class UpstreamDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one event of the upstream's stream adds to its reply."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Whole calls: fragments are gathered before anything reads them."""
    finish: Finish | None = None
    """Set on the last delta."""
    usage: Usage | None = None
    """Set on the delta that brings the server's count."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The immutable set that serves: rules, agents and thresholds."""

    id: str
    """A hash of what is in it."""
    stage: Literal[0, 1, 2]
    """0: no review; 1: rules review; 2: a model reviews, with the rules as second opinion."""
    pattern: Pattern
    reviewer: Reviewer
    wording: Wording
    upstream: Upstream
    """Drafts and revises."""


class Assignment(msgspec.Struct, frozen=True):
    """The bundle that serves a request, and its side of the release under way."""

    bundle: Bundle
    arm: Arm = ""
    release: str = ""
    """Id of the release under way; empty when there is none."""


class GatewayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request, who sent it, and how its answer is to be returned."""

    chat: ChatRequest
    caller: Caller
    bearer: str | None = None
    """The client's key, when it is meant for the upstream."""
    mode: Mode = "whole"
    traceparent: str = ""
    """W3C trace context of the client."""
    may_learn: bool | None = None
    """Whether the agents may learn from it; None when neither client nor key says."""


class ServedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice that was answered, or failed: its record, and how it came about."""

    exchange: ServedExchange
    request: GatewayRequest
    number: int = 0
    """Of the choice, from 0."""
    review_milliseconds: tuple[float, ...] = ()
    """[reviews] wall time of each."""
    first_words_milliseconds: float | None = None
    """Until text was sent before the verdict; None when none was."""
