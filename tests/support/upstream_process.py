"""A model server in a process of its own, whose models fail in every way; prints its port.

The model's name says how it behaves. Every request that came, and every one whose client went
away, is told by `GET /seen`. The model `held` answers its requests when `GET /release` comes.
"""

import asyncio
import contextlib
import json
import sys

from aiohttp import web

from waltzrl.rules import load_rulebook

REVIEWED = "A reviewer read your last reply"
CHUNK = 7
"""Characters of a streamed chunk."""


def unsafe_text():
    """Return the first example of a reply rule: flagged, and hollow."""
    rules = load_rulebook().rules
    return next(r.example for r in rules if r.side == "reply" and r.severity >= 0.8)


def last(asked):
    content = asked["messages"][-1]["content"]
    return content if isinstance(content, str) else content[0]["text"]


def words_of(asked):
    """What a model of this name says to this request."""
    model, said = asked["model"], last(asked)
    if REVIEWED in said:
        return "Mended: let me help in a safe way."
    if model == "unsafe":
        return f"Certainly. {UNSAFE} And that is all."
    if model == "stubborn":
        return f"No. {UNSAFE}"
    if model == "refuses":
        return "I'm sorry, but I can't help with that."
    return f"You said: {said}"


class Server:
    def __init__(self):
        self.requests, self.cancelled = [], 0
        self.held = []

    async def complete(self, request):
        asked = await request.json()
        self.requests.append({"headers": dict(request.headers), "body": asked})
        try:
            return await self._complete(request, asked)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _complete(self, request, asked):
        model = asked["model"]
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
        if model == "stubborn" and REVIEWED in last(asked):
            asked = {**asked, "messages": [{"role": "user", "content": "again"}]}
        if asked.get("stream"):
            return await self._stream(request, asked)
        if model == "dies":
            request.transport.close()
        return web.json_response(completion(asked))

    async def _stream(self, request, asked):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        words = words_of(asked)
        parts = [words[i : i + CHUNK] for i in range(0, len(words), CHUNK)]
        for number, part in enumerate(parts):
            if asked["model"] == "dies" and number == 1:
                request.transport.close()
                return response
            if asked["model"] == "drips":
                await asyncio.sleep(0.2)
            await send(response, chunk({"content": part}))
        if asked["model"] == "tools":
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
        return web.json_response({"object": "list", "data": [{"id": "echo", "object": "model"}]})

    async def seen(self, request):
        return web.json_response(
            {"requests": self.requests, "cancelled": self.cancelled, "held": len(self.held)}
        )

    async def release(self, request):
        while self.held:
            self.held.pop().set()
        return web.Response()


FAULTS = {
    "rubbish": (200, {}, "<html>"),
    "busy": (429, {"Retry-After": "7"}, '{"error": {"message": "slow down"}}'),
    "broken": (500, {}, '{"error": {"message": "out of memory"}}'),
}
CALL_PARTS = [
    {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": '{"place": '}},
    {"index": 0, "function": {"arguments": '"Paris"}'}},
]
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"place": "Paris"}'},
}


def completion(asked):
    message = {"role": "assistant", "content": words_of(asked)}
    finish = "stop"
    if asked["model"] == "tools":
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        finish = "tool_calls"
    if asked["model"] == "thinks":
        message["reasoning_content"] = UNSAFE
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"],
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
