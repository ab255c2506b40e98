"""A real HTTP server that serves policies as `POST /v1/chat/completions`."""

import asyncio
import json
import threading
from collections import deque
from contextlib import contextmanager

from aiohttp import web

from waltzrl.errors import PolicyError
from waltzrl.policies import Sampling
from waltzrl.records import Message, Usage


class OpenAIServer:
    """Replies with the policy that bears the requested model's name."""

    def __init__(self, policies):
        self.policies = policies
        self.requests = []
        """(headers, JSON body) of every request, in order."""
        self.first = deque()
        """Responses (status, headers, body) that are given before any policy is asked."""
        self.pieces = []
        """How many pieces of each stream were sent until its end, or until the client left."""
        self.most_at_once = 0
        self._under_way = 0
        self.base_url = ""

    async def complete(self, request):
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            return await self._complete(request)
        finally:
            self._under_way -= 1

    async def _complete(self, request):
        asked = await request.json()
        self.requests.append((request.headers.copy(), asked))
        if self.first:
            status, headers, body = self.first.popleft()
            return web.Response(status=status, headers=headers, text=body)
        policy = self.policies.get(asked["model"])
        if policy is None:
            return _error(404, f"the model {asked['model']!r} does not exist")
        messages = [Message(role=m["role"], content=m["content"]) for m in asked["messages"]]
        sampling = Sampling(max_new_tokens=asked["max_tokens"], temperature=asked["temperature"])
        try:
            reply = await policy.reply(messages, sampling)
        except PolicyError as error:
            return _error(400, str(error))
        if asked.get("stream"):
            return await self._stream(request, reply)
        message = {"role": "assistant", "content": reply.text}
        return web.json_response(
            {
                "object": "chat.completion",
                "model": asked["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": reply.finish}],
                "usage": _usage(reply),
            }
        )

    async def _stream(self, request, reply):
        """Send the reply three characters at a time, each piece cut in the middle."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        texts = [reply.text[at : at + 3] for at in range(0, len(reply.text), 3)]
        chunks = [
            *({"choices": [{"delta": {"role": "assistant", "content": text}}]} for text in texts),
            {"choices": [{"delta": {}, "finish_reason": reply.finish}]},
            {"choices": [], "usage": _usage(reply)},
        ]
        events = [*(json.dumps(chunk) for chunk in chunks), "[DONE]"]
        self.pieces.append(0)
        for event in events:
            self.pieces[-1] += 1
            line = f"data: {event}\r\n\r\n".encode()
            try:
                await response.write(line[:9])
                await asyncio.sleep(0.005)
                await response.write(line[9:])
            except ConnectionResetError:
                break
        return response


def _usage(reply):
    usage = reply.usage or Usage(input_tokens=0, output_tokens=0)
    return {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}


def _error(status, message):
    return web.json_response({"error": {"message": message}}, status=status)


@contextmanager
def serving(policies):
    """Serve `policies`, by model name, on a free port for as long as the block runs."""
    server = OpenAIServer(policies)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(_start(server), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _start(server):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.complete)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    server.base_url = f"http://{host}:{port}/v1"
    return runner
