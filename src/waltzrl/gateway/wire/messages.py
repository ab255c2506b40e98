"""`POST /v1/messages`, Anthropic's API: reads requests as chats."""

import hashlib
import re
from collections.abc import Sequence

import msgspec

from waltzrl.gateway.exchange import Answer, ChatRequest, Json
from waltzrl.gateway.keys import ANONYMOUS, Caller
from waltzrl.gateway.wire.blocks import block_text
from waltzrl.gateway.wire.fields import (
    MOST_TOKENS,
    as_bool,
    as_count,
    as_list,
    as_name,
    as_object,
    as_text,
    check_known,
    check_sampling,
    drop_empty_tools,
    drop_unset,
    invalid_field,
    name_call,
    objects_in,
    place_results,
    read_body,
    text_of,
    unsupported_field,
    write_arguments,
)
from waltzrl.gateway.wire.known import CHAT
from waltzrl.gateway.wire.messages_output import MessagesStream, build_message, encode_error
from waltzrl.gateway.wire.prompt import prompt_of

error = encode_error
writer = MessagesStream

CONVERTED = (
    "max_tokens",
    "messages",
    "metadata",
    "n",
    "output_config",
    "output_format",
    "stop_sequences",
    "stream",
    "stream_options",
    "system",
    "thinking",
    "tool_choice",
    "tools",
)
"""Keys that `_convert_message_request` converts, or that a chat must not have."""
STATE = ("compaction", "container", "mcp_servers", "thread")
"""Keys that refer to state or tools on the server, which the gateway does not have."""
DROPPED = (
    *STATE,
    "betas",
    "billing_policy",
    "cache_control",
    "context_management",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
)
"""Keys without a meaning for a chat."""
KNOWN = CHAT.union(CONVERTED, DROPPED)
BILLING = re.compile(r"\Ax-anthropic-billing-header:.*\n?")
"""What Claude Code begins the system prompt with. It says nothing to a model, and differs in every
request, so that no server could use its cache of the prompt.
"""
LONGEST_USER = 64
"""Characters of the user's id that OpenAI takes; of a longer one it gets the digest."""


def read(raw: bytes, request_id: str, caller: Caller = ANONYMOUS) -> ChatRequest:
    """Read a request; see `WireFormat.read`."""
    body = read_body(raw)
    drop_unset(body, KNOWN)
    check_known(body, KNOWN, caller)
    for key in STATE:
        if body.get(key):
            raise unsupported_field(key, "the gateway keeps no state and runs no tools; remove it")
    chat = _convert_message_request(body)
    check_sampling(chat)
    metadata = body.get("metadata")
    user = None if metadata is None else as_object(metadata, "metadata").get("user_id")
    if user is not None:
        user = as_text(user, "metadata.user_id")
        is_short = len(user) <= LONGEST_USER
        chat["user"] = user if is_short else hashlib.sha256(user.encode()).hexdigest()
    return ChatRequest(
        api="messages",
        prompt=prompt_of(chat, request_id, caller),
        body=chat,
        model=as_name(body.get("model"), "model"),
        stream=as_bool(body.get("stream"), "stream"),
        subject=user or "",
        shows_reasoning=_shows_reasoning(body.get("thinking")),
    )


