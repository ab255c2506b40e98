"""Answers a request with the collaboration loop: the upstream drafts, the bundle reviews.

ChatRequest -> GatewayAgent -> guarded() -> Answer, and a ServedChoice to the decision log
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TypeVar

from msgspec import structs

from waltzrl.agents import GivenDraft
from waltzrl.agents.coaching import ExampleSource
from waltzrl.agents.conversation import revision_turns, system_messages
from waltzrl.collaboration import Drafter, Pattern, Transcript, observed
from waltzrl.errors import AuditError, OverloadError, RequestError
from waltzrl.foundation.logs import fields
from waltzrl.gateway.chat_reader import read_beginning, tokens_spell
from waltzrl.gateway.draft_stream import DraftStream, ask_to_continue
from waltzrl.gateway.exchange import (
    Answer,
    Assignment,
    Bundle,
    BundleSelector,
    ChatBody,
    ChatRequest,
    Fallback,
    Finish,
    GatewayRequest,
    ReplyDetails,
    ServedChoice,
    Upstream,
    UpstreamReply,
    total_counts,
)
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.model_names import ModelNames
from waltzrl.gateway.upstream_errors import add_reason
from waltzrl.gateway.wire.fields import as_object, turn_of
from waltzrl.policies.chat_completion import chat_message, with_system_text
from waltzrl.policies.refused_tools import restore_calls
from waltzrl.records import (
    Arm,
    Collaboration,
    Message,
    Prompt,
    Reply,
    Round,
    ServedExchange,
    Usage,
    estimate_reply,
    total_usage,
)
from waltzrl.store.audit.log import Log

log = logging.getLogger(__name__)

CostOf = Callable[[Collaboration, str, str, Mapping[Reply, Fallback]], float | None]
"""Returns what a collaboration for a model cost in US dollars, by the id of the bundle that served
and the replies that fallbacks wrote; None when a price is unknown."""
Outcome = TypeVar("Outcome")
Listener = Callable[[ServedChoice], None]
"""A function that is called with every choice that was served; it must not block and must not
raise.
"""
RETRY_AFTER_SECONDS = 5.0
REFUSES_CONTENT = (400, 413, 422)
"""The statuses of a request that is refused for what is in it, such as too many tokens."""
BRACE = re.compile(r"[{}]")
DEGRADED = Health("degraded", "cannot be written; decisions are kept in memory or counted")


@dataclass(frozen=True, slots=True)
class SingleBundle:
    """The same bundle for every request."""

    assignment: Assignment

    def serving(self, policy: str = "") -> Bundle:
        return self.assignment.bundle

    def assigned(self, request: GatewayRequest) -> Assignment:
        return self.assignment


class DecisionLog:
    """Writes decisions to the audit log, if there is one, and notifies the listeners."""

    def __init__(self, log: Log | None, listeners: Sequence[Listener]) -> None:
        self._log = log
        self._listeners = listeners

    @property
    def is_audited(self) -> bool:
        return self._log is not None

    def also_notify(self, listener: Listener) -> "DecisionLog":
        """Return the same log with one more listener."""
        return DecisionLog(self._log, [*self._listeners, listener])

    def require(self) -> None:
        """Check that the audit log can be written, before a request is served.

        Raises:
            RequestError: 503, it cannot, and the operator forbids unaudited answers.
        """
        if self._log is not None:
            try:
                self._log.ready()
            except AuditError as error:
                raise _unaudited_error(error) from error

    def health(self) -> Health:
        """Return whether requests may be served, for `/readyz`."""
        try:
            self.require()
        except RequestError:
            return Health("down", "cannot be written")
        return OK if self._log is None or self._log.failed is None else DEGRADED

    def record(self, served: ServedChoice) -> None:
        """Record a choice without waiting for the disk.

        Raises:
            RequestError: as `require`; then the answer must not be returned.
        """
        exchange = served.exchange
        if self._log is not None:
            prompt = choice_of(served.request.chat, served.number).prompt
            try:
                self._log.append(exchange, prompt)
            except AuditError as error:
                failed = structs.replace(
                    exchange,
                    decision="error",
                    reason="audit",
                    milliseconds=0.0,
                    collaboration=None,
                    unfinished=exchange.said,
                )
                self._notify(ServedChoice(exchange=failed, request=served.request))
                raise _unaudited_error(error) from error
        self._notify(served)

    def _notify(self, served: ServedChoice) -> None:
        for listener in self._listeners:
            listener(served)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Turns requests into answers, and records each."""

    selector: BundleSelector
    decisions: DecisionLog
    names: ModelNames = field(default_factory=ModelNames)
    """The names under which models are recorded."""
    examples: ExampleSource | None = None
    """The search for examples of coaching for drafts and revisions; None for none."""
    usd: CostOf | None = None
    """The function that prices what was said for a request; None where costs are not recorded."""

    async def answers(self, request: GatewayRequest) -> list[Answer]:
        """Answer every choice of a request that is not streamed.

        Raises:
            RequestError: the upstream failed; the other choices are cancelled.
        """
        if request.chat.n == 1:
            return [await self.choice(request, 0)]
        return await all_of(self.choice(request, number) for number in range(request.chat.n))

    async def choice(
        self, request: GatewayRequest, number: int, stream: DraftStream | None = None
    ) -> Answer:
        """Answer one choice; `stream` gets the draft's text while it is generated.

        Raises:
            RequestError: the upstream failed.
        """
        assignment = self.selector.assigned(request)
        chat = choice_of(request.chat, number)
        agent = GatewayAgent(chat, assignment.bundle, request.bearer, stream)
        agent.is_reviewed_first = _pattern_after_sending(request, assignment.bundle) is None
        if (
            stream is not None
            and agent.is_reviewed_first
            and assignment.bundle.declines(chat.prompt)
        ):
            # Whatever the draft is, it is declined: nothing of it may be sent before that.
            stream.hold_back()
        exchange = await self._collaborate(request, number, assignment, agent, agent)
        return _make_answer(exchange, agent)

    async def review(self, request: GatewayRequest, draft: Reply, number: int = 0) -> Answer:
        """Review a draft of the caller, and revise it unless the mode is `review`.

        Args:
            request: the conversation that the draft answers.
            draft: the caller's reply.
            number: of the draft, if a request has several.

        Raises:
            RequestError: a revision was needed and the upstream failed.
        """
        assignment = self.selector.assigned(request)
        chat = choice_of(request.chat, number)
        agent = GatewayAgent(chat, assignment.bundle, request.bearer)
        drafter = GivenDraft(draft, agent)
        exchange = await self._collaborate(request, number, assignment, drafter, agent)
        return _make_answer(exchange, agent)

    async def _collaborate(
        self,
        request: GatewayRequest,
        number: int,
        assignment: Assignment,
        drafter: Drafter,
        agent: "GatewayAgent",
    ) -> ServedExchange:
        """Run the bundle's pattern, and record the outcome, errors and cancellations included."""
        started, bundle = perf_counter(), assignment.bundle
        transcript = Transcript(drafter, bundle.reviewer)
        collaboration, error = None, "internal"
        try:
            if agent.chat.prompt.images and not bundle.vision:
                raise _unreviewable_error()
            if self.examples is not None and bundle.shows_examples:
                agent.examples = await self.examples.examples_for(agent.chat.prompt)
            # Text that was sent cannot be revised, and a review revises nothing.
            own = observed if request.only_review else bundle.pattern
            pattern = _pattern_after_sending(request, bundle) or own
            collaboration = _drop_images(await pattern(agent.chat.prompt, transcript, transcript))
        except RequestError as failure:
            error = failure.kind
            await add_reason(failure, agent.chat.prompt, bundle.reviewer)
            raise
        except OverloadError as overload:
            unavailable = _unreviewed_error(overload)
            error = unavailable.kind
            raise unavailable from overload
        except asyncio.CancelledError:
            # The client left, or another choice of the request failed.
            error = "cancelled"
            raise
        finally:
            milliseconds = (perf_counter() - started) * 1e3
            # Where the client sent no id, the context has ours, which is the prompt's.
            prompt_id, client_id = request.chat.prompt.id, request.context.id
            unfinished, sent = None, ""
            if collaboration is None:
                unfinished = transcript.said(agent.chat.prompt, agent.unfinished_draft())
                sent = agent.stream.released.full_text if agent.stream else ""
            said = collaboration or unfinished
            usd = None
            if self.usd is not None and said is not None:
                usd = self.usd(said, request.model, bundle.id, agent.fallbacks)
            exchange = ServedExchange(
                id=_make_choice_id(prompt_id, number, assignment.arm),
                client_request_id="" if client_id == prompt_id else client_id,
                trace_id=request.context.trace_id,
                time=time.time() - milliseconds / 1e3,
                caller=request.caller.name,
                subject=request.chat.subject,
                may_learn=request.may_learn,
                api=request.chat.api,
                model=request.model,
                mode=_name_mode(request),
                bundle=bundle.id,
                policy=bundle.policy,
                stage=bundle.stage,
                arm=assignment.arm,
                release=assignment.release,
                decision=collaboration.decision if collaboration else "error",
                reason=_explain_decision(collaboration) if collaboration else error,
                milliseconds=milliseconds,
                usd=usd,
                probe=request.is_probe,
                collaboration=collaboration,
                unfinished=unfinished and _drop_images(unfinished),
                sent=sent,
            )
            self.decisions.record(
                ServedChoice(
                    exchange=exchange,
                    request=request,
                    number=number,
                    review_milliseconds=tuple(transcript.review_milliseconds),
                    first_words_milliseconds=(
                        agent.stream.first_words_milliseconds if agent.stream else None
                    ),
                    fallbacks=agent.fallbacks,
                )
            )
        return exchange


