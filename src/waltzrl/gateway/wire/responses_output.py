"""Writes replies and streams in the format of the Responses API."""

import base64
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import Answer, ChatRequest, Json, TokenAlternative, TokenLogprob
from waltzrl.gateway.wire.format import (
    COMMENT,
    arguments_of,
    call_input,
    count_of,
    encode_event,
    error_object,
    total_tokens,
)

REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The finish of a reply -> why its response is incomplete; with any other finish it is complete."""
FAILURES = {"rate_limit": "rate_limit_exceeded", "invalid_request": "invalid_prompt"}
"""The code of a failed response by the kind of its error; all other kinds are a `server_error`."""


def output_items(chat: ChatRequest, answer: Answer) -> list[Json]:
    """Return the output items: reasoning, a message unless there are only calls, the calls."""
    reply = answer.reply
    items: list[Json] = []
    if reply.reasoning:
        part = reasoning_part(chat, reply.reasoning)
        items.append(text_item(chat, "reasoning", part, "completed"))
    if reply.text or not reply.calls:
        part = text_part(reply.text, answer.details.logprobs)
        if answer.refused:
            part = refusal_part(reply.text)
        items.append(text_item(chat, "message", part, final_status(answer)))
    items += [call_item(chat, answer, index) for index in range(len(reply.calls))]
    return items


def final_status(answer: Answer) -> str:
    return "incomplete" if answer.finish in REASONS else "completed"


def text_item(
    chat: ChatRequest, kind: str, part: dict[str, Json] | None, status: str
) -> dict[str, Json]:
    """Return the item `message` or `reasoning`; without a part it has no content yet."""
    parts: list[Json] = [] if part is None else [part]
    own: dict[str, Json] = {"role": "assistant"}
    if kind == "reasoning":
        own = {"summary": []}
        if chat.reasoning_summary:
            own, parts = {"summary": parts}, []
    if part is not None and kind == "reasoning" and chat.encodes_reasoning:
        encoded = base64.b64encode(str(part["text"]).encode()).decode()
        own["encrypted_content"] = f"{ENCODED}{encoded}"
    return {
        "id": f"{ID_PREFIXES[kind]}_{chat.prompt.id}",
        "type": kind,
        "status": status,
        **own,
        "content": parts,
    }


ID_PREFIXES = {"message": "msg", "reasoning": "rs"}


def text_part(text: str, logprobs: Sequence[TokenLogprob] | None = None) -> dict[str, Json]:
    """Return the only part of the message."""
    tokens: list[Json] = msgspec.to_builtins([_with_bytes(token) for token in logprobs or ()])
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": tokens}


Token = TypeVar("Token", bound=TokenAlternative)


def _with_bytes(token: Token) -> Token:
    """Return a token with its bytes, and those of its alternatives: unlike a chat's, all have some.

    Where the server tells none, the name of a token is its text.
    """
    if isinstance(token, TokenLogprob):
        tops = [_with_bytes(top) for top in token.top_logprobs]
        token = msgspec.structs.replace(token, top_logprobs=tops)
    if token.bytes is None:
        token = msgspec.structs.replace(token, bytes=[*token.token.encode()])
    return token


def refusal_part(text: str) -> dict[str, Json]:
    """Return the only part of a message that refuses."""
    return {"type": "refusal", "refusal": text}


def reasoning_part(chat: ChatRequest, text: str) -> dict[str, Json]:
    """Return the only part of the reasoning, or of its summary, which is all of it.

    Clients that ask for a summary read nothing else.
    """
    return {"type": "summary_text" if chat.reasoning_summary else "reasoning_text", "text": text}


ENCODED = "waltzrl-base64:"
"""The mark that precedes reasoning in `encrypted_content`. It is encoded only: the item has it in
words.
"""


def decode_reasoning(encrypted: str) -> str:
    """Return the reasoning in our `encrypted_content`; nothing of another's, which is opaque."""
    if not encrypted.startswith(ENCODED):
        return ""
    try:
        return base64.b64decode(encrypted.removeprefix(ENCODED), validate=True).decode()
    except ValueError:
        return ""


def call_item(chat: ChatRequest, answer: Answer, index: int) -> dict[str, Json]:
    """Return a call; of a reply that was cut off, the last is not complete."""
    calls = answer.reply.calls
    call, is_cut = calls[index], answer.finish in REASONS and index == len(calls) - 1
    kind, prefix, key = CALL_ITEMS["custom" if call.kind == "custom" else "function"]
    item: dict[str, Json] = {
        "id": f"{prefix}_{chat.prompt.id}_{index}",
        "type": kind,
        "status": "incomplete" if is_cut else "completed",
        "call_id": call.id,
        "name": call.name,
        **chat.tool_names.get(call.name, {}),
        key: call.arguments if is_cut or call.kind == "custom" else arguments_of(call),
    }
    if item["type"] == SEARCH_CALL:  # whose arguments are an object
        item[key] = call_input(call)
    return item


