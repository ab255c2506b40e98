"""A reply and a stream as the Responses API spells them: a message item, then function calls."""

import time
from collections.abc import Mapping, Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Answer, ChatRequest, Json
from waltzrl.serving.wire.format import COMMENT, error_object, event, total_tokens

REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete; every other finish completes it."""


def output_items(chat: ChatRequest, answer: Answer) -> list[Json]:
    """Return the items of an answer; the message is left out when there are only calls."""
    reply = answer.reply
    items: list[Json] = []
    if reply.text or not reply.calls:
        items.append(message_item(chat, reply.text, ended(answer)))
    items += [call_item(chat, place, call) for place, call in enumerate(reply.calls)]
    return items


def ended(answer: Answer) -> str:
    """Return the status in which an answer ends."""
    return "incomplete" if answer.finish in REASONS else "completed"


def message_item(chat: ChatRequest, text: str | None, status: str) -> dict[str, Json]:
    """Return the message; without a part while its text is None."""
    return {
        "id": f"msg_{chat.prompt.id}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [text_part(text)],
    }


def text_part(text: str) -> dict[str, Json]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(chat: ChatRequest, place: int, call: ToolCall) -> dict[str, Json]:
    return {
        "id": f"fc_{chat.prompt.id}_{place}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def response(
    chat: ChatRequest,
    created: int,
    output: Sequence[Json] = (),
    answer: Answer | None = None,
    failure: RequestError | None = None,
) -> dict[str, Json]:
    """Return the object around the output: in progress without an answer, or failed."""
    status = ended(answer) if answer else "in_progress"
    reason = REASONS.get(answer.finish) if answer else None
    return {
        "id": f"resp_{chat.prompt.id}",
        "object": "response",
        "created_at": created,
        "status": "failed" if failure else status,
        "error": _error(failure) if failure else None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": chat.model,
        "output": list(output),
        "usage": _usage(answer) if answer else None,
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        **_echo(chat.body),
    }


def _echo(chat: Mapping[str, Json]) -> dict[str, Json]:
    """Repeat the request's options in the words of this API."""
    tools, chosen, form = chat.get("tools"), chat.get("tool_choice"), chat.get("response_format")
    return {
        "instructions": None,
        "max_output_tokens": chat.get("max_tokens"),
        "metadata": chat.get("metadata") or {},
        "parallel_tool_calls": chat.get("parallel_tool_calls", True),
        "reasoning": {"effort": chat.get("reasoning_effort"), "summary": None},
        "temperature": chat.get("temperature"),
        "text": {"format": _flat(form, "json_schema") if form else {"type": "text"}},
        "tool_choice": _flat(chosen, "function") if chosen else "auto",
        "tools": [_flat(tool, "function") for tool in tools] if isinstance(tools, list) else [],
        "top_p": chat.get("top_p"),
    }


def _flat(nested: Json, key: str) -> Json:
    """Undo the nesting that a chat has and this API has not."""
    inner = nested.get(key) if isinstance(nested, dict) else None
    return {"type": key, **inner} if isinstance(inner, dict) else nested


def _usage(answer: Answer) -> dict[str, Json]:
    read, written = total_tokens([answer])
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


def _error(error: RequestError) -> dict[str, Json]:
    code = "rate_limit_exceeded" if error.kind == "rate_limit" else "server_error"
    return {"code": code, "message": error_object(error)["message"]}


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

    def error(self, error: RequestError) -> bytes:
        """Write the failed response, and an `error` event, at which strict clients raise."""
        failed = response(self._chat, self._created, failure=error)
        described = error_object(error)
        return self._event("response.failed", response=failed) + self._event(
            "error",
            message=described["message"],
            code=described["code"],
            param=described["param"],
            error=described,
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
