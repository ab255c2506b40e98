"""The gateway as an ASGI application: routes, access, request bytes in, response bytes out.

It uses no framework: a framework's layers would take more time per request than all our code.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from waltzrl.collaboration import observed
from waltzrl.errors import RequestError
from waltzrl.foundation.logs import current_request
from waltzrl.gateway.access import AccessControl, Event, Receive, RequestHeaders, Send
from waltzrl.gateway.exchange import (
    Answer,
    Api,
    ChatRequest,
    GatewayRequest,
    Upstream,
    UpstreamRequest,
    UpstreamResponse,
)
from waltzrl.gateway.gateway import Gateway, internal_error
from waltzrl.gateway.health import Check, report_readiness
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.limits import shutdown_error
from waltzrl.gateway.metrics import GatewayMetrics
from waltzrl.gateway.moderation import moderate_replies, read_moderation
from waltzrl.gateway.named_policies import PolicyChooser
from waltzrl.gateway.origins import answer_preflight, find_origin, share_with
from waltzrl.gateway.pass_through import (
    check_no_reply,
    describe_pass_through,
    make_passed_on_request,
)
from waltzrl.gateway.portkey import answer_hook, read_hook
from waltzrl.gateway.reviews import (
    answer_guardrail,
    read_guardrail,
    read_request,
    read_review,
    write_review,
)
from waltzrl.gateway.server import DisconnectWatcher
from waltzrl.gateway.stream import stream
from waltzrl.gateway.stream_modes import StreamMode
from waltzrl.gateway.tokens import estimated_count, read_count, upstream_count
from waltzrl.gateway.trials import Trials
from waltzrl.gateway.wire import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from waltzrl.gateway.wire.fields import as_name, read_object
from waltzrl.gateway.wire.format import WireFormat
from waltzrl.records import Feedback, Reply

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would otherwise hold the events back.
    (b"x-accel-buffering", b"no"),
)
DESK = "/desk"
MODEL, MODEL_PREFIX = "/v1/models/{id}", "/v1/models/"

log = logging.getLogger(__name__)


class HttpRequest:
    """One HTTP request, and its response."""

    def __init__(self, wire: WireFormat, scope: Event, receive: Receive, send: Send) -> None:
        """Set up; `caller` and `body` are set once access is granted."""
        self.wire = wire
        self.scope = scope
        self.headers = RequestHeaders.read(scope)
        # Never reset: each request has a task of its own, and so a context.
        current_request.set(self.headers.context)
        self.receive = receive
        self.caller: Caller
        self.body = b""
        self.reached_gateway = False
        """True if the gateway has the request: from then on it records the outcome, errors
        included.
        """
        self._begun = False
        self._send = send

    @property
    def may_learn(self) -> bool | None:
        """Whether the agents may learn from it: a no of the client or of its key wins."""
        choices = (self.headers.may_learn, self.caller.may_learn)
        return False if False in choices else True in choices or None

    async def reply(self, body: bytes, headers: Headers = (JSON,), status: int = 200) -> None:
        """Send a whole response."""
        size = (b"content-length", str(len(body)).encode())
        await self.begin((*headers, size), status)
        await self.write(body, last=True)

    async def begin(self, headers: Headers, status: int = 200) -> None:
        """Send the status and headers."""
        self._begun = True
        context_id = self.headers.context.id.encode()
        named = [(b"x-request-id", context_id)]
        if self.wire is MESSAGES:  # where Anthropic's clients look for it
            named.append((b"request-id", context_id))
        if self.headers.context.id != self.headers.id:
            named.append((b"x-waltzrl-id", self.headers.id.encode()))
        await self._send(
            {"type": "http.response.start", "status": status, "headers": (*headers, *named)}
        )

    async def write(self, body: bytes, *, last: bool = False) -> None:
        """Send some of the body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def refuse(self, error: RequestError) -> None:
        """Send an error in the API's format; a response that has begun is broken off instead."""
        if self._begun:
            return
        headers = [JSON]
        if error.retry_after_seconds is not None:
            seconds = max(1, round(error.retry_after_seconds))
            headers.append((b"retry-after", str(seconds).encode()))
        await self.reply(self.wire.error(error, self.headers.context.id), headers, error.status)


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[None]]