SEARCH_CALL = "tool_search_call"
CALL_ITEMS = {
    "function": ("function_call", "fc", "arguments"),
    "custom": ("custom_tool_call", "ctc", "input"),
}
"""The kind of a tool -> type of the item of its call, prefix of the item's id, key of its text."""


def build_response(
    chat: ChatRequest,
    answer: Answer | None = None,
    failure: RequestError | None = None,
    created: int | None = None,
) -> dict[str, Json]:
    """Return the response object; without an answer it is in progress, or failed.

    It was created when the request came, unless `created` says otherwise.
    """
    status = final_status(answer) if answer else "in_progress"
    reason = REASONS.get(answer.finish) if answer else None
    return {
        "id": f"resp_{chat.prompt.id}",
        "object": "response",
        "created_at": created or int(chat.created),
        "status": "failed" if failure else status,
        "error": _write_failure(failure) if failure else None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": chat.model,
        "output": output_items(chat, answer) if answer else [],
        "usage": _write_usage(answer) if answer else None,
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "service_tier": answer.details.service_tier if answer else None,
        **_echo_options(chat),
    }


def _echo_options(chat: ChatRequest) -> dict[str, Json]:
    """Return the request's options in the format of this API."""
    body, summary = chat.body, chat.reasoning_summary or None
    tools, tool_choice = body.get("tools"), body.get("tool_choice")
    response_format = body.get("response_format")
    return {
        "instructions": None,
        "max_output_tokens": body.get("max_tokens"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "reasoning": {"effort": body.get("reasoning_effort"), "summary": summary},
        "temperature": body.get("temperature"),
        "text": {
            "format": _flatten_type(response_format, "json_schema")
            if response_format
            else {"type": "text"}
        },
        "tool_choice": _flatten_tool(tool_choice) if tool_choice else "auto",
        "tools": [_flatten_tool(tool) for tool in tools] if isinstance(tools, list) else [],
        "top_p": body.get("top_p"),
    }


def _flatten_type(nested: Json, key: str) -> Json:
    """Remove the nesting that chats have and this API does not."""
    inner = nested.get(key) if isinstance(nested, dict) else None
    return {"type": key, **inner} if isinstance(inner, dict) else nested


def _flatten_tool(tool: Json) -> Json:
    flat = _flatten_type(_flatten_type(tool, "function"), "custom")
    if isinstance(flat, dict) and flat.get("type") == "allowed_tools":
        flat = _flatten_type(flat, "allowed_tools")
        assert isinstance(flat, dict), "an object stays one"
        tools = flat.get("tools")
        return {**flat, "tools": [*map(_flatten_tool, tools)] if isinstance(tools, list) else []}
    if isinstance(flat, dict) and isinstance(flat.get("format"), dict):
        return {**flat, "format": _flatten_type(flat["format"], "grammar")}
    return flat


def _write_usage(answer: Answer) -> dict[str, Json]:
    read, generated = total_tokens([answer])
    details: dict[str, Json] = {
        key: count_of([answer], "prompt_tokens_details", key)
        for key in ("cached_tokens", "cache_write_tokens")
    }
    reasoning = count_of([answer], "completion_tokens_details", "reasoning_tokens")
    return {
        "input_tokens": read,
        "input_tokens_details": details,
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": read + generated,
    }


def _write_failure(error: RequestError) -> dict[str, Json]:
    # Agents compact by the upstream's own code for a conversation that is too long.
    code = error.code or FAILURES.get(error.kind, "server_error")
    return {"code": code, "message": error_object(error)["message"]}


class ResponsesStream:
    """Writes named, numbered events: items of reasoning, of text, and of calls."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        self._reasoning = "reasoning_summary" if chat.reasoning_summary else "reasoning"
        """What events of reasoning are named after."""
        self._number = 0
        self._texts: list[str] = []
        """The text of the open item so far."""
        self._refusal = ""
        """The text of the open message if it refuses."""
        self._part = 0
        """The index of the open item's last part."""
        self._done: list[Json] = []
        """The items that are complete."""
        self._items = 0
        """The number of output items so far."""
        self._open = ""
        """`reasoning` or `message`, the item that is being written, the last; empty if it is
        complete."""

    def open(self) -> bytes:
        opening: Json = build_response(self._chat)
        return self._event("response.created", response=opening) + self._event(
            "response.in_progress", response=opening
        )

    def keepalive(self) -> bytes:
        return COMMENT

    def reasoning(self, choice: int, delta: str) -> bytes:
        opening = b""
        if self._open != "reasoning":
            opening = self._open_item("reasoning", reasoning_part(self._chat, ""))
        self._texts.append(delta)
        return opening + self._content(f"response.{self._reasoning}_text.delta", delta=delta)

    def text(self, choice: int, delta: str) -> bytes:
        if not delta:
            return b""
        opening = b"" if self._open == "message" else self._open_message(text_part(""))
        self._texts.append(delta)
        return opening + self._content("response.output_text.delta", delta=delta, logprobs=[])

    def refusal(self, choice: int, text: str) -> bytes:
        """Write a refusal; the complete message leaves out the text before it, half an object."""
        part = refusal_part("")
        if self._open == "message":
            self._part += 1
            opening = self._part_event("added", part)
        else:
            opening = self._open_message(part)
        self._refusal = text
        return opening + self._content("response.refusal.delta", delta=text)

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Write an event of our own type; the events that close the message have the new text."""
        self._texts = ["".join(self._texts)[:start], replacement]
        return self._event("waltz.retract", choice=choice, start=start, replacement=replacement)

    def finish(self, choice: int, answer: Answer) -> bytes:
        calls = answer.reply.calls
        opening = b"" if self._open == "message" or calls else self._open_message(text_part(""))
        closing = (
            self._close_message(answer) if self._open == "message" else self._close_reasoning()
        )
        written = b"".join(self._call(answer, index) for index in range(len(calls)))
        return opening + closing + written

    def close(self, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        completed = build_response(self._chat, answer)
        if answer.refused:  # its text may begin with what was sent of a draft
            completed["output"] = self._done
        return self._event(f"response.{final_status(answer)}", response=completed)

    def error(self, error: RequestError, request_id: str = "") -> bytes:
        """Write the failed response and an `error` event, on which the official clients raise."""
        failed = build_response(self._chat, failure=error)
        described = error_object(error)
        return self._event("response.failed", response=failed) + self._event(
            "error",
            message=described["message"],
            code=described["code"],
            param=described["param"],
            error=described,
            request_id=request_id or None,
        )

    def _open_message(self, part: dict[str, Json]) -> bytes:
        return self._close_reasoning() + self._open_item("message", part)

    def _open_item(self, kind: str, part: dict[str, Json]) -> bytes:
        self._open, self._texts, self._part = kind, [], 0
        self._items += 1
        item = text_item(self._chat, kind, None, "in_progress")
        return self._event(
            "response.output_item.added", output_index=self._items - 1, item=item
        ) + self._part_event("added", part)

    def _close_reasoning(self) -> bytes:
        if not self._open:
            return b""
        part = reasoning_part(self._chat, "".join(self._texts))
        done = self._content(f"response.{self._reasoning}_text.done", text=part["text"])
        return done + self._close_item(part, "completed")

    def _close_message(self, answer: Answer) -> bytes:
        if self._refusal:
            done = self._content("response.refusal.done", refusal=self._refusal)
            return done + self._close_item(refusal_part(self._refusal), final_status(answer))
        part = text_part("".join(self._texts), answer.details.logprobs)
        done = self._content(
            "response.output_text.done", text=part["text"], logprobs=part["logprobs"]
        )
        return done + self._close_item(part, final_status(answer))

    def _close_item(self, part: dict[str, Json], status: str) -> bytes:
        item = text_item(self._chat, self._open, part, status)
        closing = self._part_event("done", part)
        self._open = ""
        self._done.append(item)
        return closing + self._event(
            "response.output_item.done", output_index=self._items - 1, item=item
        )

    def _call(self, answer: Answer, number: int) -> bytes:
        item = call_item(self._chat, answer, number)
        kind, key = "response.function_call_arguments", "arguments"
        named: dict[str, Json] = {"name": item["name"]}
        if item["type"] == "custom_tool_call":
            kind, key, named = "response.custom_tool_call_input", "input", {}
        empty: Json = "" if isinstance(item[key], str) else {}
        opening: dict[str, Json] = {**item, "status": "in_progress", key: empty}
        place: dict[str, Json] = {"output_index": self._items}
        text_place: dict[str, Json] = {**place, "item_id": item["id"]}
        self._items += 1
        self._done.append(item)
        events = self._event("response.output_item.added", **place, item=opening)
        if item["type"] != SEARCH_CALL:
            events += self._event(f"{kind}.delta", **text_place, delta=item[key])
            events += self._event(f"{kind}.done", **text_place, **named, **{key: item[key]})
        return events + self._event("response.output_item.done", **place, item=item)

    def _part_event(self, what: str, part: dict[str, Json]) -> bytes:
        """Write that a part of the open item was added or is done."""
        named = "reasoning_summary_part" if self._in_summary else "content_part"
        return self._content(f"response.{named}.{what}", part=part)

    @property
    def _in_summary(self) -> bool:
        return self._open == "reasoning" and self._chat.reasoning_summary != ""

    def _content(self, kind: str, **fields: Json) -> bytes:
        """Write an event of the open item's last part."""
        place: dict[str, Json] = {
            "item_id": f"{ID_PREFIXES[self._open]}_{self._chat.prompt.id}",
            "output_index": self._items - 1,
            "summary_index" if self._in_summary else "content_index": self._part,
        }
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Json) -> bytes:
        data = msgspec.json.encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return encode_event(data, kind)
