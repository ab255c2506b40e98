"""A model server in a process of its own, whose models fail in every way; prints its port.

The model's name says how it behaves. `GET /seen` returns all requests, and the number of those
whose client disconnected. The model `held` answers its requests when `GET /release` comes.
"""

import asyncio
import contextlib
import json
import re
import sys
from array import array
from base64 import b64encode
from zlib import crc32

from aiohttp import web

from waltzrl.agents.rules import load_rulebook

REVIEWED = "A reviewer read your last reply"
CHUNK = 7
"""Characters of a streamed chunk."""


def unsafe_text():
    """Return the first example of a reply rule: flagged, and hollow."""
    rules = load_rulebook().rules
    return next(r.example for r in rules if r.side == "reply" and r.severity >= 0.8)


def last_text(body):
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else content[0]["text"]


def reply_to(body):
    """Return the reply of the request's model."""
    model, text = body["model"], last_text(body)
    if REVIEWED in text:
        return "Mended: let me help in a safe way."
    if model == "unsafe":
        return f"Certainly. {UNSAFE} And that is all."
    if model == "stubborn":
        return f"No. {UNSAFE}"
    if model == "refuses":
        return "I'm sorry, but I can't help with that."
    return f"You said: {text}"


class Server:
    def __init__(self):
        self.requests, self.cancelled = [], 0
        self.held = []

    async def complete(self, request):
        body = await request.json()
        self.requests.append({"headers": dict(request.headers), "body": body})
        try:
            return await self._complete(request, body)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _complete(self, request, body):
        model = body["model"]
        if model == "hangs":
            await asyncio.sleep(60)
        if model == "held":
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        if model == "slow":
            await asyncio.sleep(0.3)
        if model in FAULTS:
            status, headers, text = FAULTS[model]
            return web.Response(status=status, headers=headers, text=text)
        if model == "stubborn" and REVIEWED in last_text(body):
            body = {**body, "messages": [{"role": "user", "content": "again"}]}
        if body.get("stream"):
            return await self._stream(request, body)
        if model == "dies":
            request.transport.close()
        return web.json_response(completion(body))

    async def _stream(self, request, body):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        words = reply_to(body)
        parts = [words[i : i + CHUNK] for i in range(0, len(words), CHUNK)]
        for number, part in enumerate(parts):
            if body["model"] == "dies" and number == 1:
                request.transport.close()
                return response
            if body["model"] == "drips":
                await asyncio.sleep(0.2)
            await send(response, chunk({"content": part}))
            if body["model"] == "breaks":
                self.held.append(asyncio.Event())
                await self.held[-1].wait()
                request.transport.close()
                return response
        if body["model"] == "tools":
            for part in CALL_PARTS:
                await send(response, chunk({"tool_calls": [part]}))
            await send(response, chunk({}, "tool_calls"))
        else:
            await send(response, chunk({}, "stop"))
        usage = {"prompt_tokens": 11, "completion_tokens": len(parts), "total_tokens": 0}
        await send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, request):
        card = {"id": "echo", "object": "model", "created": 17, "owned_by": "tests"}
        return web.json_response({"object": "list", "data": [card]})

    async def embed(self, request):
        body = await request.json()
        self.requests.append({"headers": dict(request.headers), "body": body})
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [
            {"object": "embedding", "index": index, "embedding": encoded(embedding(text), body)}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return web.json_response({"object": "list", "data": data, "model": "m", "usage": usage})

    async def seen(self, request):
        return web.json_response(
            {"requests": self.requests, "cancelled": self.cancelled, "held": len(self.held)}
        )

    async def release(self, request):
        while self.held:
            self.held.pop().set()
        return web.Response()


TOO_LONG = {
    "message": "This model reads at most 8 tokens.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
FAULTS = {
    "rubbish": (200, {}, "<html>"),
    "busy": (429, {"Retry-After": "7"}, '{"error": {"message": "slow down"}}'),
    "broken": (500, {}, '{"error": {"message": "out of memory"}}'),
    "long": (400, {}, json.dumps({"error": TOO_LONG})),
    "absent": (404, {}, '{"error": {"message": "no such model", "code": "model_not_found"}}'),
    "soon": (429, {"Retry-After": "0"}, '{"error": {"message": "slow down"}}'),
}
DIMENSIONS = 512


def embedding(text):
    """Count the words of a text, each at a place of its own: similar texts share words."""
    vector = [0.0] * DIMENSIONS
    for word in re.findall("[a-z]+", text.lower()):
        vector[crc32(word.encode()) % DIMENSIONS] += 1.0
    return vector


def encoded(vector, body):
    """Return the vector as the client asks for it: npm's client reads nothing but base64."""
    if body.get("encoding_format") != "base64":
        return vector
    return b64encode(array("f", vector).tobytes()).decode()


CALL_PARTS = [
    {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": '{"place": '}},
    {"index": 0, "function": {"arguments": '"Paris"}'}},
]
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"place": "Paris"}'},
}


def completion(body):
    message = {"role": "assistant", "content": reply_to(body)}
    finish = "stop"
    if body["model"] == "tools":
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        finish = "tool_calls"
    beside_text = {
        "hides": {"words": UNSAFE},
        "thinks": {"reasoning_content": "They said hello."},
        "plots": {"reasoning_content": UNSAFE},
    }
    message |= beside_text.get(body["model"], {})
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16},
    }


def chunk(delta, finish=None):
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


async def send(response, data):
    await response.write(b"data: " + json.dumps(data).encode() + b"\n\n")


async def main():
    server = Server()
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", server.complete)
    app.router.add_post("/v1/embeddings", server.embed)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/seen", server.seen)
    app.router.add_get("/release", server.release)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 - how a test learns the port
    await asyncio.Event().wait()


if __name__ == "__main__":
    UNSAFE = unsafe_text()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
