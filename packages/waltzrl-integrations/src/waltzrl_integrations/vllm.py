"""vLLM's OpenAI server: a middleware that reviews every chat before it leaves.

vllm serve MODEL --middleware waltzrl_integrations.vllm.ReviewMiddleware

It is plain ASGI, for any server of chat completions; the server's own model revises.
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

import msgspec

from waltzrl.errors import PolicyError, RequestError
from waltzrl.gateway.guard_opening import open_guard
from waltzrl.gateway.wire.format import encode_error
from waltzrl.policies import Sampling
from waltzrl.policies.chat_completion import chat_message, read_chat_completion
from waltzrl.records import Message, Reply
from waltzrl_integrations.chats import (
    JSON,
    Json,
    is_chat,
    read_chat,
    review_answer,
)

Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
ServerApp: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]

WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
"""The methods of requests that ask for no reply, such as a browser's before it sends one."""
OF_THE_BODY = (b"content-length", b"content-type", b"content-encoding", b"transfer-encoding")
"""The headers that the reviewed body has of its own."""
_chat: ContextVar[tuple[Event, Receive, Json]] = ContextVar("chat")
"""The request that is being answered, its later events, and its body: a revision has its key and
its model, and ends when its client disconnects."""


class ReviewMiddleware:
    """Reviews and revises chats, streams included, and refuses all other routes with replies."""

    reviewer: str | None = None
    """Who reviews, as in `open_guard`; a subclass names another. None is the rules."""

    def __init__(self, app: ServerApp) -> None:
        self._app = app
        self._guard = open_guard(self.reviewer, upstream=_ServedModel(app))

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # 1008 is the code of a violated policy.
            await send({"type": "websocket.close", "code": 1008, "reason": "not reviewed"})
            return
        try:
            reviewed = scope["type"] == "http" and is_chat(scope["path"])
            if reviewed and scope["method"] not in WITHOUT_BODY:
                await self._answer(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        except RequestError as error:
            await _send_body(send, error.status, JSON, encode_error(error))

    async def _answer(self, scope: Event, receive: Receive, send: Send) -> None:
        chat = read_chat(await _read_body(receive))
        _chat.set((scope, receive, chat.body))
        kind = JSON
        status, headers, answer = await _call_server(self._app, scope, receive, chat.body)
        if status == 200:
            kind, answer = await review_answer(self._guard, chat, answer)
        await _send_body(send, status, kind, answer, headers)


class _ServedModel:
    """The model behind the server, asked with the key of the client and past the middleware."""

    def __init__(self, app: ServerApp) -> None:
        self._app = app

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        scope, receive, body = _chat.get()
        request = {
            "model": body.get("model"),
            "messages": [chat_message(message) for message in messages],
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
        }
        status, _, answer = await _call_server(self._app, scope, receive, request)
        if status != 200:
            raise PolicyError(f"the server answered the revision with {status}; nothing was sent")
        completion = read_chat_completion(answer)
        usage = completion.usage.as_usage(completion.model) if completion.usage else None
        return Reply(text=completion.choices[0].message.content or "", usage=usage)


async def _call_server(
    app: ServerApp, scope: Event, receive: Receive, body: Json
) -> tuple[int, list[Header], bytes]:
    """Return the status of the server's answer, its headers but those of its body, and its body."""
    raw = msgspec.json.encode(body)
    size = (b"content-length", str(len(raw)).encode())
    # The body is another than the client's, and a compressed answer could not be read.
    headers = [pair for pair in scope["headers"] if pair[0] not in (size[0], b"accept-encoding")]
    status, parts = 500, []
    answered: Sequence[Header] = ()

    whole = iter([{"type": "http.request", "body": raw, "more_body": False}])

    async def receive_event() -> Event:
        # After the body only the client's own events: vLLM waits for it to disconnect.
        return next(whole, None) or await receive()

    async def send(event: Event) -> None:
        nonlocal status, answered
        status, answered = event.get("status", status), event.get("headers", answered)
        parts.append(event.get("body", b""))

    await app({**scope, "headers": [*headers, size]}, receive_event, send)
    kept = [(name, value) for name, value in answered if name.lower() not in OF_THE_BODY]
    return status, kept, b"".join(parts)


async def _read_body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        event = await receive()
        parts.append(event.get("body", b""))
        more = event.get("more_body", False)
    return b"".join(parts)


async def _send_body(
    send: Send, status: int, kind: str, body: bytes, others: Sequence[Header] = ()
) -> None:
    size = (b"content-length", str(len(body)).encode())
    headers = [(b"content-type", kind.encode()), size, *others]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
