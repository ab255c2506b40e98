"""`POST /v1/responses`: read as a chat, and the chat's reply written as output items."""

import time
from collections.abc import Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.serving.exchange import Answer, Api, ChatRequest, Json
from waltzrl.serving.wire.fields import (
    MOST_TOKENS,
    as_bool,
    as_count,
    as_list,
    as_name,
    as_object,
    as_text,
    check_sampling,
    read_object,
    subject_of,
    unsupported,
    wrong,
)
from waltzrl.serving.wire.openai_error import error_object
from waltzrl.serving.wire.responses_input import chat_messages
from waltzrl.serving.wire.responses_output import output_items, response
from waltzrl.serving.wire.responses_stream import ResponsesStream
from waltzrl.serving.wire.turns import prompt_of

api: Api = "responses"

RESPELT = (
    "input",
    "instructions",
    "max_output_tokens",
    "messages",
    "n",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
)
STATE = ("background", "previous_response_id", "conversation", "prompt")
DROPPED = (
    *STATE,
    "context_management",
    "include",
    "max_tool_calls",
    "store",
    "stream_options",
    "top_logprobs",
    "truncation",
)
"""Keys that say nothing to a chat: the gateway keeps no state and runs no tools."""


def read(raw: bytes, request_id: str) -> ChatRequest:
    """Read a request; see `Dialect.read`."""
    body = read_object(raw)
    for key in STATE:
        if body.get(key) not in (None, False):
            raise unsupported(key, "the gateway keeps no state; send the whole conversation")
    stream = as_bool(body.pop("stream", None), "stream")
    for key in DROPPED:
        body.pop(key, None)
    chat = _as_chat(body)
    check_sampling(chat)
    return ChatRequest(
        api=api,
        prompt=prompt_of(chat["messages"], request_id),
        body=chat,
        model=as_name(chat.get("model"), "model"),
        stream=stream,
        subject=subject_of(chat),
    )


def write(chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
    """Write a reply; the API has one choice."""
    return msgspec.json.encode(
        response(chat, int(time.time()), output_items(chat, answers[0]), answers[0])
    )


def writer(chat: ChatRequest) -> ResponsesStream:
    """Return the writer of this request's stream."""
    return ResponsesStream(chat)


def problem(problem: RequestError, request_id: str = "") -> bytes:
    """Write an error."""
    return msgspec.json.encode({"error": error_object(problem)})


def _as_chat(body: dict[str, Json]) -> dict[str, Json]:
    """Spell the request as a chat; keys without a chat's counterpart stay as they are."""
    chat: dict[str, Json] = {key: value for key, value in body.items() if key not in RESPELT}
    chat["messages"] = chat_messages(body.get("instructions"), body.get("input"))
    if body.get("max_output_tokens") is not None:
        limit = as_count(body["max_output_tokens"], "max_output_tokens", MOST_TOKENS)
        chat["max_tokens"] = limit
    if body.get("tools") is not None:
        tools = as_list(body["tools"], "tools")
        chat["tools"] = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools)]
    if body.get("tool_choice") is not None:
        chat["tool_choice"] = _tool_choice(body["tool_choice"])
    if body.get("reasoning") is not None:
        effort = as_object(body["reasoning"], "reasoning").get("effort")
        if effort is not None:
            chat["reasoning_effort"] = as_text(effort, "reasoning.effort")
    if body.get("text") is not None:
        chat |= _text_options(as_object(body["text"], "text"))
    return chat


def _tool(tool: Json, where: str) -> Json:
    """Put a flat function under `function`, as a chat has it."""
    found = as_object(tool, where)
    kind = found.get("type")
    if kind != "function":
        raise wrong(f"{where}.type", kind, "'function'; the gateway runs no tools of its own")
    as_name(found.get("name"), f"{where}.name")
    return {"type": "function", "function": {k: v for k, v in found.items() if k != "type"}}


def _tool_choice(choice: Json) -> Json:
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = as_name(choice.get("name"), "tool_choice.name")
        return {"type": "function", "function": {"name": name}}
    if choice not in ("none", "auto", "required"):
        raise wrong("tool_choice", choice, "none, auto, required or a function")
    return choice


def _text_options(text: dict[str, Json]) -> dict[str, Json]:
    options: dict[str, Json] = {}
    if text.get("verbosity") is not None:
        options["verbosity"] = text["verbosity"]
    if text.get("format") is not None:
        asked = as_object(text["format"], "text.format")
        kind = as_name(asked.get("type"), "text.format.type")
        schema: dict[str, Json] = {key: value for key, value in asked.items() if key != "type"}
        options["response_format"] = (
            {"type": kind, "json_schema": schema} if kind == "json_schema" else asked
        )
    return options