DeskHandler: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]
"""Serves a page below `/desk`; an ASGI 3 application."""
OpenDesk: TypeAlias = Callable[[Trials], DeskHandler]
"""Returns the handler of the pages, which tries requests on the gateway."""


class MemoryRoutes(Protocol):
    """What answers the routes of a gateway with a memory."""

    async def decision(self) -> bytes:
        """Return JSON: the state of the release, for tools that control a deployment.

        Raises:
            RequestError: the database is unavailable.
        """
        ...

    async def feedback(self, body: bytes, caller: Caller) -> bytes:
        """Keep what a user said of a reply, and return JSON.

        Raises:
            RequestError: the body is invalid, the reply is unknown, or the database is unavailable.
        """
        ...


Review: TypeAlias = Callable[[str, Reply, int], Awaitable[Feedback]]
"""Reviews a draft that answers a request; the number is that of the review."""


class RoutingHandler(Protocol):
    """Plans tasks: `waltzrl_routing.service.RoutingService`."""

    async def respond(self, body: bytes, key: str, request_id: str, review: Review) -> bytes:
        """Return JSON: a plan, and the review of each task's request.

        Raises:
            RequestError: the request is invalid, or the database is unavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExtraRoutes:
    """Routes that not every gateway has."""

    memory: MemoryRoutes | None = None
    desk: OpenDesk | None = None
    routing: RoutingHandler | None = None
    pass_through: bool = False
    """True if other paths below `/v1` go to the upstream, without a review."""
    origins: tuple[str, ...] = ()
    """The origins of web pages whose scripts may use the API."""


NO_EXTRA_ROUTES = ExtraRoutes()


@dataclass(frozen=True, slots=True)
class Route:
    """What answers a path and a method."""

    name: str
    """Names the path in the metrics."""
    wire: WireFormat
    """Reads the requests, and writes the errors."""
    handler: Handler


class App:
    """Answers HTTP requests."""

    def __init__(
        self,
        gateway: Gateway,
        access: AccessControl,
        *,
        policies: PolicyChooser,
        metrics: GatewayMetrics,
        checks: Mapping[str, Check],
        extra: ExtraRoutes = NO_EXTRA_ROUTES,
    ) -> None:
        """Set up the routes.

        Args:
            gateway: answers.
            access: checks keys and limits.
            policies: choose the one that serves a request.
            metrics: exposed at `/metrics`; count the requests that never reach the gateway.
            checks: what the parts report, exposed at `/readyz`.
            extra: which of the other routes there are.
        """
        self.gateway = gateway
        self.access = access
        self.policies = policies
        self.metrics = metrics
        self.checks = checks
        self.trials = Trials(gateway, access, policies)
        self._memory = extra.memory
        self._desk = None if extra.desk is None else extra.desk(self.trials)
        self._routing = extra.routing
        self._pass_through = extra.pass_through
        self._origins = extra.origins
        self._routes: dict[str, dict[str, Route]] = {
            "/v1/chat/completions": {"POST": Route("chat", CHAT, self._answer)},
            "/v1/completions": {"POST": Route("completions", COMPLETIONS, self._answer)},
            "/v1/responses": {"POST": Route("responses", RESPONSES, self._answer)},
            "/v1/messages": {"POST": Route("messages", MESSAGES, self._answer)},
            "/v1/messages/count_tokens": {
                "POST": Route("count_tokens", MESSAGES, self._count_tokens)
            },
            "/v1/moderations": {"POST": Route("moderations", CHAT, self._moderations)},
            "/v1/embeddings": {"POST": Route("embeddings", CHAT, self._embeddings)},
            "/v1/review": {"POST": Route("review", CHAT, self._review)},
            # LiteLLM adds this path to the address of a guardrail.
            "/beta/litellm_basic_guardrail_api": {
                "POST": Route("guardrail", CHAT, self._guardrail)
            },
            "/v1/guardrails/portkey": {"POST": Route("guardrail", CHAT, self._hook)},
            "/v1/models": {"GET": Route("models", CHAT, self._models)},
            MODEL: {"GET": Route("models", CHAT, self._model)},
        }
        if extra.memory is not None:
            release = Route("release", CHAT, self._release)
            self._routes["/v1/release/decision"] = {"GET": release}
            self._routes["/v1/feedback"] = {"POST": Route("feedback", CHAT, self._feedback)}
        if extra.routing is not None:
            for path in ("/v1/route", "/orchestrate/route"):
                self._routes[path] = {"POST": Route("route", CHAT, self._route)}
        self._open_routes: dict[str, Handler] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._exposition,
        }

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one request; the ASGI 3 interface."""
        if scope["type"] != "http":
            return
        if self._origins and (origin := find_origin(self._origins, scope)):
            send = share_with(origin, send)
            if scope["method"] == "OPTIONS":
                await answer_preflight(scope, send)
                return
        await self._dispatch(scope, receive, send)

    async def _dispatch(self, scope: Event, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if method == "HEAD":  # the server sends what GET would without its body
            method = "GET"
        if self._desk is not None and (path == DESK or path.startswith(f"{DESK}/")):
            await self._desk(scope, receive, send)
            return
        known = MODEL if path.startswith(MODEL_PREFIX) else path
        route = self._routes.get(known, {}).get(method)
        http = HttpRequest(CHAT if route is None else route.wire, scope, receive, send)
        if route is not None:
            await self._serve(route, http)
        elif path in self._open_routes and method == "GET":
            await self._open_routes[path](http)
        elif self._pass_through and path.startswith("/v1/") and known not in self._routes:
            await self._serve(Route("pass_through", CHAT, self._pass_on), http)
        else:
            await http.refuse(self._no_route(known, path, method))

    async def _serve(self, route: Route, http: HttpRequest) -> None:
        """Check access and run the handler; errors are returned in the API's own format."""
        watcher = DisconnectWatcher(http.receive, self.access.limits.max_body_seconds)
        try:
            http.caller = self.access.caller(http.headers)
            self.gateway.decisions.require()
            with self.access.spending(http.caller):  # also while it waits for a place
                async with self.access.admission as waited:
                    self.metrics.queued(route.name, waited)
                    with watcher:
                        body = self.access.body(http.headers, http.receive)
                        http.body = await watcher.read(body)
                        await route.handler(http)
        except RequestError as error:
            if not http.reached_gateway:
                self.metrics.failed(route.name, error.kind)
            await http.refuse(error)
        except asyncio.CancelledError:  # the time to end requests in is over
            await http.refuse(shutdown_error())
        except Exception:  # the one boundary: no bug may send an unreviewed draft or a traceback
            log.exception("the request failed")
            if not http.reached_gateway:
                self.metrics.failed(route.name, "internal")
            await http.refuse(internal_error(http.headers.context.id))

    async def _answer(self, http: HttpRequest) -> None:
        chat = http.wire.read(http.body, http.headers.id, http.caller)
        request = self._request(http, chat)
        if chat.stream:
            await self._stream(http, request)
            return
        http.reached_gateway = True
        answers = await self.gateway.answers(request)
        body = http.wire.write(chat, answers)
        if http.headers.wants_collaboration and http.caller.may_see_drafts:
            body = _add_collaborations(body, answers)
        await http.reply(body, self._headers(answers))

    async def _stream(self, http: HttpRequest, request: GatewayRequest) -> None:
        bundle = self.gateway.selector.assigned(request).bundle
        mode = _choose_stream_mode(http, bundle.stream_mode)
        request = msgspec.structs.replace(request, stream_mode=mode)
        http.reached_gateway = True
        writer = http.wire.writer(request.chat)
        async with aclosing(
            stream(self.gateway, request, bundle.rules, writer, self._costs)
        ) as parts:
            first = await anext(parts)  # what fails before it has a status of its own
            await http.begin((*STREAM, (b"x-waltzrl-mode", mode.encode())))
            await http.write(first)
            try:
                async for part in parts:
                    await http.write(part)
            except asyncio.CancelledError:
                if not self.access.admission.draining:
                    raise  # the client has gone
                await http.write(writer.error(shutdown_error(), http.headers.context.id))
        await http.write(b"", last=True)

    async def _review(self, http: HttpRequest) -> None:
        draft = read_review(http.body, http.headers.id, http.caller)
        request = self._request(http, draft.chat, only_review=not draft.revise)
        http.reached_gateway = True
        answer = await self.gateway.review(request, draft.reply)
        is_observed = self.gateway.selector.assigned(request).bundle.pattern is observed
        body = write_review(answer, is_observed=is_observed)
        await http.reply(body, self._headers([answer]))

    async def _guardrail(self, http: HttpRequest) -> None:
        chat, texts = read_guardrail(http.body, http.headers.id, http.caller)
        http.reached_gateway = True
        # The key is LiteLLM's for this guardrail, and none for the upstream.
        request = msgspec.structs.replace(self._request(http, chat), bearer=None)
        await http.reply(await answer_guardrail(self.gateway, request, texts))

    async def _hook(self, http: HttpRequest) -> None:
        hook = read_hook(http.body, http.headers.id, http.caller)
        http.reached_gateway = True
        # The key is Portkey's for this webhook, and none for the upstream.
        request = msgspec.structs.replace(self._request(http, hook.chat), bearer=None)
        await http.reply(await answer_hook(self.gateway, request, hook))

    async def _moderations(self, http: HttpRequest) -> None:
        chat, replies = read_moderation(http.body, http.headers.id)
        http.reached_gateway = True
        request = self._request(http, chat, only_review=True)
        await http.reply(await moderate_replies(self.gateway, request, replies))

    async def _route(self, http: HttpRequest) -> None:
        assert self._routing is not None, "only then is this route registered"
        if http.headers.is_probe:
            raise RequestError(
                400, "invalid_request", "a plan is kept in the memory, so it cannot be a probe"
            )

        async def review(text: str, draft: Reply, number: int) -> Feedback:
            chat = read_request(text, http.headers.id, http.caller)
            request = self._request(http, chat, only_review=True)
            answer = await self.gateway.review(request, draft, number)
            return answer.collaboration.rounds[0].feedback

        headers = dict(http.scope["headers"])
        key = headers.get(b"idempotency-key", headers.get(b"x-idempotency-key", b""))
        # By caller, so that nobody gets the plan of another by sending the same key.
        name = f"{http.caller.name}/{key.decode('latin-1')}" if key else ""
        body = await self._routing.respond(http.body, name, http.headers.id, review)
        correlation = headers.get(b"x-correlation-id")
        echoed = [(b"x-correlation-id", correlation)] if correlation else []
        await http.reply(body, (JSON, *echoed))

    async def _count_tokens(self, http: HttpRequest) -> None:
        chat = read_count(http.body, http.headers.id, http.caller)
        request = UpstreamRequest(
            path="/messages/count_tokens",
            body=http.body,
            bearer=self._bearer(http),
            model=chat.model,
        )
        upstream = self._find_upstream(http, chat.model, chat.api)
        counted = await upstream_count(upstream, request)
        header = (b"x-waltzrl-tokens", b"counted" if counted else b"estimated")
        await http.reply(msgspec.json.encode(counted or estimated_count(chat)), (JSON, header))

    async def _embeddings(self, http: HttpRequest) -> None:
        model = as_name(read_object(http.body).get("model"), "model")
        request = UpstreamRequest(
            path="/embeddings", body=http.body, bearer=self._bearer(http), model=model
        )
        response = await self._find_upstream(http, model).forward(request)
        await self._forwarded(http, "embeddings", response)

    async def _pass_on(self, http: HttpRequest) -> None:
        request = make_passed_on_request(http.scope, http.body, self._bearer(http))
        response = await self._find_upstream(http, request.model).forward(request)
        check_no_reply(response)
        await self._forwarded(http, "pass_through", response)

    async def _forwarded(self, http: HttpRequest, name: str, response: UpstreamResponse) -> None:
        """Return the upstream's response as it is, and count it under the route's name."""
        self.metrics.forwarded(name)
        content_type = (b"content-type", response.content_type.encode("latin-1"))
        await http.reply(response.body, (content_type,), response.status)

    async def _models(self, http: HttpRequest) -> None:
        models = await self._find_upstream(http).models(self._bearer(http))
        await http.reply(msgspec.json.encode({"object": "list", "data": models}))

    async def _model(self, http: HttpRequest) -> None:
        name = http.scope["path"].removeprefix(MODEL_PREFIX)
        models = await self._find_upstream(http).models(self._bearer(http))
        model = next((model for model in models if model.id == name), None)
        if model is None:
            raise RequestError(404, "not_found", f"there is no model {name[:100]!r}", param="model")
        await http.reply(msgspec.json.encode(model))

    async def _release(self, http: HttpRequest) -> None:
        assert self._memory is not None, "only then is this route registered"
        if http.caller.role is None and not self.access.keys.is_open:
            raise RequestError(403, "permission", "the state of a release needs a key with a role")
        await http.reply(await self._memory.decision())

    async def _feedback(self, http: HttpRequest) -> None:
        assert self._memory is not None, "only then is this route registered"
        await http.reply(await self._memory.feedback(http.body, http.caller))

    async def _healthz(self, http: HttpRequest) -> None:
        await http.reply(b'{"status":"alive"}')

    async def _readyz(self, http: HttpRequest) -> None:
        status, body = report_readiness(self.checks)
        await http.reply(body, status=status)

    async def _exposition(self, http: HttpRequest) -> None:
        text = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
        await http.reply(await self.metrics.scrape(), (text,))

    def _request(
        self, http: HttpRequest, chat: ChatRequest, *, only_review: bool = False
    ) -> GatewayRequest:
        return GatewayRequest(
            chat=chat,
            caller=http.caller,
            model=self.gateway.names.recorded(chat.model),
            bearer=self._bearer(http),
            context=http.headers.context,
            policy=self._choose_policy(http, chat.model, chat.api),
            only_review=only_review,
            may_learn=http.may_learn,
            is_probe=http.headers.is_probe,
        )

    def _choose_policy(self, http: HttpRequest, model: str, api: Api | None = None) -> str:
        asked = http.headers.policy
        if not (asked or self.policies.names):
            return ""  # the hot path: there are none
        return self.policies.choose(asked, http.caller, model, api)

    def _headers(self, answers: Sequence[Answer]) -> Headers:
        decisions = ",".join([answer.decision for answer in answers]).encode()
        return (JSON, (b"x-waltzrl-decision", decisions), *self._costs(answers))

    def _costs(self, answers: Sequence[Answer]) -> Headers:
        costs = self.access.costs
        return () if costs is None else costs.headers(answers)

    def _find_upstream(
        self, http: HttpRequest, model: str = "", api: Api | None = None
    ) -> Upstream:
        """Return the upstream that answers a request which is no chat, by its policy."""
        policy = self._choose_policy(http, model, api)
        return self.gateway.selector.serving(policy).upstream

    def _bearer(self, http: HttpRequest) -> str | None:
        """Return the client's key for the upstream; a key of the gateway is never passed on."""
        return (http.headers.key or None) if self.access.keys.is_open else None

    def _no_route(self, known: str, path: str, method: str) -> RequestError:
        if known in self._routes or path in self._open_routes:
            return RequestError(405, "invalid_request", f"{path} does not support {method}")
        routes = ", ".join([*self._routes, *self._open_routes])
        hint = describe_pass_through(path)
        return RequestError(
            404, "not_found", f"{path} does not exist{hint}; the routes are {routes}"
        )


def _choose_stream_mode(http: HttpRequest, own: StreamMode) -> StreamMode:
    """Choose how to send a stream: as its client requests, if its key may, or as the bundle says.

    Raises:
        RequestError: 403, the key may not request this mode.
    """
    modes = {mode.value: mode for mode in (*http.caller.stream_modes, own)}
    mode = modes.get(http.headers.mode) if http.headers.mode else own
    if mode is None:
        raise RequestError(
            403,
            "permission",
            f"this key may not use X-Waltzrl-Mode {http.headers.mode!r}; it may use "
            f"{', '.join(modes)}",
        )
    return mode.for_client(takes_retractions=http.headers.takes_retractions)


def _add_collaborations(body: bytes, answers: Sequence[Answer]) -> bytes:
    """Add the key `waltzrl` to a JSON object: the collaboration behind each choice."""
    collaborations = msgspec.json.encode([answer.collaboration for answer in answers])
    # Spliced in, because the body may be the upstream's own bytes.
    return b'%s,"waltzrl":{"collaborations":%s}}' % (body.rstrip()[:-1], collaborations)
