"""A stream of chat-completion chunks."""

import time
from collections.abc import Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Answer, ChatRequest
from waltzrl.serving.wire.openai_error import error_object
from waltzrl.serving.wire.sse import COMMENT, DONE, event
from waltzrl.serving.wire.usage import chat_usage

ROLE = b'{"role":"assistant","content":"","refusal":null}'


class ChatStream:
    """Writes `data:` lines without names, `[DONE]` last."""

    def __init__(self, chat: ChatRequest) -> None:
        """Prepare what all chunks of `chat` have in common."""
        self._chat = chat
        common = {
            "id": f"chatcmpl-{chat.prompt.id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": chat.model,
        }
        self._head = b'%b,"choices":' % msgspec.json.encode(common)[:-1]
        self._tail = b',"usage":null}' if chat.stream_usage else b"}"

    def open(self) -> bytes:
        return b"".join(self._chunk(choice, ROLE) for choice in range(self._chat.n))

    def keepalive(self) -> bytes:
        return COMMENT

    def text(self, choice: int, delta: str) -> bytes:
        return self._chunk(choice, b'{"content":%b}' % msgspec.json.encode(delta))

    def calls(self, choice: int, calls: Sequence[ToolCall]) -> bytes:
        return b"".join(
            self._chunk(choice, b'{"tool_calls":[%b]}' % _call(place, call))
            for place, call in enumerate(calls)
        )

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Write a chunk without choices: what does not know its extra key has nothing to read.

        It has no event name, because some clients take chunks of named events for another type.
        """
        retraction = msgspec.json.encode(
            {"choice": choice, "start": start, "replacement": replacement}
        )
        return event(b'%b[],"waltz.retract":%b%b' % (self._head, retraction, self._tail))

    def finish(self, choice: int, answer: Answer) -> bytes:
        return self._chunk(choice, b"{}", b'"%b"' % answer.finish.encode())

    def close(self, answers: Sequence[Answer]) -> bytes:
        if not self._chat.stream_usage:
            return DONE
        usage = msgspec.json.encode(chat_usage(answers))
        return event(b'%b[],"usage":%b}' % (self._head, usage)) + DONE

    def problem(self, problem: RequestError) -> bytes:
        return event(msgspec.json.encode({"error": error_object(problem)})) + DONE

    def _chunk(self, choice: int, delta: bytes, finish: bytes = b"null") -> bytes:
        return b'data: %b[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b}]%b\n\n' % (
            self._head,
            choice,
            delta,
            finish,
            self._tail,
        )


def _call(place: int, call: ToolCall) -> bytes:
    return msgspec.json.encode(
        {
            "index": place,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
    )
