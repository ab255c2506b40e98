"""Writes replies, streams and errors in the format of Anthropic's API."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import Answer, ChatRequest, Json
from waltzrl.gateway.wire.format import (
    call_input,
    count_of,
    encode_event,
    estimate_input,
    total_tokens,
)
from waltzrl.records import ToolCall

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
ERRORS = {
    "invalid_request": "invalid_request_error",
    "authentication": "authentication_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "rate_limit": "rate_limit_error",
    "overloaded": "overloaded_error",
    "unreviewed": "overloaded_error",
    "upstream_timeout": "timeout_error",
}
"""The type of each kind of error; all other kinds are an `api_error`, or with status 503 an
`overloaded_error`, by which agents know that they may try again."""
OVERFLOW = re.compile(
    r"context[ -]?(?:length|window|size)|maximum number of tokens|\bcontext_length_exceeded\b",
    re.IGNORECASE,
)
"""The words of servers, and OpenAI's code, about what is too long for the model's context. Another
word with an underscore is the name of a field, such as `context_window`."""
SIZES = (
    re.compile(r"(\d+) (?:input tokens|in the messages|tokens from the input)"),
    re.compile(r"(\d+)(?: output tokens| in the completion| tokens for the completion|\. This)"),
    re.compile(r"context length (?:is|of)(?: only)? (\d+)"),
)
"""Where they say how many tokens the input has, the reply may have, and the context holds."""


def build_message(chat: ChatRequest, answer: Answer | None) -> dict[str, Json]:
    """Return the message; without an answer, the empty one that opens a stream."""
    content: list[Json] = []
    if answer and answer.reply.reasoning:
        thinking = answer.reply.reasoning
        content.append({"type": "thinking", "thinking": thinking, "signature": SIGNATURE})
    if answer and answer.reply.text:
        content.append({"type": "text", "text": answer.reply.text})
    if answer:
        content += [call_block(call, call_input(call)) for call in answer.reply.calls]
    return {
        "id": f"msg_{chat.prompt.id}",
        "type": "message",
        "role": "assistant",
        "model": chat.model,
        "content": content,
        **describe_ending(chat, answer),
        "usage": count_usage(answer),
    }


def describe_ending(chat: ChatRequest, answer: Answer | None) -> dict[str, Json]:
    """Return why the message ended; the stop sequence only if it is one of the request's."""
    if answer is None:
        return {"stop_reason": None, "stop_sequence": None}
    sequence, stops = answer.details.stop_sequence, chat.body.get("stop")
    if answer.reply.calls and answer.finish == "stop":  # as some upstreams call it
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if answer.finish == "stop" and isinstance(stops, list) and sequence in stops:
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": STOP_REASONS[answer.finish], "stop_sequence": None}


def count_usage(answer: Answer | None) -> dict[str, Json]:
    """Return the token counts; unlike in a chat, those of a cache are counted apart."""
    answers = [answer] if answer else []
    read, generated = total_tokens(answers)
    cached = min(read, count_of(answers, "prompt_tokens_details", "cached_tokens"))
    written = min(read - cached, count_of(answers, "prompt_tokens_details", "cache_write_tokens"))
    return {
        "input_tokens": read - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    }


def call_block(call: ToolCall, arguments: Json) -> dict[str, Json]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def encode_error(error: RequestError, request_id: str = "") -> bytes:
    """Return the body of an error, which names the request."""
    described: dict[str, Json] = {
        "type": ERRORS.get(error.kind, "overloaded_error" if error.status == 503 else "api_error"),
        "message": _describe_error(error),
    }
    if error.code is not None:  # this API has no codes; those of the upstream are kept beside
        described |= {"code": error.code, "param": error.param}
    body = {"type": "error", "error": described, "request_id": request_id or None}
    return msgspec.json.encode(body)


