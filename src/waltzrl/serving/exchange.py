"""What passes through the gateway, whatever API it came by.

request bytes -> ChatRequest -> guarded() -> Answer -> reply bytes, or a stream of them
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from waltzrl.policies.chat_completion import Json
from waltzrl.records import Collaboration, Decision, Prompt, Reply, ToolCall, Usage

__all__ = ["Answer", "Api", "ChatRequest", "Finish", "Json", "UpstreamDelta", "UpstreamReply"]

Api = Literal["chat", "responses", "messages"]
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
