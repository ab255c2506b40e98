"""`POST /v1/responses`, OpenAI's newer API: reads requests as chats."""

from collections.abc import Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.serving.exchange import Answer, Api, ChatRequest, Json
from waltzrl.serving.keys import ANONYMOUS, Caller
from waltzrl.serving.wire.fields import (
    MOST_TOKENS,
    as_bool,
    as_count,
    as_list,
    as_name,
    as_object,
    as_text,
    check_known,
    check_sampling,
    invalid_field,
    read_object,
    subject_of,
    text_of,
    unsupported_field,
)
from waltzrl.serving.wire.format import error_envelope
from waltzrl.serving.wire.known import CHAT
from waltzrl.serving.wire.prompt import prompt_of
from waltzrl.serving.wire.responses_output import ResponsesStream, response

api: Api = "responses"

CONVERTED = (
    "input",
    "instructions",
    "max_output_tokens",
    "messages",
    "include",
    "n",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
)
"""Keys that `_as_chat` converts, or that a chat must not have."""
STATE = ("background", "previous_response_id", "conversation", "prompt")
"""Keys that refer to state on the server, which the gateway does not have."""
DROPPED = (
    *STATE,
    "access_programs",
    "background_options",
    "context_management",
    "image",
    "max_tool_calls",
    "store",
    "stream_options",
    "truncation",
)
"""Keys without a meaning for a chat: the gateway keeps no state and runs no tools."""
KNOWN = CHAT.union(CONVERTED, DROPPED)


def read(raw: bytes, request_id: str, caller: Caller = ANONYMOUS) -> ChatRequest:
    """Read a request; see `WireFormat.read`."""
    body = read_object(raw)
    check_known(body, KNOWN, caller)
    for key in STATE:
        if body.get(key) not in (None, False):
            raise unsupported_field(key, "the gateway keeps no state; send the whole conversation")
    stream = as_bool(body.pop("stream", None), "stream")
    for key in DROPPED:
        body.pop(key, None)
    chat = _as_chat(body)
    check_sampling(chat)
    return ChatRequest(
        api=api,
        prompt=prompt_of(chat, request_id, caller),
        body=chat,
        model=as_name(chat.get("model"), "model"),
        stream=stream,
        subject=subject_of(chat),
    )