class GatewayAgent:
    """The upstream in the role of the conversation agent.

    Drafts with the client's request as it came, and revises by extending its messages. With a
    stream, it reads the draft while it is generated and releases what the window allows; a
    revision then continues from the released text.
    """

    def __init__(
        self,
        chat: ChatRequest,
        bundle: Bundle,
        bearer: str | None = None,
        stream: DraftStream | None = None,
    ) -> None:
        self.chat = chat
        self.last: UpstreamReply | None = None
        """The upstream's last reply."""
        self._wording, self._upstream = bundle.wording, bundle.upstream
        self._reviser = bundle.reviser or bundle.upstream
        self._bearer = bearer
        self.stream = stream
        self.examples = ""
        """The examples for the upstream, which are not part of what is recorded."""
        self.is_reviewed_first = True
        """True if the client gets the reply after its review, so that without a review there is
        none.
        """
        self.fallbacks: dict[Reply, Fallback] = {}
        """What wrote those replies that the upstream of the model did not."""
        self._admission = bundle.admission
        self._received: list[bytes] = []
        """The beginning of a whole draft that is still being read."""

    async def draft(self, prompt: Prompt) -> Reply:
        """Request a reply from the upstream.

        Raises:
            OverloadError: the reviewer would have no time for it; nothing was requested.
            RequestError: the upstream failed.
        """
        body = self._body(prompt, [])
        admit = self._admission if self.is_reviewed_first else None
        with admit() if admit is not None else nullcontext():
            if self.stream is None:
                self.last = await self._complete(self._upstream, body, self._received)
            else:
                draft = await self.stream.read(self._upstream.stream(body, self._bearer))
                self.last = self._with_shown(draft)
        self._note_fallback(self.last.reply, self.last.fallback)
        return self.last.reply

    def unfinished_draft(self) -> Reply | None:
        """Return what was read of a draft that did not come to its end; None if nothing was.

        Its tokens are the server's count if that has come, and else estimated.
        """
        prompt, model = self.chat.prompt, self.chat.model
        if self.stream is not None:
            draft = self.stream.unfinished(prompt, model)
            self._note_fallback(draft, self.stream.fallback)
            return draft
        reply = read_beginning(b"".join(self._received))
        if reply is None:
            return None
        usage = reply.usage or estimate_reply(prompt, reply, model)
        return replace(self._shown(reply), usage=usage)

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        """Request a revision from the upstream; without text if it refuses the turns we added.

        Raises:
            RequestError: the upstream failed.
        """
        turns = revision_turns(draft, rounds, self._wording)
        stream = self.stream
        # The client has this text already and cannot take it back, so the revision must follow it.
        released = "" if stream is None or stream.can_retract else stream.released.text
        if released:
            turns[-1] = ask_to_continue(turns[-1], released)
        try:
            upstream_reply = await self._complete(self._reviser, self._body(prompt, turns))
        except RequestError as error:
            if error.status not in REFUSES_CONTENT:
                raise
            log.warning("the upstream refused to revise a reply", extra=fields(status=error.status))
            # No tokens were charged; `guarded` replaces a reply without text by a canned refusal.
            return Reply(text="", usage=Usage(input_tokens=0, output_tokens=0))
        revision = upstream_reply.reply
        if stream is not None:
            revision = stream.continued(revision)
        details = upstream_reply.details
        if self.last is not None:  # the client gets the total usage
            usage = total_counts([self.last.details.usage, details.usage])
            details = structs.replace(details, usage=usage)
        self.last = structs.replace(upstream_reply, reply=revision, raw=None, details=details)
        self._note_fallback(revision, upstream_reply.fallback)
        return revision

    def _note_fallback(self, reply: Reply | None, fallback: Fallback | None) -> None:
        if reply is not None and fallback is not None:
            self.fallbacks[reply] = fallback

    async def _complete(
        self, upstream: Upstream, body: ChatBody, received: list[bytes] | None = None
    ) -> UpstreamReply:
        return self._with_shown(await upstream.complete(body, self._bearer, received))

    def _with_shown(self, upstream_reply: UpstreamReply) -> UpstreamReply:
        reply = self._shown(upstream_reply.reply)
        if reply is upstream_reply.reply:
            return upstream_reply
        return structs.replace(upstream_reply, reply=reply, raw=None)

    def _shown(self, reply: Reply) -> Reply:
        """Leave out the reasoning where it is not asked for; name calls as the client does."""
        if reply.calls:
            calls = restore_calls(reply.calls, self.chat.body.get("tools"))
            reply = reply if calls == reply.calls else replace(reply, calls=calls)
        if self.chat.shows_reasoning or not reply.reasoning:
            return reply
        return replace(reply, reasoning="")

    def _body(self, prompt: Prompt, turns: Sequence[Message]) -> ChatBody:
        """Extend the client's messages by the wording's system message, examples and `turns`."""
        if not (turns or self.examples or self._wording.conversation_system):
            return self.chat.body  # the hot path: nothing to add
        system = system_messages(prompt, self._wording)
        messages = self.chat.body["messages"]
        assert isinstance(messages, list), "checked by the wire format"
        messages = [*map(chat_message, system), *messages]
        if self.examples:
            messages = with_system_text(messages, self.examples)
        last = as_object(messages[-1], "messages")
        if turns and last["role"] == "assistant":  # the client began the reply: one turn with it
            begun = turn_of(last, "messages")
            draft = replace(turns[0], content=f"{begun.full_text}{turns[0].content}")
            messages, turns = messages[:-1], [draft, *turns[1:]]
        return {**self.chat.body, "messages": [*messages, *map(chat_message, turns)]}


