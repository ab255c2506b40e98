"""A whole gateway in this process, in front of a model server; called as ASGI."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import NamedTuple

from support.small_site import events, http, read_request, site, words
from support.timing import until
from waltzrl.agents.rules import load_rulebook
from waltzrl.gateway.health import report_readiness
from waltzrl.gateway.listener import open_listener
from waltzrl.gateway.opening import open_gateway
from waltzrl.gateway.server import Server
from waltzrl.gateway.settings import load_gateway

HELLO = [{"role": "user", "content": "hello"}]
UNSAFE = next(
    rule.example for rule in load_rulebook().rules if rule.side == "reply" and rule.severity >= 0.8
)
"""Flagged, and hollow."""
REVISED = "Mended: let me help in a safe way."
NOWHERE = "http://127.0.0.1:9/v1"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMPLETIONS = "/v1/completions"
REVIEW, GUARDRAIL = "/v1/review", "/beta/litellm_basic_guardrail_api"
PORTKEY = "/v1/guardrails/portkey"
EMBEDDING = {"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}
EMBEDDINGS = {"object": "list", "data": [EMBEDDING], "model": "echo", "usage": {"total_tokens": 1}}
TOO_LONG = {
    "message": "This model reads at most 8 tokens.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
BODIES = {
    CHAT: {"model": "echo", "messages": HELLO},
    COMPLETIONS: {"model": "echo", "prompt": "hello"},
    RESPONSES: {"model": "echo", "input": "hello"},
    MESSAGES: {"model": "echo", "messages": HELLO, "max_tokens": 9},
}
"""Path -> a good request."""


class Model:
    """A model server whose models draft what their names say; it records its requests."""

    def __init__(self):
        self.heads, self.raw, self.bodies = [], [], []

    async def __call__(self, reader, writer):
        while raw := await read_request(reader):
            head, _, body = raw.partition(b"\r\n\r\n")
            path = head.decode().split()[1].removeprefix("/base")
            if body:  # not the probes for readiness
                self.heads.append(head.decode())
                self.raw.append(body)
            writer.write(self.answer(json.loads(body) if body else None, path))

    def answer(self, body, path):
        if path == "/models":
            return http({"data": [{"id": "echo", "created": 17}, {"id": "maker/echo"}]})
        self.bodies.append(body)
        if body["model"] in PROBLEMS:
            status, error, headers = PROBLEMS[body["model"]]
            return http({"error": error}, status, **headers)
        if path == "/embeddings":
            return http(EMBEDDINGS)
        text = self.draft(body)
        if body.get("stream"):
            return events(words(text[:9]), words(text[9:]), words("", "stop"), "[DONE]")
        message = {"role": "assistant", "content": text}
        return http({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def draft(self, body):
        return draft(body)


PROBLEMS = {
    "busy": (429, {"message": "slow down"}, {"Retry_After": 7}),
    "long": (400, TOO_LONG, {}),
    "broken": (500, {"message": UNSAFE, "code": "oom"}, {}),
}
"""Model -> status, error and headers of its answer."""


def draft(body):
    revises = "A reviewer read your last reply" in str(body["messages"][-1]["content"])
    if body["model"] == "stubborn" or (body["model"] == "unsafe" and not revises):
        return f"Certainly. {UNSAFE} And that is all."
    return REVISED if revises else "You said hello."


@asynccontextmanager
async def gateway(*overrides, model=None):
    """Open a gateway in front of `model`."""
    async with site(model or Model()) as server:
        recipe = load_gateway(None, {"upstream": {"url": server.url}}, overrides, {})
        async with open_gateway(recipe) as app:
            yield app


@asynccontextmanager
async def listening(app, tls=None):
    """Serve a gateway on a free port; yield its host and port."""
    listener = open_listener("127.0.0.1", 0)
    server = Server(app, app.access, tls)
    served = asyncio.create_task(server.serve_on(listener))
    try:
        yield listener.getsockname()
    finally:
        server.stop()
        await served


class Response(NamedTuple):
    """A response of the gateway."""

    status: int
    headers: dict
    text: str
    whole: bool

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def error(self):
        return self.json["error"]["message"]


async def ask(app, path, body=None, *, method="POST", parts=(), gone=None, **headers):
    """Send a request, in `parts` if given; the client disconnects when `gone` is set."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    waiting = list(parts) or [raw]
    gone = gone or asyncio.Event()
    sent = []

    async def receive():
        if waiting:
            part = waiting.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(waiting)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(event):
        sent.append(event)

    named = [(k.replace("_", "-").encode(), str(v).encode()) for k, v in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": named}
    await app(scope, receive, send)
    if not sent:
        return None
    start, *bodies = sent
    assert [event["type"] for event in bodies] == ["http.response.body"] * len(bodies)
    return Response(
        start["status"],
        {name.decode(): value.decode() for name, value in start["headers"]},
        b"".join(event["body"] for event in bodies).decode(),
        bool(bodies) and not bodies[-1].get("more_body", False),
    )


async def ready_gateway(app):
    """Wait until the gateway is ready; return what `/readyz` answers."""
    await until(lambda: report_readiness(app.checks)[0] == 200)
    return await ask(app, "/readyz", method="GET")


async def chat(app, model="echo", *, key="", **more):
    """Ask for a chat completion; keys in lower case are headers when they begin with `x_`."""
    headers = {name: more.pop(name) for name in list(more) if name.startswith("x_")}
    if key:
        headers["authorization"] = f"Bearer {key}"
    return await ask(app, CHAT, {"model": model, "messages": HELLO, **more}, **headers)


def with_gateway(work, *overrides, model=None):
    """Run `work(app)` on a gateway."""

    async def run():
        async with gateway(*overrides, model=model) as app:
            return await work(app)

    return asyncio.run(run())
