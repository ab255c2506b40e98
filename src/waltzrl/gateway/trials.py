"""Tries a request: the gateway's own loop as a probe, with everything that was said on the way.

Trial -> GatewayRequest -> Gateway.answers, or Gateway.review of a draft that exists -> TrialResult
"""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import msgspec

from waltzrl.agents.rules import Rulebook, RuleFinding
from waltzrl.errors import RequestError
from waltzrl.foundation.logs import RequestContext, current_request
from waltzrl.gateway.access import AccessControl, make_request_id
from waltzrl.gateway.costs import ServingCosts
from waltzrl.gateway.exchange import ChatRequest, GatewayRequest, Json, ServedChoice, Upstream
from waltzrl.gateway.gateway import Gateway
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.limits import check_request_size
from waltzrl.gateway.named_policies import OWN, PolicyChooser
from waltzrl.gateway.wire import CHAT
from waltzrl.gateway.wire.fields import read_object
from waltzrl.records import Reply, ServedExchange, Usage, estimate_reply

MODELS_SECONDS = 3.0
"""Longest wait for the list of the upstream's models."""
STREAM_KEYS = ("stream", "stream_options", "n")
"""Keys of a chat request that do not count here: a trial is one whole answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A request to try."""

    request: str
    """What a user says; or, in JSON, the messages of a conversation, or a chat request."""
    model: str = ""
    """The model to ask; empty for the request's own, or else the upstream's first."""
    policy: str | None = None
    """The name of the policy that serves; `OWN` for the gateway's own settings; None for what
    serves a client whose key has no policy."""
    draft: Reply | None = None
    """A reply to review; None lets the model draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPart:
    """What one reply or one review took."""

    name: str
    """Such as `draft` or `feedback 1`."""
    milliseconds: float
    usage: Usage | None
    """None where no model was asked."""
    usd: float | None
    """None when the price is unknown, or costs are not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What became of a trial."""

    chat: ChatRequest
    exchange: ServedExchange
    parts: tuple[TrialPart, ...]
    rulebook: Rulebook
    """The rules of the bundle that served."""
    problem: RequestError | None = None
    """The error that a client would have got; None if there was an answer."""

    @property
    def rules(self) -> frozenset[str]:
        """The rules that the reviewer named."""
        said = self.exchange.said
        rounds = () if said is None else said.rounds
        return frozenset(rule for turn in rounds for rule in turn.feedback.rules)

    def find_in_request(self, text: str) -> list[RuleFinding]:
        """Return the places of a request's text where rules matched that the reviewer named."""
        return [finding for finding in self.rulebook.request(text) if finding.rule in self.rules]

    def find_in_reply(self, text: str) -> list[RuleFinding]:
        """Return the places of a reply's text where rules matched that the reviewer named."""
        return [finding for finding in self.rulebook.reply(text) if finding.rule in self.rules]


