"""`POST /v1/messages`, Anthropic's API: read as a chat, and its reply written as content blocks."""

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
    unsupported,
    wrong,
)
from waltzrl.serving.wire.messages_input import chat_messages
from waltzrl.serving.wire.messages_output import error_body, message
from waltzrl.serving.wire.messages_stream import MessagesStream
from waltzrl.serving.wire.turns import prompt_of

api: Api = "messages"

RESPELT = (
    "max_tokens",
    "messages",
    "metadata",
    "n",
    "output_config",
    "stop_sequences",
    "stream",
    "stream_options",
    "system",
    "tool_choice",
    "tools",
)
DROPPED = (
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "mcp_servers",
    "service_tier",
    "thinking",
)
"""Keys that say nothing to a chat."""


def read(raw: bytes, request_id: str) -> ChatRequest:
    """Read a request; see `Dialect.read`."""
    body = read_object(raw)
    for key in ("container", "mcp_servers"):
        if body.get(key):
            raise unsupported(key, "the gateway runs no tools of its own; leave it out")
    chat = _as_chat(body)
    check_sampling(chat)
    metadata = body.get("metadata")
    user = None if metadata is None else as_object(metadata, "metadata").get("user_id")
    if user is not None:
        chat["user"] = as_text(user, "metadata.user_id")
    return ChatRequest(
        api=api,
        prompt=prompt_of(chat["messages"], request_id),
        body=chat,
        model=as_name(body.get("model"), "model"),
        stream=as_bool(body.get("stream"), "stream"),
        subject="" if user is None else as_text(user, "metadata.user_id"),
    )


def write(chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
    """Write a reply; the API has one choice."""
    return msgspec.json.encode(message(chat, answers[0]))


def writer(chat: ChatRequest) -> MessagesStream:
    """Return the writer of this request's stream."""
    return MessagesStream(chat)


def problem(problem: RequestError, request_id: str = "") -> bytes:
    """Write an error."""
    return msgspec.json.encode(error_body(problem, request_id))


def _as_chat(body: dict[str, Json]) -> dict[str, Json]:
    """Spell the request as a chat; keys without a chat's counterpart stay as they are."""
    chat: dict[str, Json] = {
        key: value for key, value in body.items() if key not in RESPELT and key not in DROPPED
    }
    chat["messages"] = chat_messages(body.get("system"), body.get("messages"))
    chat["max_tokens"] = as_count(body.get("max_tokens"), "max_tokens", MOST_TOKENS)
    if body.get("stop_sequences") is not None:
        chat["stop"] = as_list(body["stop_sequences"], "stop_sequences")
    if body.get("tools") is not None:
        tools = as_list(body["tools"], "tools")
        chat["tools"] = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools)]
    if body.get("tool_choice") is not None:
        chat |= _tool_choice(as_object(body["tool_choice"], "tool_choice"))
    if body.get("output_config") is not None:
        chat |= _output_options(as_object(body["output_config"], "output_config"))
    return chat


def _tool(tool: Json, where: str) -> Json:
    found = as_object(tool, where)
    kind = found.get("type")
    if kind not in (None, "custom"):
        raise wrong(f"{where}.type", kind, "'custom'; the gateway runs no tools of its own")
    function: dict[str, Json] = {
        "name": as_name(found.get("name"), f"{where}.name"),
        "parameters": as_object(found.get("input_schema"), f"{where}.input_schema"),
    }
    for key in ("description", "strict"):
        if found.get(key) is not None:
            function[key] = found[key]
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Json]) -> dict[str, Json]:
    kind = choice.get("type")
    if kind == "tool":
        name = as_name(choice.get("name"), "tool_choice.name")
        options: dict[str, Json] = {"tool_choice": {"type": "function", "function": {"name": name}}}
    elif isinstance(kind, str) and kind in CHOICES:
        options = {"tool_choice": CHOICES[kind]}
    else:
        raise wrong("tool_choice.type", kind, "auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    return options


CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _output_options(asked: dict[str, Json]) -> dict[str, Json]:
    options: dict[str, Json] = {}
    if asked.get("effort") is not None:
        options["reasoning_effort"] = as_text(asked["effort"], "output_config.effort")
    if asked.get("format") is not None:
        form = as_object(asked["format"], "output_config.format")
        schema = as_object(form.get("schema"), "output_config.format.schema")
        options["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema, "strict": True},
        }
    return options
