"""What stands before a server of chat completions has in common: it reads a request and reviews
the answer to it, whichever way both arrive.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote
from uuid import uuid4

import msgspec

from waltzrl.errors import PolicyError, RequestError
from waltzrl.gateway.chat_reader import logprobs_of, tokens_spell
from waltzrl.gateway.guard import Guard
from waltzrl.gateway.pass_through import REPLIES
from waltzrl.gateway.wire.chat import wants_usage
from waltzrl.gateway.wire.fields import REASONING, read_object, read_reply
from waltzrl.gateway.wire.format import DONE, encode_event
from waltzrl.gateway.wire.prompt import prompt_of
from waltzrl.policies.server_json import encode_body, read_json
from waltzrl.records import Prompt, Reply
from waltzrl_integrations import drafts

Json: TypeAlias = dict[str, Any]

CHATS = "/v1/chat/completions"
JSON, EVENTS = "application/json", "text/event-stream"
BESIDE_CHOICES = ("id", "created", "model", "system_fingerprint")
"""Keys of a completion that its chunks have too."""
BESIDE_TEXT = (*REASONING, "refusal", "function_call")
"""Keys of a message that a stream has beside words and tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A request for a chat completion."""

    prompt: Prompt
    body: Json
    """What the server is asked: the request without its wish for a stream, because a stream that
    has begun cannot be revised."""
    streams: bool
    """True if the client asked for a stream."""
    stream_usage: bool
    """True if it asked for token counts at the end of the stream."""


def is_chat(path: str) -> bool:
    """Return whether a path is that of chats.

    Raises:
        RequestError: 403, it is another one that may answer with replies.
    """
    decoded = path
    while (shorter := unquote(decoded)) != decoded:  # whichever number of times a server decodes it
        decoded = shorter
    if path != CHATS and REPLIES.search(decoded):
        message = f"{path} would answer without a review; use {CHATS}"
        raise RequestError(403, "permission", message)
    return path == CHATS


def read_chat(raw: bytes) -> Chat:
    """Read a request.

    Raises:
        RequestError: 400, naming the field.
    """
    body = read_object(raw)
    streams = body.pop("stream", None) is True
    stream_usage = wants_usage(body.pop("stream_options", None))
    prompt = prompt_of(body, uuid4().hex)
    return Chat(prompt=prompt, body=body, streams=streams, stream_usage=stream_usage)


async def review_answer(guard: Guard, chat: Chat, answer: bytes) -> tuple[str, bytes]:
    """Review every choice of an answer, and return its content type and bytes for the client.

    Raises:
        RequestError: 502, it is no chat completion, or nothing could review or revise it.
    """
    try:
        completion = await _review_choices(guard, chat.prompt, _read_completion(answer))
        if not chat.streams:
            return JSON, msgspec.json.encode(completion)
        chunks = _cut_chunks(completion, with_usage=chat.stream_usage)
        events = [encode_event(msgspec.json.encode(chunk)) for chunk in chunks]
    except PolicyError as error:
        raise RequestError(502, "upstream", str(error)) from error
    # JSON of any other shape fails at one of the accesses above.
    except (ValueError, AttributeError, KeyError, TypeError):
        raise RequestError(502, "upstream", "the answer is no chat completion") from None
    return EVENTS, b"".join([*events, DONE])


def _read_completion(answer: bytes) -> Any:
    """Decode an answer; where that has half an emoji, which no client can read, without it."""
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return msgspec.json.decode(encode_body(read_json(answer)))


async def _review_choices(guard: Guard, prompt: Prompt, completion: Json) -> Json:
    for place, choice in enumerate(completion["choices"]):
        message = choice["message"]
        text, added = await drafts.revise(guard, prompt, _read_draft(message))
        if used := completion.get("usage"):
            completion["usage"] = drafts.add_tokens(used, added)
        if text is None:
            _match_logprobs(choice)
        else:
            index, message = choice.get("index", place), {"role": "assistant", "content": text}
            # Whatever else the server put there, such as tool calls, is the draft's.
            choice.clear()
            choice.update(index=index, message=message, finish_reason="stop")
    return completion


def _match_logprobs(choice: Json) -> None:
    """Drop log-probabilities that do not spell the text that was reviewed."""
    tokens, text = logprobs_of(choice.pop("logprobs", None)), choice["message"].get("content")
    if tokens is not None and isinstance(text, str) and tokens_spell(tokens, text):
        choice["logprobs"] = {"content": tokens}


def _read_draft(message: Json) -> Reply:
    try:
        return read_reply(message, "message")
    except RequestError as error:
        raise RequestError(502, "upstream", f"the answer cannot be read: {error}") from error


def _cut_chunks(completion: Json, *, with_usage: bool) -> Iterator[Json]:
    """Yield the chunks of a stream for a completion that was reviewed."""
    head: Json = {key: completion[key] for key in BESIDE_CHOICES if key in completion}
    head["object"] = "chat.completion.chunk"
    for place, choice in enumerate(completion["choices"]):
        message, index = choice["message"], choice.get("index", place)
        whole = {key: message[key] for key in BESIDE_TEXT if message.get(key)}
        content = message.get("content") or ""
        pieces = drafts.cut_pieces(content) if isinstance(content, str) else [content]
        words = [{"content": piece} for piece in pieces]
        # The calls of a stream are numbered, those of a completion are not.
        calls = [call | {"index": i} for i, call in enumerate(message.get("tool_calls") or ())]
        tail = [{"tool_calls": calls}] if calls else []
        for delta in [{"role": "assistant"} | whole, *words, *tail]:
            yield head | {"choices": [{"index": index, "delta": delta}]}
        end = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason") or "stop"}
        if choice.get("logprobs"):
            end["logprobs"] = choice["logprobs"]
        yield head | {"choices": [end]}
    if with_usage:
        yield head | {"choices": [], "usage": completion.get("usage") or None}