async def all_of(work: Iterable[Coroutine[None, None, Outcome]]) -> list[Outcome]:
    """Await work together; the first failure cancels the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def internal_error(request_id: str) -> RequestError:
    """Return the error for a bug; the log has the details."""
    return RequestError(500, "internal", f"the gateway failed on request {request_id}; see its log")


def _pattern_after_sending(request: GatewayRequest, bundle: Bundle) -> Pattern | None:
    """Return the pattern for a draft that is sent before its review; None if none is."""
    mode = request.stream_mode
    return mode.behaviour.pattern if mode is not None and bundle.stage > 0 else None


def _name_mode(request: GatewayRequest) -> str:
    """Return how an answer is returned, in the word that is recorded."""
    if request.only_review:
        return "review"
    return "whole" if request.stream_mode is None else request.stream_mode.value


def _drop_images(collaboration: Collaboration) -> Collaboration:
    """Leave out the images, which are large, and not to be stored."""
    if not collaboration.prompt.images:
        return collaboration
    return replace(collaboration, prompt=replace(collaboration.prompt, images=()))


def _make_answer(exchange: ServedExchange, agent: GatewayAgent) -> Answer:
    collaboration = exchange.collaboration
    assert collaboration is not None, "else there was an error"
    decision, final = collaboration.decision, collaboration.final
    # No upstream was asked where the draft was the caller's and was not revised.
    last = agent.last or UpstreamReply(reply=final, finish="stop")
    drafted = decision == "draft"
    refused = agent.chat.has_refusals and _refuses(collaboration, last, agent.stream)
    withheld: Finish = "stop" if refused else "content_filter"
    return Answer(
        reply=final if drafted else replace(final, usage=total_usage(collaboration.replies)),
        finish=withheld if decision == "refused" else last.finish,
        decision=decision,
        refused=refused,
        raw=last.raw if drafted else None,
        details=_match_details(final, last.details),
        collaboration=collaboration,
        usd=exchange.usd,
    )


def _refuses(collaboration: Collaboration, last: UpstreamReply, stream: DraftStream | None) -> bool:
    """Return whether a reply that must be an object of a schema refuses to be one.

    So does a revision in prose, by an upstream that does not enforce the schema.

    Args:
        collaboration: how the reply came about.
        last: the upstream's last reply.
        stream: where the draft went; a revision may begin with what was sent of it.
    """
    if collaboration.decision == "refused" or last.refused:
        return True
    revision = collaboration.last_revision
    if revision is None or revision.calls:
        return False
    released = "" if stream is None else stream.released.text
    return BRACE.search(revision.text.removeprefix(released)) is None


def _match_details(final: Reply, details: ReplyDetails) -> ReplyDetails:
    """Leave out the log-probabilities of any text but `final`'s: they name tokens."""
    if tokens_spell(details.logprobs, final.text):
        return details
    return structs.replace(details, logprobs=None)


