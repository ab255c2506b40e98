"""A reply as the Responses API spells it: one message item, then a function call each."""

from collections.abc import Mapping, Sequence

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Answer, ChatRequest, Json
from waltzrl.serving.wire.openai_error import error_object
from waltzrl.serving.wire.usage import total_tokens

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


def _error(problem: RequestError) -> dict[str, Json]:
    code = "rate_limit_exceeded" if problem.kind == "rate_limit" else "server_error"
    return {"code": code, "message": error_object(problem)["message"]}