def write(chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
    """Write a reply; this API has one choice."""
    return msgspec.json.encode(response(chat, answers[0], created=answers[0].details.created))


def writer(chat: ChatRequest) -> ResponsesStream:
    """Return the writer of this request's stream."""
    return ResponsesStream(chat)


def error(error: RequestError, request_id: str = "") -> bytes:
    """Write an error."""
    return msgspec.json.encode(error_envelope(error, request_id))


def _as_chat(body: dict[str, Json]) -> dict[str, Json]:
    """Convert the request to a chat; others are passed on unchanged."""
    chat: dict[str, Json] = {key: value for key, value in body.items() if key not in CONVERTED}
    chat["messages"] = chat_messages(body.get("instructions"), body.get("input"))
    if body.get("max_output_tokens") is not None:
        limit = as_count(body["max_output_tokens"], "max_output_tokens", MOST_TOKENS)
        chat["max_tokens"] = limit
    if body.get("tools") is not None:
        tools = as_list(body["tools"], "tools")
        chat["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    if body.get("tool_choice") is not None:
        chat["tool_choice"] = _tool_choice(body["tool_choice"])
    if body.get("reasoning") is not None:
        effort = as_object(body["reasoning"], "reasoning").get("effort")
        if effort is not None:
            chat["reasoning_effort"] = as_text(effort, "reasoning.effort")
    include = body.get("include")
    if isinstance(include, list) and "message.output_text.logprobs" in include:
        chat["logprobs"] = True
    else:
        chat.pop("top_logprobs", None)
    if body.get("text") is not None:
        chat |= _text_options(as_object(body["text"], "text"))
    return chat


def _tool(tool: Json, where: str) -> Json:
    """Nest a function's fields under `function`, as a chat has them."""
    fields = as_object(tool, where)
    kind = fields.get("type")
    if kind != "function":
        raise invalid_field(f"{where}.type", kind, "'function'; the gateway runs no tools")
    as_name(fields.get("name"), f"{where}.name")
    return {"type": "function", "function": {k: v for k, v in fields.items() if k != "type"}}


def _tool_choice(choice: Json) -> Json:
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = as_name(choice.get("name"), "tool_choice.name")
        return {"type": "function", "function": {"name": name}}
    if choice not in ("none", "auto", "required"):
        raise invalid_field("tool_choice", choice, "none, auto, required or a function")
    return choice


def _text_options(text: dict[str, Json]) -> dict[str, Json]:
    options: dict[str, Json] = {}
    if text.get("verbosity") is not None:
        options["verbosity"] = text["verbosity"]
    if text.get("format") is not None:
        text_format = as_object(text["format"], "text.format")
        kind = as_name(text_format.get("type"), "text.format.type")
        schema: dict[str, Json] = {k: v for k, v in text_format.items() if k != "type"}
        options["response_format"] = (
            {"type": kind, "json_schema": schema} if kind == "json_schema" else text_format
        )
    return options


ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
ITEMS = "message, function_call, function_call_output or reasoning"


def chat_messages(instructions: Json, items: Json) -> list[Json]:
    """Convert a request's `instructions` and `input` to the messages of a chat.

    Raises:
        RequestError: an item is malformed, or of a kind that a chat cannot carry.
    """
    chat: list[Json] = []
    if instructions is not None:
        chat.append({"role": "system", "content": text_of(instructions, "instructions")})
    if isinstance(items, str):
        return [*chat, {"role": "user", "content": text_of(items, "input")}]
    if not isinstance(items, list) or not items:
        raise invalid_field("input", items, "a string, or a list with one item or more")
    for index, item in enumerate(items):
        _add(chat, as_object(item, f"input[{index}]"), f"input[{index}]")
    if not chat:
        raise invalid_field("input", "reasoning items only", "one message or more")
    return chat


def _add(chat: list[Json], item: dict[str, Json], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        chat.append(_message(item, where))
    elif kind == "function_call":
        _add_call(chat, item, where)
    elif kind == "function_call_output":
        call_id = as_name(item.get("call_id"), f"{where}.call_id")
        output = _content(item.get("output"), f"{where}.output")
        chat.append({"role": "tool", "tool_call_id": call_id, "content": output})
    elif kind != "reasoning":
        raise invalid_field(f"{where}.type", kind, ITEMS)


def _message(item: dict[str, Json], where: str) -> Json:
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid_field(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    return {"role": ROLES[role], "content": _content(item.get("content"), f"{where}.content")}


def _add_call(chat: list[Json], item: dict[str, Json], where: str) -> None:
    """Add a call to the assistant's last message: a chat has all calls of a turn in one message."""
    name = as_name(item.get("name"), f"{where}.name")
    arguments = as_text(item.get("arguments"), f"{where}.arguments")
    call: Json = {
        "id": as_name(item.get("call_id"), f"{where}.call_id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    last = chat[-1] if chat else None
    if not isinstance(last, dict) or last["role"] != "assistant":
        last = {"role": "assistant", "content": None}
        chat.append(last)
    calls = last.get("tool_calls")
    last["tool_calls"] = [*calls, call] if isinstance(calls, list) else [call]


def _content(content: Json, where: str) -> Json:
    """Convert content parts; a single text becomes a string, which every upstream accepts."""
    if isinstance(content, str):
        return text_of(content, where)
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(as_list(content, where))]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return [*parts]


def _part(part: Json, where: str) -> dict[str, Json]:
    fields = as_object(part, where)
    kind = fields.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": as_text(fields.get("text"), f"{where}.text")}
    if kind == "refusal":
        return {"type": "refusal", "refusal": as_text(fields.get("refusal"), f"{where}.refusal")}
    if kind == "input_image":
        return _image(fields, where)
    if kind == "input_file":
        if fields.get("file_url") is not None:
            raise unsupported_field(
                f"{where}.file_url", "a chat cannot carry a file's URL; send its data"
            )
        keys = ("file_data", "file_id", "filename")
        file: dict[str, Json] = {key: fields[key] for key in keys if key in fields}
        return {"type": "file", "file": file}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": fields.get("input_audio")}
    raise invalid_field(
        f"{where}.type", kind, "input_text, output_text, refusal or input_image, _file, _audio"
    )


def _image(part: dict[str, Json], where: str) -> dict[str, Json]:
    if part.get("image_url") is None:
        raise unsupported_field(f"{where}.image_url", "a chat carries images as a URL or as data")
    image: dict[str, Json] = {"url": as_name(part["image_url"], f"{where}.image_url")}
    if part.get("detail") is not None:
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}
