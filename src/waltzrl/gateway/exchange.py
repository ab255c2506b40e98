"""The gateway's records, the same for every API.

request bytes -> ChatRequest -> guarded() -> Answer -> reply bytes, or a stream of them
"""

import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from waltzrl.agents import Wording
from waltzrl.agents.rules_reviewer import (
    OnOtherLanguage,
    RulesReviewer,
    find_unread_language,
)
from waltzrl.collaboration import Pattern, Reviewer, observed
from waltzrl.foundation.logs import NO_REQUEST, RequestContext
from waltzrl.gateway.health import Health
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.stream_modes import StreamMode
from waltzrl.policies.chat_completion import Json as Json
from waltzrl.records import (
    Arm,
    Collaboration,
    Decision,
    FeedbackAction,
    Prompt,
    Reply,
    ServedExchange,
    ToolCall,
    Usage,
)

Api = Literal["chat", "completions", "responses", "messages", "moderations"]
ChatBody: TypeAlias = Mapping[str, Json]
"""The body of a chat-completions request."""
Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, converted to a chat-completions request whichever API it used."""

    api: Api
    prompt: Prompt
    """The conversation as plain turns, for the agents."""
    body: ChatBody
    """The chat-completions request for the upstream: all keys that the client sent, also unknown
    ones, except `stream`, `stream_options` and `n`."""
    model: str
    n: int = 1
    """The number of choices requested, of all prompts; each is a collaboration of its own."""
    stream: bool = False
    stream_usage: bool = False
    """The client wants token counts at the end of the stream."""
    subject: str = ""
    """The client's id of its user or conversation, which keeps a conversation on one bundle."""
    parts: tuple["ChatRequest", ...] = ()
    """The parts of a request with several prompts, one for each, with `n` choices of its own."""
    shows_reasoning: bool = True
    """The client's API and request have a place for reasoning; else it is dropped unread."""
    has_refusals: bool = False
    """The client's API and request have a field for refusals: OpenAI's, under a strict schema."""
    encodes_reasoning: bool = False
    """The client wants reasoning also as an encoded text: some send no other back."""
    reasoning_summary: str = ""
    """How the client wants reasoning summarised, such as `auto`; empty for reasoning as it is."""
    tool_names: Mapping[str, Mapping[str, Json]] = {}
    """The names in the chat of tools in a namespace -> the fields that name them in the client's
    API."""
    created: float = msgspec.field(default_factory=time.time)
    """Seconds since the epoch, when the request came."""


Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]


class TokenAlternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token that could have been generated, in the format of chat completions."""

    token: str
    logprob: float
    """The natural logarithm of its probability."""
    bytes: list[Byte] | None = None


class TokenLogprob(TokenAlternative, frozen=True, forbid_unknown_fields=True):
    """A token that was generated, and its likeliest alternatives."""

    top_logprobs: Sequence[TokenAlternative] = ()


class EncryptedReasoning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reasoning that only its server reads, in the format of OpenRouter's `reasoning_details`."""

    type: Literal["reasoning.encrypted"]
    data: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_+/=-]+\Z")]
    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{1,200}\Z")] | None = None
    format: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")] | None = None
    index: int | None = None


class ReplyDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the upstream says about a reply. A client gets it only with that reply."""

    created: int | None = None
    """Seconds since the epoch."""
    system_fingerprint: str | None = None
    service_tier: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    """The log-probabilities of the tokens that spell the reply's text."""
    usage: Mapping[str, Mapping[str, int]] = {}
    """The parts of the token counts, such as `{"prompt_tokens_details": {"cached_tokens": 64}}`."""
    stop_sequence: str | None = None
    """The stop sequence that ended the reply, as the upstream spells it: no API may show one that
    the client did not ask for."""
    signatures: Mapping[str, str] = {}
    """The signatures of calls by their ids: Google's server refuses a call that comes back without
    its own."""
    encrypted: tuple[EncryptedReasoning, ...] = ()
    """What is encrypted of the reasoning, which has such signatures where OpenRouter asks Google.
    """


NO_DETAILS = ReplyDetails()


