"""A reply, and an error, as Anthropic's API spells them."""

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Answer, ChatRequest, Json
from waltzrl.serving.wire.fields import read_object
from waltzrl.serving.wire.usage import total_tokens

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
    """Return the message; without an answer, as it stands at the start of a stream."""
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
    read, written = total_tokens([answer] if answer else [])
    return {
        "input_tokens": read,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": written,
    }


def call_block(call: ToolCall, given: Json) -> dict[str, Json]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def call_input(call: ToolCall) -> Json:
    """Return the arguments as the object that this API demands.

    What the model wrote need not be one; then it stands, as it was written, under `unreadable`,
    so that the tool refuses it and the model sees why.
    """
    try:
        return read_object(call.arguments.encode() or b"{}")
    except RequestError:
        return {"unreadable": call.arguments}


def error_body(problem: RequestError, request_id: str) -> dict[str, Json]:
    kind = ERRORS.get(problem.kind, "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": str(problem)},
        "request_id": request_id or None,
    }
