"""What passes through the gateway, whatever API it came by.

request bytes -> Exchange -> guarded() -> Answer -> reply bytes, or a stream of them
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from waltzrl.records import Collaboration, Prompt, Reply, ToolCall

Json: TypeAlias = "str | float | bool | list[Json] | dict[str, Json] | None"
Api = Literal["chat", "responses", "messages"]
Finish = Literal["stop", "length", "tool_calls", "content_filter"]
Decision = Literal["draft", "revised", "refused"]
"""What went out: the draft as it was, a revision, or a canned refusal in the reply's place."""


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    api: Api
    prompt: Prompt
    """What the agents are shown: the conversation as plain turns."""
    body: Mapping[str, Json]
    """The chat-completions request for the upstream: all that the client sent, unknown keys too,
    spelt for that API, without `stream`, `stream_options` and `n`."""
    model: str
    n: int = 1
    """Choices asked for; each is a collaboration of its own."""
    stream: bool = False
    stream_usage: bool = False
    """The client asked for token counts at the end of the stream."""
    subject: str = ""
    """The client's own name for its user or conversation, for decisions that must stick."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What goes out for one choice."""

    reply: Reply
    """The final reply; its token counts are those of all replies that were drafted for it."""
    finish: Finish
    decision: Decision
    raw: bytes | None = None
    """The upstream's own bytes, when they may go out as they are: a draft, nothing else in it."""
    collaboration: Collaboration | None = None
    """What was said on the way, for callers who may see drafts."""


class UpstreamReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the upstream said at once."""

    reply: Reply
    finish: Finish
    raw: bytes | None = None
    """Its bytes, when all text in them has been read into `reply`."""


class UpstreamDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What the upstream said in one event of a stream."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Whole calls: fragments are gathered before anything reads them."""
    finish: Finish | None = None
    """Set on the last delta."""
    prompt_tokens: int = 0
    reply_tokens: int = 0
