"""The gateway as an ASGI application: routes, doors, bytes in and bytes out.

Raw ASGI: on the hot route every layer of a framework would cost more than all of ours.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from waltzrl.errors import RequestError
from waltzrl.serving.auth import AccessControl, RequestHeaders
from waltzrl.serving.disconnect import DisconnectWatcher, Event, Receive, Send
from waltzrl.serving.exchange import Answer
from waltzrl.serving.gateway import Gateway, GatewayRequest, Mode, internal_error
from waltzrl.serving.http_request import JSON, HttpRequest
from waltzrl.serving.metrics import GatewayMetrics
from waltzrl.serving.reviews import guardrail, read_guardrail, read_review, write_review
from waltzrl.serving.stream import StreamSettings, stream
from waltzrl.serving.wire import CHAT, MESSAGES, RESPONSES
from waltzrl.serving.wire.format import WireFormat

Work: TypeAlias = Callable[[HttpRequest], Awaitable[None]]

STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


DESK = "/desk"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExtraRoutes:
    """What a gateway with a memory has beside its API."""

    desk: Callable[[Event, Receive, Send], Awaitable[None]]
    """Serves the pages below `/desk`, as ASGI 3 asks."""
    decision: Callable[[], Awaitable[bytes]]
    """Returns JSON: where the release stands, for tools that steer a deployment.

    Raises:
        RequestError: it cannot be said now.
    """


class App:
    """Answers HTTP requests."""

    def __init__(
        self,
        gateway: Gateway,
        door: AccessControl,
        *,
        streams: StreamSettings,
        metrics: GatewayMetrics,
        ready: Callable[[], None],
        rooms: ExtraRoutes | None = None,
    ) -> None:
        """Put the routes together.

        Args:
            gateway: answers.
            door: lets requests in, or not.
            streams: how streams leave.
            metrics: are shown, and told of what fails at the door.
            ready: raises a RequestError when nothing may be served.
            rooms: what only a gateway with a memory has.
        """
        self._gateway = gateway
        self.door = door
        self._streams = streams
        self._metrics = metrics
        self._ready = ready
        self._rooms = rooms
        self._routes: dict[str, dict[str, tuple[WireFormat, Work]]] = {
            "/v1/chat/completions": {"POST": (CHAT, self._answer)},
            "/v1/responses": {"POST": (RESPONSES, self._answer)},
            "/v1/messages": {"POST": (MESSAGES, self._answer)},
            "/v1/review": {"POST": (CHAT, self._review)},
            "/beta/litellm_basic_guardrail_api": {"POST": (CHAT, self._guardrail)},
            "/v1/models": {"GET": (CHAT, self._models)},
        }
        if rooms is not None:
            self._routes["/v1/release/decision"] = {"GET": (CHAT, self._release)}
        self._open_routes: dict[str, Work] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._exposition,
        }

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI 3 asks."""
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if self._rooms is not None and (path == DESK or path.startswith(f"{DESK}/")):
            await self._rooms.desk(scope, receive, send)
            return
        head = RequestHeaders.read(scope)
        if found := self._routes.get(path, {}).get(method):
            dialect, work = found
            await self._serve(HttpRequest(dialect, head, receive, send), work)
        elif path in self._open_routes and method == "GET":
            await self._open_routes[path](HttpRequest(CHAT, head, receive, send))
        else:
            await HttpRequest(CHAT, head, receive, send).refuse(self._no_route(path, method))

    async def _serve(self, visit: HttpRequest, work: Work) -> None:
        """Let a visit in, and do its work; whatever is wrong goes back in the API's own words."""
        try:
            visit.caller = self.door.caller(visit.head)
            self._ready()
            async with self.door.admission:
                with DisconnectWatcher(visit.receive) as presence:
                    body = self.door.body(visit.head, visit.receive)
                    visit.body = await presence.reads(body)
                    await work(visit)
        except RequestError as problem:
            if not visit.asked:
                self._metrics.failed(visit.dialect.api, problem.kind)
            await visit.refuse(problem)
        except Exception:  # the one boundary: a mistake of ours is no reason to let a draft out
            log.exception("request %s failed", visit.head.id)
            await visit.refuse(internal_error(visit.head.id))

    async def _answer(self, visit: HttpRequest) -> None:
        chat = visit.dialect.read(visit.body, visit.head.id)
        request = GatewayRequest(
            chat=chat,
            caller=visit.caller,
            bearer=self._bearer(visit),
            traceparent=visit.head.traceparent,
            may_learn=visit.may_learn,
        )
        if chat.stream:
            await self._stream(visit, request)
            return
        visit.asked = True
        answers = await self._gateway.answers(request)
        body = visit.dialect.write(chat, answers)
        if visit.head.wants_collaboration and visit.caller.may_see_drafts:
            body = _with_collaborations(body, answers)
        await visit.reply(body, (JSON, (b"x-waltzrl-decision", _decisions(answers))))

    async def _stream(self, visit: HttpRequest, request: GatewayRequest) -> None:
        mode = self._stream_mode(visit)
        request = msgspec.structs.replace(request, mode=mode)
        visit.asked = True
        writer = visit.dialect.writer(request.chat)
        await visit.begin((*STREAM, (b"x-waltzrl-mode", mode.encode())))
        async with aclosing(
            stream(self._gateway, request, self._streams.open_window, writer)
        ) as parts:
            async for part in parts:
                await visit.more(part)
        await visit.more(b"", last=True)

    def _stream_mode(self, visit: HttpRequest) -> Mode:
        """How this stream leaves: as its client asks, if it may, or as the operator chose.

        Raises:
            RequestError: 403, the key may not ask for this mode.
        """
        modes: dict[str, Mode] = {
            mode: mode for mode in (*visit.caller.stream_modes, self._streams.mode)
        }
        mode = modes.get(visit.head.mode) if visit.head.mode else self._streams.mode
        if mode is None:
            raise RequestError(
                403,
                "permission",
                f"X-Waltzrl-Mode {visit.head.mode!r} is not for this key; it may ask for "
                f"{', '.join(modes)}",
            )
        if mode == "speculative" and not visit.head.takes_retractions:
            return "window"
        return mode

    async def _review(self, visit: HttpRequest) -> None:
        draft = read_review(visit.body, visit.head.id)
        request = GatewayRequest(
            chat=draft.chat,
            caller=visit.caller,
            bearer=self._bearer(visit),
            mode="whole" if draft.revise else "review",
            may_learn=visit.may_learn,
        )
        visit.asked = True
        answer = await self._gateway.review(request, draft.reply)
        decision = (b"x-waltzrl-decision", _decisions([answer]))
        await visit.reply(write_review(answer), (JSON, decision))

    async def _guardrail(self, visit: HttpRequest) -> None:
        chat, texts = read_guardrail(visit.body, visit.head.id)
        visit.asked = True
        request = GatewayRequest(chat=chat, caller=visit.caller, may_learn=visit.may_learn)
        await visit.reply(await guardrail(self._gateway, request, texts))

    async def _models(self, visit: HttpRequest) -> None:
        names = await self._gateway.selector.serving.upstream.models(self._bearer(visit))
        models = [{"id": name, "object": "model", "owned_by": "upstream"} for name in names]
        await visit.reply(msgspec.json.encode({"object": "list", "data": models}))

    async def _release(self, visit: HttpRequest) -> None:
        assert self._rooms is not None, "there is no such route without"
        if visit.caller.role is None and not self.door.keys.is_open:
            raise RequestError(403, "permission", "where releases stand is for keys with a role")
        await visit.reply(await self._rooms.decision())

    async def _healthz(self, visit: HttpRequest) -> None:
        await visit.reply(b'{"status":"alive"}')

    async def _readyz(self, visit: HttpRequest) -> None:
        try:
            self._ready()
        except RequestError as error:
            said = msgspec.json.encode({"status": "not ready", "reason": str(error)})
            await visit.reply(said, status=503)
            return
        if self.door.admission.draining:
            await visit.reply(b'{"status":"not ready","reason":"shutting down"}', status=503)
            return
        await visit.reply(b'{"status":"ready"}')

    async def _exposition(self, visit: HttpRequest) -> None:
        text = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
        await visit.reply(self._metrics.exposition(), (text,))

    def _bearer(self, visit: HttpRequest) -> str | None:
        """The client's key goes to the upstream only where it is not a key of ours."""
        return (visit.head.key or None) if self.door.keys.is_open else None

    def _no_route(self, path: str, method: str) -> RequestError:
        if path in self._routes or path in self._open_routes:
            return RequestError(405, "invalid_request", f"{path} does not take {method}")
        known = ", ".join([*self._routes, *self._open_routes])
        return RequestError(404, "not_found", f"there is no {path}; there are {known}")


def _decisions(answers: Sequence[Answer]) -> bytes:
    return ",".join(answer.decision for answer in answers).encode()


def _with_collaborations(body: bytes, answers: Sequence[Answer]) -> bytes:
    """Add the key `waltzrl` to a JSON object: what was said on the way to each choice."""
    said = msgspec.json.encode([answer.collaboration for answer in answers])
    return b'%s,"waltzrl":{"collaborations":%s}}' % (body.rstrip()[:-1], said)
