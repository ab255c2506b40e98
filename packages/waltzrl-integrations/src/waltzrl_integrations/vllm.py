"""vLLM's OpenAI server: a middleware that reviews every chat before it leaves.

vllm serve MODEL --middleware waltzrl_integrations.vllm.ReviewMiddleware

It is plain ASGI, for any server of chat completions; the server's own model revises.
"""

from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias
from uuid import uuid4

import msgspec

from waltzrl.errors import PolicyError, RequestError
from waltzrl.gateway.guard import Guard
from waltzrl.gateway.guard_opening import open_guard
from waltzrl.gateway.pass_through import REPLIES
from waltzrl.gateway.wire.fields import read_object
from waltzrl.gateway.wire.format import DONE, encode_event, error_envelope
from waltzrl.gateway.wire.prompt import prompt_of
from waltzrl.policies import Sampling
from waltzrl.policies.chat_completion import chat_message, read_chat_completion
from waltzrl.records import Message, Prompt, Reply
from waltzrl_integrations import drafts

Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
ServerApp: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]
Json: TypeAlias = dict[str, Any]

CHATS = "/v1/chat/completions"
REASONING = ("reasoning", "reasoning_content")
_chat: ContextVar[tuple[Event, Json]] = ContextVar("chat")
"""The request that is being answered, and its body: a revision has its key and its model."""


class ReviewMiddleware:
    """Reviews and revises chats, streams included, and refuses all other routes with replies."""

    reviewer: str | None = None
    """Who reviews, as in `open_guard`; a subclass names another. None is the rules."""

    def __init__(self, app: ServerApp) -> None:
        self._app = app
        self._guard: Guard = open_guard(self.reviewer, upstream=_ServedModel(app))

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "not reviewed"})
        elif scope["type"] != "http" or not REPLIES.search(scope["path"]):
            await self._app(scope, receive, send)
        else:
            try:
                await self._answer(scope, receive, send)
            except RequestError as error:
                body = msgspec.json.encode(error_envelope(error, ""))
                await _send_body(send, error.status, body)

    async def _answer(self, scope: Event, receive: Receive, send: Send) -> None:
        if (scope["method"], scope["path"]) != ("POST", CHATS):
            message = f"{scope['path']} would answer without a review; use {CHATS}"
            raise RequestError(403, "permission", message)
        body = read_object(await _read_body(receive))
        prompt = prompt_of(body, uuid4().hex)
        streams = body.pop("stream", False)
        body.pop("stream_options", None)
        _chat.set((scope, body))
        status, answer = await _call_server(self._app, scope, body)
        if status != 200:
            await _send_body(send, status, answer)
            return
        try:
            completion = await self._review(prompt, msgspec.json.decode(answer))
        except PolicyError as error:
            raise RequestError(502, "upstream", str(error)) from error
        if streams:
            events = [encode_event(msgspec.json.encode(c)) for c in _cut_chunks(completion)]
            await _send_body(send, 200, b"".join([*events, DONE]), b"text/event-stream")
        else:
            await _send_body(send, 200, msgspec.json.encode(completion))

    async def _review(self, prompt: Prompt, completion: Json) -> Json:
        for choice in completion["choices"]:
            message = choice["message"]
            functions = [(c.get("id"), c["function"]) for c in message.get("tool_calls") or ()]
            calls = [(id_, called["name"], called["arguments"]) for id_, called in functions]
            thought = "\n".join(message[key] for key in REASONING if message.get(key))
            draft = drafts.reply_of(message.get("content") or "", thought, calls)
            text, added = await drafts.revise(self._guard, prompt, draft)
            completion["usage"] = drafts.add_tokens(completion.get("usage") or {}, added)
            if text is not None:
                index, message = choice["index"], {"role": "assistant", "content": text}
                choice.clear()
                choice.update(index=index, message=message, finish_reason="stop")
        return completion


class _ServedModel:
    """The model behind the server, asked with the key of the client and past the middleware."""

    def __init__(self, app: ServerApp) -> None:
        self._app = app

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        scope, body = _chat.get()
        request = {
            "model": body.get("model"),
            "messages": [chat_message(message) for message in messages],
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
        }
        status, answer = await _call_server(self._app, scope, request)
        if status != 200:
            raise PolicyError(f"the server answered the revision with {status}; nothing was sent")
        completion = read_chat_completion(answer)
        usage = completion.usage.as_usage(completion.model) if completion.usage else None
        return Reply(text=completion.choices[0].message.content or "", usage=usage)


async def _call_server(app: ServerApp, scope: Event, body: Json) -> tuple[int, bytes]:
    raw = msgspec.json.encode(body)
    size = (b"content-length", str(len(raw)).encode())
    headers = [pair for pair in scope["headers"] if pair[0] != size[0]]
    status, parts = 500, []

    async def receive() -> Event:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(event: Event) -> None:
        nonlocal status
        status = event.get("status", status)
        parts.append(event.get("body", b""))

    await app({**scope, "headers": [*headers, size]}, receive, send)
    return status, b"".join(parts)


def _cut_chunks(completion: Json) -> Iterator[Json]:
    """Yield the chunks of a stream for a completion that was reviewed."""
    head = {key: completion[key] for key in ("id", "created", "model") if key in completion}
    head["object"] = "chat.completion.chunk"
    for choice in completion["choices"]:
        message = choice["message"]
        whole = {key: message[key] for key in REASONING if message.get(key)}
        words = [{"content": word} for word in drafts.cut_pieces(message.get("content") or "")]
        calls = [call | {"index": i} for i, call in enumerate(message.get("tool_calls") or ())]
        tail = [{"tool_calls": calls}] if calls else []
        for delta in [{"role": "assistant"} | whole, *words, *tail]:
            yield head | {"choices": [{"index": choice["index"], "delta": delta}]}
        end = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
        yield head | {"choices": [end]}
    yield head | {"choices": [], "usage": completion["usage"]}


async def _read_body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        event = await receive()
        parts.append(event.get("body", b""))
        more = event.get("more_body", False)
    return b"".join(parts)


async def _send_body(
    send: Send, status: int, body: bytes, kind: bytes = b"application/json"
) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
