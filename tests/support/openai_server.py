"""A real HTTP server that serves policies as `POST /v1/chat/completions`."""

import asyncio
import json
import math
import re
import socket
import threading
from collections import deque
from contextlib import contextmanager

from aiohttp import web

from support.small_site import stop_accepting
from support.timing import settle
from waltzrl.errors import PolicyError
from waltzrl.gateway.wire.fields import turn_of
from waltzrl.policies import Sampling
from waltzrl.records import Message, Usage

HEAD = {"id": "chatcmpl-1", "created": 1}
"""What clients want to see in every completion and chunk."""


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
        self.rejects = set()
        """Fields of requests that are answered with an error 400."""
        self.refusal = ""
        """What that error advises."""
        self.true = {}
        """Label -> the probability of true in log-probabilities; None leaves them out."""
        self.odds = {}
        """Word -> probabilities of the candidates for its place."""
        self.model = None
        """What the server calls its model in every answer; None for the name that was asked."""
        self.fingerprint = None
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

    def _received(self, request, asked):
        """Note a request; return the answer that was prepared for it, or that it is refused."""
        self.requests.append((request.headers.copy(), asked))
        if self.first:
            status, headers, body = self.first.popleft()
            return web.Response(status=status, headers=headers, text=body)
        if unknown := self.rejects & set(asked):
            return _error(400, f"unknown field {min(unknown)}; {self.refusal}")
        return None

    async def _complete(self, request):
        asked = await request.json()
        if (refusal := self._received(request, asked)) is not None:
            return refusal
        policy = self.policies.get(asked["model"])
        if policy is None:
            return _error(404, f"the model {asked['model']!r} does not exist")
        messages = [turn_of(message, "messages") for message in asked["messages"]]
        sampling = Sampling(
            max_new_tokens=asked.get("max_tokens") or 512,
            temperature=asked.get("temperature") or 0,
            tools=asked.get("tools") or (),
        )
        try:
            reply = await policy.reply(messages, sampling)
        except PolicyError as error:
            return _error(400, str(error))
        if asked.get("stream"):
            return await self._stream(request, reply, logprobs=self._tells(asked))
        message = {"role": "assistant", "content": reply.text} | _calls(reply)
        tokens = {"content": self._logprobs(reply.text)} if self._tells(asked) else None
        return web.json_response(
            {
                **HEAD,
                "object": "chat.completion",
                "model": self.model or asked["model"],
                "system_fingerprint": self.fingerprint,
                "choices": [
                    {
                        "index": 0,
                        "message": message,
                        "finish_reason": _finish(reply),
                        "logprobs": tokens,
                    }
                ],
                "usage": _usage(reply),
            }
        )

    async def complete_text(self, request):
        """Continue a text: the policy is asked with it as one user's turn."""
        asked = await request.json()
        if (refusal := self._received(request, asked)) is not None:
            return refusal
        policy = self.policies[asked["model"]]
        sampling = Sampling(max_new_tokens=asked["max_tokens"])
        try:
            reply = await policy.reply([Message(role="user", content=asked["prompt"])], sampling)
        except PolicyError as error:
            return _error(400, str(error))
        tokens = self._logprobs(reply.text)
        logprobs = {
            "tokens": [token["token"] for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in tokens
            ],
        }
        return web.json_response(
            {
                "object": "text_completion",
                "model": self.model or asked["model"],
                "system_fingerprint": self.fingerprint,
                "choices": [
                    {
                        "index": 0,
                        "text": reply.text,
                        "finish_reason": _finish(reply),
                        "logprobs": logprobs if asked.get("logprobs") else None,
                    }
                ],
                "usage": _usage(reply),
            }
        )

    def _tells(self, asked):
        return asked.get("logprobs", False) and self.true is not None

    def _logprobs(self, text):
        """Spell `text` in tokens as common tokenizers do, a space before a word included."""
        return [self._token(text, match) for match in re.finditer(r" ?\w+| ?[^\w\s]+|\s+", text)]

    def _token(self, text, match):
        token = match[0]
        if odds := self.odds.get(token.strip()):
            top = [{"token": t, "logprob": math.log(p)} for t, p in odds.items()]
            return {"token": token, "logprob": -0.1, "top_logprobs": top}
        if token.strip() not in ("true", "false"):
            return {"token": token, "logprob": -0.1, "top_logprobs": []}
        label = re.findall(r"\w+", text[: match.start()])[-1]
        true = self.true.get(label)
        odds = {} if true is None else {" true": true * 0.8, " false": (1 - true) * 0.8, "!": 0.2}
        top = [{"token": t, "logprob": math.log(p)} for t, p in odds.items() if p > 0]
        return {"token": token, "logprob": math.log(odds.get(token) or 1), "top_logprobs": top}

    async def _stream(self, request, reply, *, logprobs=False):
        """Send the reply three characters at a time, each piece cut in the middle.

        With log-probabilities, send it a token at a time.
        """
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        texts = [reply.text[at : at + 3] for at in range(0, len(reply.text), 3)]
        words = [{"delta": {"role": "assistant", "content": text}} for text in texts]
        if logprobs:
            tokens = self._logprobs(reply.text)
            words = [
                {"delta": {"content": t["token"]}, "logprobs": {"content": [t]}} for t in tokens
            ]
        last = {"delta": _calls(reply), "finish_reason": _finish(reply)}
        chunks = [
            *({"choices": [{"index": 0} | word]} for word in [*words, last]),
            {"choices": [], "usage": _usage(reply)},
        ]
        head = HEAD | {"object": "chat.completion.chunk", "model": "m"}
        events = [*(json.dumps(head | chunk) for chunk in chunks), "[DONE]"]
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


def _calls(reply):
    calls = [
        {
            "index": index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(reply.calls)
    ]
    return {"tool_calls": calls} if calls else {}


def _finish(reply):
    return "tool_calls" if reply.calls else reply.finish


def _usage(reply):
    usage = reply.usage or Usage(input_tokens=0, output_tokens=0)
    read, written = usage.input_tokens, usage.output_tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _error(status, message):
    return web.json_response({"error": {"message": message}}, status=status)


@contextmanager
def serving(policies):
    """Serve `policies`, by model name, on a free port for as long as the block runs."""
    server = OpenAIServer(policies)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.complete)
    app.router.add_post("/v1/completions", server.complete_text)
    with listening(app) as url:
        server.base_url = f"{url}/v1"
        yield server


@contextmanager
def listening(app):
    """Run an application on a free port, in a thread; yield its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    listener = socket.create_server(("127.0.0.1", 0))
    asyncio.run_coroutine_threadsafe(_start(runner, listener), loop).result(10)
    try:
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        asyncio.run_coroutine_threadsafe(_end(runner, listener), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _start(runner, listener):
    await runner.setup()
    await web.SockSite(runner, listener).start()


async def _end(runner, listener):
    await stop_accepting(listener)
    await runner.cleanup()
    await settle()
