"""A stream of Responses events."""

import time
from collections.abc import Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Answer, ChatRequest, Json
from waltzrl.serving.wire.openai_error import error_object
from waltzrl.serving.wire.responses_output import (
    call_item,
    ended,
    message_item,
    output_items,
    response,
    text_part,
)
from waltzrl.serving.wire.sse import COMMENT, event


class ResponsesStream:
    """Writes named, numbered events; the message is item 0 when there is one."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        self._created = int(time.time())
        self._number = 0
        self._words: list[str] = []
        """What the open message says."""
        self._items = 0
        """Output items that were opened."""
        self._message_open = False

    def open(self) -> bytes:
        begun: Json = response(self._chat, self._created)
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def keepalive(self) -> bytes:
        return COMMENT

    def text(self, choice: int, delta: str) -> bytes:
        if not delta:
            return b""
        opening = b"" if self._message_open else self._open_message()
        self._words.append(delta)
        return opening + self._content("response.output_text.delta", delta=delta, logprobs=[])

    def calls(self, choice: int, calls: Sequence[ToolCall]) -> bytes:
        closing = self._close_message("completed") if self._message_open else b""
        return closing + b"".join(self._call(place, call) for place, call in enumerate(calls))

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Write an event of a type that clients do not know; the message ends with the new text."""
        self._words = ["".join(self._words)[:start], replacement]
        return self._event("waltz.retract", choice=choice, start=start, replacement=replacement)

    def finish(self, choice: int, answer: Answer) -> bytes:
        if self._message_open:
            return self._close_message(ended(answer))
        if self._items:
            return b""
        return self._open_message() + self._close_message(ended(answer))

    def close(self, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        whole = response(self._chat, self._created, output_items(self._chat, answer), answer)
        return self._event(f"response.{ended(answer)}", response=whole)

    def problem(self, problem: RequestError) -> bytes:
        """Write the failed response, and an `error` event, at which strict clients raise."""
        failed = response(self._chat, self._created, failure=problem)
        error = error_object(problem)
        return self._event("response.failed", response=failed) + self._event(
            "error",
            message=error["message"],
            code=error["code"],
            param=error["param"],
            error=error,
        )

    def _open_message(self) -> bytes:
        self._message_open = True
        self._items += 1
        item = message_item(self._chat, None, "in_progress")
        return self._event("response.output_item.added", output_index=0, item=item) + self._content(
            "response.content_part.added", part=text_part("")
        )

    def _close_message(self, status: str) -> bytes:
        self._message_open = False
        words = "".join(self._words)
        return (
            self._content("response.output_text.done", text=words, logprobs=[])
            + self._content("response.content_part.done", part=text_part(words))
            + self._event(
                "response.output_item.done",
                output_index=0,
                item=message_item(self._chat, words, status),
            )
        )

    def _call(self, place: int, call: ToolCall) -> bytes:
        item = call_item(self._chat, place, call)
        begun: dict[str, Json] = {**item, "status": "in_progress", "arguments": ""}
        index, item_id = self._items, item["id"]
        self._items += 1
        kind = "response.function_call_arguments"
        return (
            self._event("response.output_item.added", output_index=index, item=begun)
            + self._event(
                f"{kind}.delta", output_index=index, item_id=item_id, delta=call.arguments
            )
            + self._event(
                f"{kind}.done",
                output_index=index,
                item_id=item_id,
                name=call.name,
                arguments=call.arguments,
            )
            + self._event("response.output_item.done", output_index=index, item=item)
        )

    def _content(self, kind: str, **fields: Json) -> bytes:
        """Write an event about the message's only part."""
        item_id = f"msg_{self._chat.prompt.id}"
        return self._event(kind, item_id=item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Json) -> bytes:
        data = msgspec.json.encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return event(data, kind)