def total_counts(
    usages: Iterable[Mapping[str, Mapping[str, int]]],
) -> dict[str, dict[str, int]]:
    """Add up the parts of several replies' token counts, as in `ReplyDetails.usage`."""
    totals: dict[str, dict[str, int]] = {}
    for usage in usages:
        for name, part in usage.items():
            total = totals.setdefault(name, {})
            for key, count in part.items():
                total[key] = total.get(key, 0) + count
    return totals


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is returned for one choice."""

    reply: Reply
    """The final reply; its usage is the total of the draft and all revisions."""
    finish: Finish
    decision: Decision
    refused: bool = False
    """The reply's text belongs into the field for refusals, which the request has."""
    raw: bytes | None = None
    """The upstream's bytes, if they may be returned unchanged: only for an unrevised draft."""
    details: ReplyDetails = NO_DETAILS
    collaboration: Collaboration
    """What led to the answer; callers get it who may see drafts."""
    usd: float | None = None
    """The cost in US dollars; None when a price is unknown, or costs are not recorded."""


class Fallback(NamedTuple):
    """What answered in the place of an upstream that is down."""

    upstream: str
    """Its name."""
    model: str
    """The model that it was asked for."""


class DraftReview(msgspec.Struct, frozen=True, kw_only=True):
    """What `POST /v1/review` answers."""

    id: str
    object: Literal["waltzrl.review"] = "waltzrl.review"
    unsafe: bool
    overrefuse: bool
    doubtful: bool
    reviewed: bool
    failure: str
    risk: float | None
    category: str
    action: FeedbackAction
    rules: tuple[str, ...]
    feedback: str
    decision: Decision
    reply: str


class UpstreamReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply of the upstream."""

    reply: Reply
    finish: Finish
    raw: bytes | None = None
    """The bytes of the response, if `reply` holds all text in them; else None."""
    details: ReplyDetails = NO_DETAILS
    refused: bool = False
    """The text came in the field for refusals."""
    fallback: Fallback | None = None
    """What wrote it, if that is not the upstream of its model."""

    @property
    def delta(self) -> "UpstreamDelta":
        """The same as a stream of one delta."""
        return UpstreamDelta(
            reasoning=self.reply.reasoning,
            text=self.reply.text,
            refused=self.refused,
            calls=self.reply.calls,
            finish=self.finish,
            usage=self.reply.usage,
            details=self.details,
            fallback=self.fallback,
        )


class UpstreamDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one event of the upstream's stream adds to its reply."""

    reasoning: str = ""
    text: str = ""
    refused: bool = False
    """The text came in the field for refusals."""
    calls: tuple[ToolCall, ...] = ()
    """All calls of the reply, on the delta that ends it; the reader joins their fragments."""
    begun: Callable[[], tuple[ToolCall, ...]] | None = None
    """Returns all calls as far as they have been read, on a delta that adds to one."""
    finish: Finish | None = None
    """Set on the delta that ends the text; of several, the last counts."""
    usage: Usage | None = None
    """Set on the delta that carries the server's token counts."""
    details: ReplyDetails | None = None
    """Set on the last delta."""
    fallback: Fallback | None = None
    """Set on the first delta of a reply that a fallback writes."""


Deltas: TypeAlias = AsyncGenerator[UpstreamDelta, None]
"""A reply as it is generated; closing the generator cancels the generation."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One model of an upstream, as `GET /v1/models` lists it."""

    id: str
    created: int = 0
    """Seconds since the epoch; 0 if the upstream does not say."""
    object: Literal["model"] = "model"
    owned_by: str = "upstream"
    # The names by which servers tell how many tokens a model takes; agents ask for one of them.
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    context_length: int | msgspec.UnsetType = msgspec.UNSET
    context_window: int | msgspec.UnsetType = msgspec.UNSET
    max_output_tokens: int | msgspec.UnsetType = msgspec.UNSET


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the upstream gets it."""

    path: str
    """The path below the upstream's URL, such as `/embeddings`; with the query, if there is one."""
    body: bytes = b""
    bearer: str | None = None
    """The client's own key, used when the gateway has none for the upstream."""
    method: str = "POST"
    content_type: str = "application/json"
    model: str = ""
    """The name that chooses among several upstreams; empty if the request names none."""
    repeatable: bool = True
    """True if it may be sent more than once, and to another upstream."""


class UpstreamResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A success of the upstream, for the client to get as it is."""

    status: int
    content_type: str
    body: bytes


class Upstream(Protocol):
    """Something that completes chats."""

    async def complete(
        self, body: ChatBody, bearer: str | None, received: list[bytes] | None = None
    ) -> UpstreamReply:
        """Return the whole reply to a chat-completions request.

        Args:
            body: the request, without `stream` and `n`.
            bearer: the client's own key, when the gateway has none for the upstream.
            received: holds what has come of the reply until all of it has; None to keep nothing.

        Raises:
            RequestError: it refused, failed, or did not return a chat completion.
        """
        ...

    def stream(self, body: ChatBody, bearer: str | None) -> Deltas:
        """Yield the reply as it is generated.

        Raises:
            RequestError: it refused, failed, or the stream ended early.
        """
        ...

    async def forward(self, request: UpstreamRequest) -> UpstreamResponse:
        """Return the response to a request that is no chat.

        Raises:
            RequestError: it refused, failed, or has no such endpoint.
        """
        ...

    async def models(self, bearer: str | None) -> list[ModelCard]:
        """Return its models.

        Raises:
            RequestError: they are unavailable.
        """
        ...

    @property
    def names(self) -> Collection[str]:
        """Names of its models, as far as they are known."""
        ...

    def health(self) -> Health:
        """Return what traffic and probes have shown, without sending anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The immutable set that serves: rules, agents and thresholds."""

    id: str
    """The hash of the contents."""
    stage: Literal[0, 1, 2]
    """0: no review; 1: the rules review; 2: a model reviews, and the rules too."""
    pattern: Pattern
    reviewer: Reviewer
    wording: Wording
    upstream: Upstream
    """The upstream that drafts and, unless there is a reviser, revises."""
    rules: RulesReviewer
    """The rules that decide how much of a stream is sent before its final review."""
    stream_mode: StreamMode = StreamMode.BUFFER
    """How streams are sent, unless a request or its key has another mode."""
    reviser: Upstream | None = None
    """The upstream that revises; None is that which drafts."""
    shows_examples: bool = True
    """Whether the model that answers is shown examples of the memory, if there are any."""
    policy: str = ""
    """The name of the policy that it belongs to; empty for the gateway's own."""
    categories: Mapping[str, str] = field(default_factory=dict)
    """The rules' categories: the id of each rule -> its category."""
    vision: bool = False
    """True if the reviewer sees images."""
    languages: Sequence[str] = ()
    """The languages that the reviewer reads, as ISO 639-1 codes; none are all."""
    on_other_language: OnOtherLanguage = "serve"
    """What becomes of a request in another language."""
    admission: Callable[[], AbstractContextManager[object]] | None = None
    """The function that is called before a draft is generated: it raises an OverloadError if the
    draft could not be reviewed in time; what it returns is left when the draft is there. None if
    every draft can be.
    """

    @property
    def acts(self) -> bool:
        """Whether its reviews change replies, and are not only recorded."""
        return self.stage > 0 and self.pattern is not observed

    def declines(self, prompt: Prompt) -> bool:
        """Return whether every reply to a prompt is declined, for its language alone."""
        refuses = self.on_other_language == "refuse"
        return refuses and find_unread_language(prompt, self.languages) != ""


class Assignment(msgspec.Struct, frozen=True):
    """The bundle that serves a request, and its arm of the current release."""

    bundle: Bundle
    arm: Arm = ""
    release: str = ""
    """The id of the current release; empty without one."""


class GatewayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request, its caller, and how to return the answer."""

    chat: ChatRequest
    caller: Caller
    model: str = ""
    """Name of the model that was asked for, as it may be recorded."""
    bearer: str | None = None
    """The client's key, if it is meant for the upstream."""
    policy: str = ""
    """The name of the policy that serves it; empty for the gateway's own."""
    stream_mode: StreamMode | None = None
    """How the answer is streamed; None if it is returned as a whole."""
    only_review: bool = False
    """True if a draft of the caller is reviewed and not revised."""
    context: RequestContext = NO_REQUEST
    """The ids of the request in the client's own systems."""
    may_learn: bool | None = None
    """True if the agents may learn from it; None if neither the client nor the key says."""
    is_probe: bool = False
    """True if it is an operator's own check."""


class BundleSelector(Protocol):
    """Chooses the bundle that serves a request."""

    def serving(self, policy: str = "") -> Bundle:
        """Return the default bundle of a policy, by its name; empty for the gateway's own."""
        ...

    def assigned(self, request: GatewayRequest) -> Assignment:
        """Choose a bundle; all requests of a conversation get the same one."""
        ...


class ServedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice that was answered or failed: its record, its request and its timings."""

    exchange: ServedExchange
    request: GatewayRequest
    number: int = 0
    """The number of the choice, from 0."""
    review_milliseconds: tuple[float, ...] = ()
    """[reviews] The wall time of each review."""
    first_words_milliseconds: float | None = None
    """Time until the first text was sent before the final review; None if none was."""
    fallbacks: Mapping[Reply, Fallback] = {}
    """What wrote those replies that the upstream of the model did not."""