class Trials:
    """Tries requests on a gateway, under its limits."""

    def __init__(self, gateway: Gateway, access: AccessControl, policies: PolicyChooser) -> None:
        """Try on a gateway; the arguments are those of its application."""
        self._gateway = gateway
        self._access = access
        self._policies = policies

    @property
    def policies(self) -> Collection[str]:
        """The names of the policies."""
        return self._policies.names

    @property
    def is_audited(self) -> bool:
        """Whether the gateway keeps an audit log."""
        return self._gateway.decisions.is_audited

    async def list_models(self) -> list[str]:
        """Return the upstream's models; those that it is known for while it does not list them."""
        try:
            return await self._read_models()
        except RequestError:
            return sorted(self._upstream.names)

    async def run(self, trial: Trial, caller: Caller | None = None) -> TrialResult:
        """Answer a request as for a client; it is audited and charged, and no traffic.

        Args:
            trial: what to try.
            caller: who tries it; None for whoever needs no key.

        Raises:
            RequestError: the request is invalid, the caller has used up its rate or its budget,
                or the gateway serves nothing at the moment.
        """
        caller = caller or self._access.keys.anonymous
        self._access.admit(caller)
        with self._access.spending(caller):
            return await self._answer(trial, caller)

    async def _answer(self, trial: Trial, caller: Caller) -> TrialResult:
        self._gateway.decisions.require()
        request = await self._read(trial, caller)
        current_request.set(request.context)
        served: list[ServedChoice] = []
        decisions = self._gateway.decisions.also_notify(served.append)
        gateway = replace(self._gateway, decisions=decisions)
        problem = None
        async with self._access.admission:
            try:
                if trial.draft is None:
                    await gateway.answers(request)
                else:
                    await gateway.review(request, trial.draft)
            except RequestError as error:
                problem = error
        # `n` was left out, and a choice is recorded however it ends.
        (choice,) = served
        return TrialResult(
            chat=request.chat,
            exchange=choice.exchange,
            parts=tuple(_list_parts(choice, self._access.costs)),
            rulebook=gateway.selector.assigned(request).bundle.rules.rulebook,
            problem=problem,
        )

    @property
    def _upstream(self) -> Upstream:
        return self._gateway.selector.serving().upstream

    async def _read_models(self) -> list[str]:
        """Return the models that the upstream lists.

        Raises:
            RequestError: it lists none in time.
        """
        try:
            async with asyncio.timeout(MODELS_SECONDS):
                return [model.id for model in await self._upstream.models(None)]
        except TimeoutError:
            message = f"the upstream listed no models within {MODELS_SECONDS:g} s"
            raise RequestError(504, "upstream_timeout", message) from None

    async def _read(self, trial: Trial, caller: Caller) -> GatewayRequest:
        body = _read_body(trial.request)
        body["model"] = trial.model or body.get("model") or await self._find_first_model()
        raw = msgspec.json.encode(body)
        check_request_size(len(raw), self._access.limits)
        request_id = make_request_id()
        chat = CHAT.read(raw, request_id, caller)
        return GatewayRequest(
            chat=chat,
            caller=caller,
            model=self._gateway.names.recorded(chat.model),
            context=RequestContext(request_id, "", {"X-Request-ID": request_id}),
            policy=self._choose_policy(trial.policy, caller, chat),
            may_learn=False,
            is_probe=True,
        )

    def _choose_policy(self, name: str | None, caller: Caller, chat: ChatRequest) -> str:
        """Return the policy that serves: whoever may see drafts may try each."""
        if name is None:
            return self._policies.choose("", caller, chat.model, chat.api)
        if name != OWN and name not in self.policies:
            known = ", ".join(self.policies) or "none"
            raise RequestError(
                400, "invalid_request", f"there is no policy {name[:100]!r}; there are {known}"
            )
        return name

    async def _find_first_model(self) -> str:
        try:
            models = await self._read_models()
        except RequestError:
            models = sorted(self._upstream.names)
            if not models:
                raise
        if not models:
            raise RequestError(
                400, "invalid_request", "the upstream lists no models; name the one to ask"
            )
        return models[0]


def _read_body(request: str) -> dict[str, Json]:
    """Return the chat request that a text is or stands for.

    Raises:
        RequestError: 400, there is no text, or it is JSON of another form.
    """
    text = request.strip()
    if not text:
        raise RequestError(
            400, "invalid_request", "the request is empty; type what a user says, or paste messages"
        )
    if text[0] not in "[{" or '"role"' not in text:
        return {"messages": [{"role": "user", "content": request}]}
    body = read_object(f'{{"messages":{text}}}'.encode() if text[0] == "[" else text.encode())
    return {key: value for key, value in body.items() if key not in STREAM_KEYS}


def _list_parts(choice: ServedChoice, costs: ServingCosts | None) -> Iterator[TrialPart]:
    """Yield what was said for a choice, in order: what models wrote, and every review."""
    said = choice.exchange.said
    if said is None:
        return
    model = choice.request.model

    def measure(name: str, role: str, reply: Reply | None, milliseconds: float) -> TrialPart:
        usage = usd = None
        if reply is not None:
            asked = model if role == "conversation" else ""
            usage = reply.usage or estimate_reply(said.prompt, reply, asked)
            if costs is not None:
                fallback = choice.fallbacks.get(reply)
                usd = costs.cost(role, usage, asked, choice.exchange.bundle, fallback)
        return TrialPart(name=name, milliseconds=milliseconds, usage=usage, usd=usd)

    draft = said.draft
    if draft.origin == "policy":
        yield measure("draft", "conversation", draft, draft.milliseconds)
    times = choice.review_milliseconds
    for number, (turn, milliseconds) in enumerate(zip(said.rounds, times, strict=False), start=1):
        yield measure(f"feedback {number}", "feedback", turn.feedback.reply, milliseconds)
        if (revision := turn.revision) is not None and revision.origin == "policy":
            yield measure(f"revision {number}", "conversation", revision, revision.milliseconds)