def _make_choice_id(request_id: str, number: int, arm: Arm) -> str:
    choice_id = f"{request_id}/{number + 1}" if number else request_id
    return f"{choice_id}/shadow" if arm == "shadow" else choice_id


def _explain_decision(collaboration: Collaboration) -> str:
    """Return the reason for a decision, without any content. Audit logs and memories store it."""
    reason = ""
    for round_ in collaboration.rounds:
        if not round_.feedback.well_formed:
            return f"not reviewed: {round_.feedback.failure or 'unreadable'}"
        if round_.feedback.unsafe:
            reason = "unsafe"
        elif round_.feedback.overrefuse and not reason:
            reason = "over-refusal"
        elif round_.feedback.doubtful and not reason:
            reason = "doubtful"
    return reason


def choice_of(chat: ChatRequest, number: int) -> ChatRequest:
    """Return the request of one choice: its prompt, and a seed that no other choice of it has."""
    if chat.parts:
        part, number = divmod(number, chat.parts[0].n)
        chat = chat.parts[part]
    seed = chat.body.get("seed")
    if number == 0 or not isinstance(seed, int):
        return chat
    return structs.replace(chat, body={**chat.body, "seed": seed + number})


def _unreviewed_error(overload: OverloadError) -> RequestError:
    """Return the error for a reply that nobody could review in time."""
    seconds = max(1, math.ceil(overload.retry_after_seconds))
    return RequestError(
        503,
        "unreviewed",
        f"the reviewer had no time for the reply ({overload.reason}); try again in {seconds} s",
        retry_after_seconds=seconds,
    )


def _unreviewable_error() -> RequestError:
    return RequestError(
        400,
        "invalid_request",
        "image: images of this key are reviewed, but the reviewer sees none; send text",
        param="image",
    )


def _unaudited_error(error: AuditError) -> RequestError:
    return RequestError(503, "audit", str(error), retry_after_seconds=RETRY_AFTER_SECONDS)
