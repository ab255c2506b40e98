"""A stream of Messages events."""

from collections.abc import Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Answer, ChatRequest, Json
from waltzrl.serving.wire.messages_output import (
    STOP_REASONS,
    call_block,
    call_input,
    error_body,
    message,
    usage,
)
from waltzrl.serving.wire.sse import event

PING = event(b'{"type":"ping"}', "ping")


class MessagesStream:
    """Writes named events; the text is block 0 when there is any."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        self._blocks = 0
        """Content blocks that were opened."""
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

    def calls(self, choice: int, calls: Sequence[ToolCall]) -> bytes:
        return self._close_text() + b"".join(self._call(call) for call in calls)

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Write an event of a type that clients do not know."""
        return _event("waltz.retract", index=0, start=start, replacement=replacement)

    def finish(self, choice: int, answer: Answer) -> bytes:
        delta: Json = {"stop_reason": STOP_REASONS[answer.finish], "stop_sequence": None}
        return self._close_text() + _event("message_delta", delta=delta, usage=usage(answer))

    def close(self, answers: Sequence[Answer]) -> bytes:
        return _event("message_stop")

    def problem(self, problem: RequestError) -> bytes:
        return event(msgspec.json.encode(error_body(problem, self._chat.prompt.id)), "error")

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
        given = msgspec.json.encode(call_input(call)).decode()
        return (
            _event("content_block_start", index=index, content_block=call_block(call, {}))
            + _event(
                "content_block_delta",
                index=index,
                delta={"type": "input_json_delta", "partial_json": given},
            )
            + _event("content_block_stop", index=index)
        )


def _event(kind: str, **fields: Json) -> bytes:
    return event(msgspec.json.encode({"type": kind, **fields}), kind)