def _describe_error(error: RequestError) -> str:
    """Return the message, after this API's own words if something is too long for the context.

    By them clients know that they have to shorten the conversation, or to ask for less.
    """
    message = str(error)
    if error.status not in (400, 413) or not OVERFLOW.search(f"{error.code} {message}"):
        return message
    read, asked, most = (int(size[1]) if (size := p.search(message)) else 0 for p in SIZES)
    if asked and 0 < read < most:
        sizes = f"{read} + {asked} > {most}, decrease input length or `max_tokens` and try again"
        return f"input length and `max_tokens` exceed context limit: {sizes}; {message}"
    return f"prompt is too long; {message}"


PING = encode_event(b'{"type":"ping"}', "ping")


EMPTY_BLOCKS: Mapping[str, dict[str, Json]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}
"""The kinds of blocks -> a block without its text."""
SIGNATURE = "unsigned"
"""Chat completions sign no reasoning, and clients send no block back whose signature is empty."""


class MessagesStream:
    """Writes named events: blocks of reasoning, of text, and of calls."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        self._blocks = 0
        """The number of content blocks so far."""
        self._open = ""
        """The kind of the block that is being written, the last; empty if it is complete."""

    def open(self) -> bytes:
        message = build_message(self._chat, None)
        # Agents compact by the size that the beginning tells. A chat tells its counts at the end.
        message["usage"] = {**count_usage(None), "input_tokens": estimate_input(self._chat)}
        return _encode_named_event("message_start", message=message) + PING

    def keepalive(self) -> bytes:
        return PING

    def reasoning(self, choice: int, delta: str) -> bytes:
        return self._delta("thinking", delta)

    def text(self, choice: int, delta: str) -> bytes:
        return self._delta("text", delta) if delta else b""

    def refusal(self, choice: int, text: str) -> bytes:
        """Write it as text: the reason why the message ends says that it is a refusal."""
        return self.text(choice, text)

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Write an event of our own type, which other clients ignore."""
        index = self._blocks - 1
        return _encode_named_event(
            "waltz.retract", index=index, start=start, replacement=replacement
        )

    def finish(self, choice: int, answer: Answer) -> bytes:
        delta: Json = describe_ending(self._chat, answer)
        closing = self._close()
        calls = b"".join(self._call(call) for call in answer.reply.calls)
        return (
            closing
            + calls
            + _encode_named_event("message_delta", delta=delta, usage=count_usage(answer))
        )

    def close(self, answers: Sequence[Answer]) -> bytes:
        return _encode_named_event("message_stop")

    def error(self, error: RequestError, request_id: str = "") -> bytes:
        return encode_event(encode_error(error, request_id), "error")

    def _delta(self, kind: str, text: str) -> bytes:
        """Write the next text of a block, and open one unless the last is of this kind."""
        opening = b""
        if self._open != kind:
            opening = self._close() + _encode_named_event(
                "content_block_start", index=self._blocks, content_block=EMPTY_BLOCKS[kind]
            )
            self._open = kind
            self._blocks += 1
        delta: Json = {"type": f"{kind}_delta", kind: text}
        return opening + _encode_named_event(
            "content_block_delta", index=self._blocks - 1, delta=delta
        )

    def _close(self) -> bytes:
        if not self._open:
            return b""
        index = self._blocks - 1
        signature: Json = {"type": "signature_delta", "signature": SIGNATURE}
        signed = (
            _encode_named_event("content_block_delta", index=index, delta=signature)
            if self._open == "thinking"
            else b""
        )
        self._open = ""
        return signed + _encode_named_event("content_block_stop", index=index)

    def _call(self, call: ToolCall) -> bytes:
        index = self._blocks
        self._blocks += 1
        arguments = msgspec.json.encode(call_input(call)).decode()
        return (
            _encode_named_event(
                "content_block_start", index=index, content_block=call_block(call, {})
            )
            + _encode_named_event(
                "content_block_delta",
                index=index,
                delta={"type": "input_json_delta", "partial_json": arguments},
            )
            + _encode_named_event("content_block_stop", index=index)
        )


def _encode_named_event(kind: str, **fields: Json) -> bytes:
    return encode_event(msgspec.json.encode({"type": kind, **fields}), kind)
