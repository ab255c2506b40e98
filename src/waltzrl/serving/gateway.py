"""Answers a request: the loop, with the upstream's words and the bundle's reviewer.

Request -> Speaker -> guarded() -> Answer, and what was served to the ledger
"""

import asyncio
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Literal, Protocol

import msgspec

from waltzrl.agents import ConversationAgent, Reviewer, Wording
from waltzrl.collaboration import Pattern, observed
from waltzrl.errors import RequestError
from waltzrl.memory.interaction import Arm
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Collaboration, Feedback, Prompt, Reply
from waltzrl.serving.agent import DraftStream, GivenDraft, Speaker
from waltzrl.serving.keys import Caller
from waltzrl.serving.messages_in_transit import Answer, ApiRequest, Decision
from waltzrl.serving.upstream import Upstream

Mode = Literal["whole", "buffer", "window", "speculative", "audit", "review"]
"""How an answer leaves: not streamed, streamed in one of four ways, or never: a mere review."""

THEIR_OWN = Sampling()
"""The upstream samples as its client says; agents must be given something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What serves: rules, agents and thresholds; it never changes."""

    id: str
    """Names what is in it: a hash."""
    stage: Literal[0, 1, 2]
    """0: nobody reviews; 1: rules do; 2: a model does, with the rules as second opinion."""
    pattern: Pattern
    reviewer: Reviewer
    wording: Wording
    upstream: Upstream
    """Drafts and revises."""


class Assignment(msgspec.Struct, frozen=True):
    """The bundle that serves a request, and what it is there for."""

    bundle: Bundle
    arm: Arm = ""
    release: str = ""
    """Id of the release under way; empty when there is none."""


class GatewayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange, who asks for it, and how its answer is to leave."""

    exchange: ApiRequest
    caller: Caller
    bearer: str | None = None
    """The client's key, when it is the upstream's business."""
    mode: Mode = "whole"
    traceparent: str = ""
    """W3C trace context of the client."""
    may_learn: bool | None = None
    """Whether the agents may learn from it; None when neither client nor key says."""


class ChoiceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One of the answers that a request asks for, and the bundle that gives it."""

    request: GatewayRequest
    assigned: Assignment
    number: int = 0
    has_draft: bool = False
    """The caller had the draft already."""


class ServedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice that was answered, or could not be: what audit, metrics and traces are told."""

    choice: ChoiceRequest
    decision: Decision | Literal["error"] = "error"
    collaboration: Collaboration | None = None
    """None when there is no answer."""
    error: str = ""
    """Kind of the failure; `cancelled` when the client went away."""
    review_milliseconds: tuple[float, ...] = ()
    """[reviews] wall time of each."""
    milliseconds: float = 0.0
    """Wall time of the choice."""
    first_words_milliseconds: float | None = None
    """Until words left before the verdict; None when none did."""

    @property
    def request(self) -> GatewayRequest:
        return self.choice.request

    @property
    def bundle(self) -> Bundle:
        return self.choice.assigned.bundle


class BundleSelector(Protocol):
    """Says which bundle serves whom."""

    @property
    def serving(self) -> Bundle:
        """The bundle that serves where nothing else is said."""
        ...

    def assigned(self, request: GatewayRequest) -> Assignment:
        """Choose; a conversation has the same choice all along."""
        ...


class DecisionSink(Protocol):
    """Where everything that was served is written down."""

    def keep(self, served: ServedChoice) -> None:
        """Take note; never waits.

        Raises:
            RequestError: it cannot be noted, and the answer must not leave without.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The one place where a request becomes answers."""

    roster: BundleSelector
    ledger: DecisionSink

    async def answers(self, request: GatewayRequest) -> list[Answer]:
        """Answer every choice of a request that is not streamed.

        Raises:
            RequestError: the upstream failed; the other choices are given up.
        """
        if request.exchange.n == 1:
            return [await self.choice(request, 0)]
        try:
            async with asyncio.TaskGroup() as group:
                choices = [
                    group.create_task(self.choice(request, number))
                    for number in range(request.exchange.n)
                ]
        except* RequestError as failed:
            raise failed.exceptions[0] from None
        return [choice.result() for choice in choices]

    async def choice(
        self, request: GatewayRequest, number: int, overheard: DraftStream | None = None
    ) -> Answer:
        """Answer one choice, of which `overheard` may hear while it is drafted.

        Raises:
            RequestError: the upstream failed.
        """
        exchange = _varied(request.exchange, number)
        choice = ChoiceRequest(
            request=request, assigned=self.roster.assigned(request), number=number
        )
        upstream = choice.assigned.bundle.upstream
        speaker = Speaker(exchange, upstream, request.bearer, overheard)
        said = await self._collaborate(choice, speaker, speaker)
        return _answer(said, speaker)

    async def review(self, request: GatewayRequest, draft: Reply, number: int = 0) -> Answer:
        """Take a draft that the caller has through the loop; in mode `review` nothing is revised.

        Of several that belong to one request, each has its `number`.

        Raises:
            RequestError: a revision was wanted and the upstream failed.
        """
        assigned = self.roster.assigned(request)
        choice = ChoiceRequest(request=request, assigned=assigned, number=number, has_draft=True)
        speaker = Speaker(request.exchange, assigned.bundle.upstream, request.bearer)
        said = await self._collaborate(choice, GivenDraft(draft, speaker), speaker)
        return _answer(said, speaker)

    async def _collaborate(
        self, choice: ChoiceRequest, policy: Policy, speaker: Speaker
    ) -> Collaboration:
        started = perf_counter()
        request, bundle = choice.request, choice.assigned.bundle
        pattern = _pattern(request.mode, bundle)
        reviewer = _Timed(bundle.reviewer)
        agent = ConversationAgent(policy, bundle.wording, THEIR_OWN)
        said, error = None, "internal"
        try:
            said = await pattern(request.exchange.prompt, agent, reviewer)
        except RequestError as failure:
            error = failure.kind
            raise
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        finally:
            self.ledger.keep(
                ServedChoice(
                    choice=choice,
                    collaboration=said,
                    decision=_decision(said, speaker) if said else "error",
                    error="" if said else error,
                    review_milliseconds=tuple(reviewer.milliseconds),
                    milliseconds=(perf_counter() - started) * 1e3,
                    first_words_milliseconds=speaker.first_words_milliseconds,
                )
            )
        return said


def internal_error(request_id: str) -> RequestError:
    """Describe a failure of ours to a client; the log tells the rest."""
    return RequestError(500, "internal", f"the gateway failed on request {request_id}; see its log")


def _pattern(mode: Mode, bundle: Bundle) -> Pattern:
    """What has left cannot be revised, and a mere review revises nothing."""
    only_observed = mode == "review" or (mode == "audit" and bundle.stage > 0)
    return observed if only_observed else bundle.pattern


@dataclass(slots=True)
class _Timed:
    """A reviewer under a stop-watch."""

    reviewer: Reviewer
    milliseconds: list[float] = field(default_factory=list)

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        started = perf_counter()
        try:
            return await self.reviewer.review(prompt, reply)
        finally:
            self.milliseconds.append((perf_counter() - started) * 1e3)


def _decision(said: Collaboration, speaker: Speaker) -> Decision:
    """Tell a draft and a revision, which the speaker said, from a canned refusal."""
    if not said.revised:
        return "draft"
    return "revised" if said.final is speaker.completions[-1].reply else "refused"


def _answer(said: Collaboration, speaker: Speaker) -> Answer:
    decision = _decision(said, speaker)
    last = speaker.completions[-1]
    if decision == "draft":
        return Answer(
            reply=last.reply,
            finish=last.finish,
            decision=decision,
            raw=last.raw,
            collaboration=said,
        )
    replies = [one.reply for one in speaker.completions]
    whole = replace(
        said.final,
        prompt_tokens=sum(one.prompt_tokens for one in replies),
        reply_tokens=sum(one.reply_tokens for one in replies),
    )
    finish = last.finish if decision == "revised" else "content_filter"
    return Answer(reply=whole, finish=finish, decision=decision, collaboration=said)


def _varied(exchange: ApiRequest, number: int) -> ApiRequest:
    """Give each choice a seed of its own, where the client gave one for all."""
    seed = exchange.body.get("seed")
    if number == 0 or not isinstance(seed, int):
        return exchange
    return msgspec.structs.replace(exchange, body={**exchange.body, "seed": seed + number})
