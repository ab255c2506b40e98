"""Writes replies, streams and errors in the format of Anthropic's API."""

from collections.abc import Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Answer, ChatRequest, Json
from waltzrl.serving.wire.fields import read_object
from waltzrl.serving.wire.format import count_of, event, total_tokens

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
    "upstream_timeout": "timeout_error",
}
"""Kind -> type; all other kinds are an `api_error`."""


def message(chat: ChatRequest, answer: Answer | None) -> dict[str, Json]:
    """Return the message; without an answer, the empty one that opens a stream."""
    content: list[Json] = []
    if answer and answer.reply.text:
        content.append({"type": "text", "text": answer.reply.text, "citations": None})
    if answer:
        content += [call_block(call, call_input(call)) for call in answer.reply.calls]
    return {
        "id": f"msg_{chat.prompt.id}",
        "type": "message",
        "role": "assistant",
        "model": chat.model,
        "content": content,
        "stop_reason": STOP_REASONS[answer.finish] if answer else None,
        "stop_sequence": None,
        "usage": usage(answer),
    }


def usage(answer: Answer | None) -> dict[str, Json]:
    """Return the token counts; unlike in a chat, those read from a cache are counted apart."""
    answers = [answer] if answer else []
    read, generated = total_tokens(answers)
    cached = min(read, count_of(answers, "prompt_tokens_details", "cached_tokens"))
    return {
        "input_tokens": read - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    }


def call_block(call: ToolCall, arguments: Json) -> dict[str, Json]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def call_input(call: ToolCall) -> Json:
    """Return the arguments as the object that this API requires.

    If the model generated no valid object, its text is returned under `unreadable`, so that the
    tool refuses it and the model sees why.
    """
    try:
        return read_object(call.arguments.encode() or b"{}")
    except RequestError:
        return {"unreadable": call.arguments}


def error_body(error: RequestError, request_id: str) -> dict[str, Json]:
    described: dict[str, Json] = {
        "type": ERRORS.get(error.kind, "api_error"),
        "message": str(error),
    }
    if error.code is not None:  # this API has no codes; those of the upstream are kept beside
        described |= {"code": error.code, "param": error.param}
    return {
        "type": "error",
        "error": described,
        "request_id": request_id or None,
    }


PING = event(b'{"type":"ping"}', "ping")


class MessagesStream:
    """Writes named events; the text, if any, is block 0."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        self._blocks = 0
        """Number of content blocks so far."""
        self._text_open = False

    def open(self) -> bytes:
        return _event("message_start", message=message(self._chat, None)) + PING

    def keepalive(self) -> bytes:
        return PING

    def text(self, choice: int, delta: str) -> bytes:
        if not delta:
            return b""
        opening = b"" if self._text_open else self._open_text()
        return opening + _event(
            "content_block_delta", index=0, delta={"type": "text_delta", "text": delta}
        )

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Write an event of our own type, which other clients ignore."""
        return _event("waltz.retract", index=0, start=start, replacement=replacement)

    def finish(self, choice: int, answer: Answer) -> bytes:
        delta: Json = {"stop_reason": STOP_REASONS[answer.finish], "stop_sequence": None}
        calls = b"".join(self._call(call) for call in answer.reply.calls)
        ending = _event("message_delta", delta=delta, usage=usage(answer))
        return self._close_text() + calls + ending

    def close(self, answers: Sequence[Answer]) -> bytes:
        return _event("message_stop")

    def error(self, error: RequestError, request_id: str = "") -> bytes:
        return event(msgspec.json.encode(error_body(error, request_id)), "error")

    def _open_text(self) -> bytes:
        self._text_open = True
        self._blocks += 1
        block: Json = {"type": "text", "text": ""}
        return _event("content_block_start", index=0, content_block=block)

    def _close_text(self) -> bytes:
        if not self._text_open:
            return b""
        self._text_open = False
        return _event("content_block_stop", index=0)

    def _call(self, call: ToolCall) -> bytes:
        index = self._blocks
        self._blocks += 1
        arguments = msgspec.json.encode(call_input(call)).decode()
        return (
            _event("content_block_start", index=index, content_block=call_block(call, {}))
            + _event(
                "content_block_delta",
                index=index,
                delta={"type": "input_json_delta", "partial_json": arguments},
            )
            + _event("content_block_stop", index=index)
        )


def _event(kind: str, **fields: Json) -> bytes:
    return event(msgspec.json.encode({"type": kind, **fields}), kind)