def write(chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
    """Write a reply; this API has one choice."""
    return msgspec.json.encode(build_message(chat, answers[0]))


def _convert_message_request(body: dict[str, Json]) -> dict[str, Json]:
    """Convert the request to a chat; others are passed on unchanged."""
    chat: dict[str, Json] = {
        key: value for key, value in body.items() if key not in CONVERTED and key not in DROPPED
    }
    chat["messages"] = chat_messages(body.get("system"), body.get("messages"))
    chat["max_tokens"] = as_count(body.get("max_tokens"), "max_tokens", MOST_TOKENS)
    if body.get("stop_sequences"):
        chat["stop"] = as_list(body["stop_sequences"], "stop_sequences")
    if body.get("tools") is not None:
        chat["tools"] = [_convert_tool(*tool) for tool in objects_in(body["tools"], "tools")]
    # `output_config` after `thinking`: an effort by name precedes one that was made of a budget.
    for key, convert in (
        ("tool_choice", _convert_tool_choice),
        ("thinking", _convert_thinking),
        ("output_config", _convert_output_config),
        ("output_format", _convert_output_format),  # as it was called in the beta
    ):
        if body.get(key) is not None:
            chat |= convert(as_object(body[key], key))
    drop_empty_tools(chat)
    return chat


EFFORTS = ((4_096, "low"), (16_384, "medium"))
"""Budgets of reasoning tokens below which the effort is so much; larger ones are `high`."""


def _convert_thinking(thinking: dict[str, Json]) -> dict[str, Json]:
    """Convert a budget to an effort: a chat has no budgets."""
    kind = thinking.get("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise invalid_field("thinking.type", kind, "enabled, adaptive or disabled")
    if kind != "enabled":
        return {}
    budget = as_count(thinking.get("budget_tokens"), "thinking.budget_tokens", MOST_TOKENS)
    efforts = (effort for limit, effort in EFFORTS if budget < limit)
    return {"reasoning_effort": next(efforts, "high")}


def _shows_reasoning(thinking: Json) -> bool:
    """Return whether the client asked for blocks of reasoning."""
    if not isinstance(thinking, dict) or thinking.get("display") == "omitted":
        return False
    return thinking.get("type") in ("enabled", "adaptive")


def _convert_tool(fields: dict[str, Json], where: str) -> Json:
    kind = fields.get("type")
    if kind not in (None, "custom"):
        raise invalid_field(f"{where}.type", kind, "'custom'; the gateway runs no tools")
    schema = as_object(fields.get("input_schema"), f"{where}.input_schema")
    if schema.get("type") == "object":  # OpenAI requires its properties, though there are none
        schema.setdefault("properties", {})
    function: dict[str, Json] = {
        "name": as_name(fields.get("name"), f"{where}.name"),
        "parameters": schema,
    }
    for key in ("description", "strict"):
        if fields.get(key) is not None:
            function[key] = fields[key]
    return {"type": "function", "function": function}


def _convert_tool_choice(choice: dict[str, Json]) -> dict[str, Json]:
    kind = choice.get("type")
    if kind == "tool":
        name = as_name(choice.get("name"), "tool_choice.name")
        options: dict[str, Json] = {"tool_choice": {"type": "function", "function": {"name": name}}}
    elif isinstance(kind, str) and kind in CHOICES:
        options = {"tool_choice": CHOICES[kind]}
    else:
        raise invalid_field("tool_choice.type", kind, "auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    return options


CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _convert_output_config(config: dict[str, Json]) -> dict[str, Json]:
    options: dict[str, Json] = {}
    if config.get("effort") is not None:
        effort = as_text(config["effort"], "output_config.effort")
        options["reasoning_effort"] = "high" if effort == "max" else effort
    if config.get("format") is not None:
        where = "output_config.format"
        options |= _convert_output_format(as_object(config["format"], where), where)
    return options


def _convert_output_format(
    output_format: dict[str, Json], where: str = "output_format"
) -> dict[str, Json]:
    schema = as_object(output_format.get("schema"), f"{where}.schema")
    json_schema: Json = {"name": "output", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def chat_messages(system: Json, messages: Json) -> list[dict[str, Json]]:
    """Convert a request's `system` and `messages` to the messages of a chat.

    Raises:
        RequestError: a block is malformed.
    """
    chat: list[dict[str, Json]] = []
    if system is not None:
        text = BILLING.sub("", _read_system_text(system, "system"))
        chat.append({"role": "system", "content": text})
    turns = as_list(messages, "messages")
    if not turns:
        raise invalid_field("messages", turns, "one message or more")
    for turn, where in objects_in(turns, "messages"):
        chat += _convert_turn(turn, where)
    return place_results(chat)


def _convert_turn(turn: dict[str, Json], where: str) -> list[dict[str, Json]]:
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or role not in ("user", "assistant", "system"):
        raise invalid_field(f"{where}.role", role, "user, assistant or system")
    where = f"{where}.content"
    if content is None and role == "assistant":  # of a reply without a word
        content = ""
    if role == "system":
        return [{"role": role, "content": _read_system_text(content, where)}]
    if isinstance(content, str):
        return [{"role": role, "content": text_of(content, where)}]
    if role == "assistant":
        return [convert_assistant_content(content, where)]
    return _convert_user_blocks(content, where)


def _read_system_text(content: Json, where: str) -> str:
    if not isinstance(content, list):
        return text_of(content, where)
    return "\n".join(_read_block_text(block, place) for block, place in objects_in(content, where))


def _read_block_text(block: dict[str, Json], where: str) -> str:
    """Return the text of a block, or any other block as text."""
    if as_name(block.get("type"), f"{where}.type") == "text":
        return as_text(block.get("text"), f"{where}.text")
    return block_text(block)


def convert_assistant_content(content: Json, where: str) -> dict[str, Json]:
    """Return a chat's message with the reasoning, the text and the tool calls of blocks.

    Models that reason need the reasoning of earlier turns. What is redacted has no text.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for block, block_where in objects_in(content, where):
        kind = block.get("type")
        if kind == "thinking":
            # Clients leave out what is empty, here and in a call.
            thoughts.append(as_text(block.get("thinking") or "", f"{block_where}.thinking"))
        elif kind == "tool_use":
            calls.append(_convert_tool_use(block, block_where))
        elif kind != "redacted_thinking":
            texts.append(_read_block_text(block, block_where))
    message: dict[str, Json] = {"role": "assistant", "content": "\n".join(texts)}
    if reasoning := "\n".join(filter(None, thoughts)):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _convert_tool_use(block: dict[str, Json], where: str) -> Json:
    arguments = as_text(write_arguments(block.get("input")), f"{where}.input")
    return {
        "id": as_name(block.get("id"), f"{where}.id"),
        "type": "function",
        "function": {
            "name": as_text(name_call(block.get("name")), f"{where}.name"),
            "arguments": arguments,
        },
    }


def _convert_user_blocks(content: Json, where: str) -> list[dict[str, Json]]:
    """Return a message for each tool result, then one for the rest: the order that a chat needs.

    A chat's tool message holds only text, so the images in a result go into the user's message.
    """
    results: list[dict[str, Json]] = []
    parts: list[dict[str, Json]] = []
    for block, block_where in objects_in(content, where):
        if block.get("type") == "tool_result":
            results.append(_convert_tool_result(block, parts, block_where))
        else:
            parts += _convert_block(block, block_where)
    if not parts:
        return results or [{"role": "user", "content": ""}]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return [*results, {"role": "user", "content": parts[0]["text"]}]
    return [*results, {"role": "user", "content": list(parts)}]


def _convert_tool_result(
    block: dict[str, Json], user_parts: list[dict[str, Json]], where: str
) -> dict[str, Json]:
    """Return the tool's message; parts that are not text are added to `user_parts`."""
    content = block.get("content")
    text = content if isinstance(content, str) else ""
    if content is not None and not isinstance(content, str):
        parts = _convert_blocks(content, f"{where}.content")
        text = "\n".join(str(part["text"]) for part in parts if part["type"] == "text")
        user_parts += [part for part in parts if part["type"] != "text"]
    if block.get("is_error"):
        text = f"[error]\n{text}"
    call_id = as_name(block.get("tool_use_id"), f"{where}.tool_use_id")
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _convert_blocks(content: Json, where: str) -> list[dict[str, Json]]:
    return [
        part for block, place in objects_in(content, where) for part in _convert_block(block, place)
    ]


def _convert_block(block: dict[str, Json], where: str) -> list[dict[str, Json]]:
    """Return a block as parts of a chat's message."""
    kind = block.get("type")
    if kind in ("image", "document"):
        source = as_object(block.get("source"), f"{where}.source")
        if kind == "document":
            return _convert_document(block, source, f"{where}.source")
        if source.get("type") in ("base64", "url"):
            return [
                {
                    "type": "image_url",
                    "image_url": {"url": _read_source_url(source, f"{where}.source")},
                }
            ]
    return [{"type": "text", "text": _read_block_text(block, where)}]


def _convert_document(
    block: dict[str, Json], source: dict[str, Json], where: str
) -> list[dict[str, Json]]:
    """Return a document's text, its file, or its content; text that names any other document."""
    kind = source.get("type")
    if kind == "base64":
        title = block.get("title") or "document.pdf"
        file: Json = {"filename": title, "file_data": _read_source_url(source, where)}
        beside = {key: value for key, value in block.items() if key not in ("source", "title")}
        return [*_describe_document(beside), {"type": "file", "file": file}]
    beside = {key: value for key, value in block.items() if key != "source"}
    if kind == "text":
        text = as_text(source.get("data"), f"{where}.data")
        return [*_describe_document(beside), {"type": "text", "text": text}]
    if kind == "content":
        content = source.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        named: dict[str, Json] = {"type": "text", "text": block_text(beside)}
        return [named, *_convert_blocks(content, f"{where}.content")]
    return [{"type": "text", "text": block_text(block)}]


def _describe_document(block: dict[str, Json]) -> list[dict[str, Json]]:
    """Return what a document says about itself, such as its title."""
    text = block_text(block)
    # That is all of a block which has nothing but its type.
    return [] if text == "[document]" else [{"type": "text", "text": text}]


def _read_source_url(source: dict[str, Json], where: str) -> str:
    """Return a URL: the given one, or a `data:` URL."""
    if source.get("type") == "url":
        return as_name(source.get("url"), f"{where}.url")
    media = as_name(source.get("media_type"), f"{where}.media_type")
    return f"data:{media};base64,{as_name(source.get('data'), f'{where}.data')}"
