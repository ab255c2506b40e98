"""Reads the fields of a request. An error names the field, what we got and what we need.

`where` is the path of a value in the client's request, such as `messages[0].content`.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

import msgspec

from waltzrl.errors import RequestError
from waltzrl.foundation.texts import is_utf8
from waltzrl.gateway.exchange import Json
from waltzrl.gateway.keys import Caller
from waltzrl.policies.server_json import mend_text
from waltzrl.policies.tool_calls import is_complete
from waltzrl.records import CallKind, Media, Message, Reply, Role, ToolCall

DEEPEST = 100
"""The most levels of nested objects and lists: encoders further down the stack recurse, too."""
MOST_TOKENS = 2**31
REASONING = ("reasoning", "reasoning_content")
"""The keys under which servers write the reasoning of a reply."""
COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""The first bytes of a body that gzip or zstd has compressed."""
LEVEL = re.compile(r"[a-z_]{1,16}")
TEMPLATE, SWITCHES = "chat_template_kwargs", ("enable_thinking", "thinking")
"""The key of what a server's template of a chat gets, and what of it needs no operator's word."""
NO_RESULT, UNNAMED = "[no result]", "unnamed"
"""The result of a call that has none, and the name of one that a model wrote without one."""
LONGEST_PLACE = 100
LONGEST_SHOWN = 40
"""The most characters of a value that an error message quotes."""


ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>u[dD][89a-fA-F][\da-fA-F]{2})|(?P<nul>u0000)|.)",
    re.DOTALL,
)
"""An escape in JSON: two halves of a surrogate pair, a half alone, NUL, or any other."""


def read_body(raw: bytes) -> dict[str, Json]:
    """Decode the body of a request for a reply, without NUL and with U+FFFD for half a character.

    No tokenizer takes either. Agents cut results of tools within a character, and read binary files
    as text, and keep all of it in their history: a request with it must not be refused.

    Raises:
        RequestError: as of `read_object`.
    """
    if b"\\u0000" in raw:
        raw = ESCAPE.sub(_mend_escape, raw)
    try:
        return read_object(raw)
    except RequestError:
        mended = ESCAPE.sub(_mend_escape, raw)
        if mended == raw:
            raise
    return read_object(mended)


def _mend_escape(escape: re.Match[bytes]) -> bytes:
    if escape["half"]:
        return b"\\ufffd"
    return b"" if escape["nul"] else escape[0]


def read_object(raw: bytes) -> dict[str, Json]:
    """Decode a request's body.

    The last value of a repeated key counts, for the upstream too, because the body is encoded anew.

    Raises:
        RequestError: it is not UTF-8, not JSON, not an object, or nested too deeply.
    """
    try:
        body: Json = msgspec.json.decode(raw.removeprefix(codecs.BOM_UTF8))
    except RecursionError as error:
        raise _too_deep_error() from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # by version, for what is no UTF-8
        if raw.startswith(COMPRESSED):
            raise _unreadable_body_error("JSON but compressed; send it uncompressed") from error
        if not is_utf8(raw):
            raise _unreadable_body_error("UTF-8") from error
        if where := _find_half_pair(raw):
            raise unsupported_field(where, HALF_PAIR) from error
        raise _unreadable_body_error(f"JSON ({error})") from error
    if not isinstance(body, dict):
        raise _unreadable_body_error("a JSON object")
    # Most bodies have too few brackets to be nested so deep, and are not walked.
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _is_nested_deeper(body, DEEPEST):
        raise _too_deep_error()
    return body


def invalid_field(where: str, got: Json, need: str) -> RequestError:
    """Return the error for a field."""
    return RequestError(
        400, "invalid_request", f"{where}: got {describe_value(got)}; need {need}", param=where
    )


def unsupported_field(where: str, why: str) -> RequestError:
    """Return the error for a field that requests something the gateway cannot do."""
    return RequestError(400, "invalid_request", f"{where}: {why}", param=where)


def describe_value(value: Json) -> str:
    """Describe a value in an error message."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        kind = "object" if isinstance(value, dict) else "list"
        return f"an empty {kind}" if not value else f"{'an' if kind == 'object' else 'a'} {kind}"
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}...")
    return msgspec.json.encode(value).decode()[:LONGEST_SHOWN]


def as_object(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise invalid_field(where, value, "an object")
    return value


def as_list(value: Json, where: str) -> list[Json]:
    if not isinstance(value, list):
        raise invalid_field(where, value, "a list")
    return value


def objects_in(value: Json, where: str) -> Iterator[tuple[dict[str, Json], str]]:
    """Yield the objects of a list, and where each of them is."""
    for index, item in enumerate(as_list(value, where)):
        place = f"{where}[{index}]"
        yield as_object(item, place), place


def drop_unset(body: dict[str, Json], known: frozenset[str]) -> None:
    """Drop the known keys that are null, as clients write what is not set, and no stops at all.

    Many servers refuse null and an empty list of stops.
    """
    if None in body.values():
        for key in [key for key, value in body.items() if value is None and key in known]:
            del body[key]
    if body.get("stop") == []:
        del body["stop"]


def drop_empty_tools(chat: dict[str, Json]) -> None:
    """Drop an empty list of tools, and how to use them: a chat refuses both without tools."""
    if chat.get("tools"):
        return
    for key in ("tools", "parallel_tool_calls"):
        chat.pop(key, None)
    if chat.get("tool_choice") in ("auto", "none"):
        del chat["tool_choice"]


def place_results(messages: Sequence[dict[str, Json]]) -> list[dict[str, Json]]:
    """Return a chat's messages with each tool's result after the message with its call.

    A chat has nothing between them; other APIs may have words of anybody there. A call that was
    interrupted has no result, and a chat could not go on without one; nor with the result of a call
    that the client has dropped, which becomes its text.
    """
    groups: list[list[dict[str, Json]]] = []
    asked: dict[Json, list[dict[str, Json]]] = {}
    for message in messages:
        group = asked.get(message.get("tool_call_id")) if message["role"] == "tool" else None
        if group is None:
            groups.append(group := [])
            if message["role"] == "tool":
                message = {"role": "user", "content": f"[tool_result]\n{message['content']}"}
        group.append(message)
        for call_id in _read_call_ids(message):
            asked[call_id] = group
    for group in groups:
        answered = {result["tool_call_id"] for result in group[1:]}
        missing = [call_id for call_id in _read_call_ids(group[0]) if call_id not in answered]
        group += [{"role": "tool", "tool_call_id": i, "content": NO_RESULT} for i in missing]
    return [message for group in groups for message in group]


def _read_call_ids(message: dict[str, Json]) -> list[Json]:
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    return [as_object(call, "tool_calls")["id"] for call in calls]


def name_call(name: Json) -> Json:
    """Return the name of an earlier call, with which servers take it if the model wrote none."""
    return UNNAMED if name in (None, "") else name


def write_arguments(arguments: Json) -> Json:
    """Return the arguments of an earlier call as the JSON of an object.

    Servers decode them, and refuse a conversation for good in which a call was cut off or written
    wrongly. Such a text is returned under `unreadable`, so that the model sees why its call failed.
    What is empty clients leave out.
    """
    if isinstance(arguments, str) and arguments.strip() not in ("", "null"):
        if is_complete(arguments):
            return arguments
        arguments = {"unreadable": arguments}
    if not arguments or isinstance(arguments, dict | str):
        return msgspec.json.encode(arguments if isinstance(arguments, dict) else {}).decode()
    return arguments


def as_text(value: Json, where: str) -> str:
    """Return a string; refuse a NUL, which many databases and tokenizers cannot process."""
    if not isinstance(value, str):
        raise invalid_field(where, value, "a string")
    if "\0" in value:
        raise unsupported_field(where, "contains a NUL character; remove it")
    return value


def as_name(value: Json, where: str) -> str:
    """Return a string that is not empty."""
    if not value:
        raise invalid_field(where, value, "a string that is not empty")
    return as_text(value, where)


def as_bool(value: Json, where: str) -> bool:
    """Return a boolean; null or missing is False."""
    if value is None or value is False:
        return False
    if value is True:
        return True
    raise invalid_field(where, value, "true or false")


def as_count(value: Json, where: str, most: int) -> int:
    """Return a whole number from 1 to `most`."""
    if _is_number(value) and isinstance(value, int) and 1 <= value <= most:
        return value
    raise invalid_field(where, value, f"a whole number from 1 to {most}")


def check_known(body: dict[str, Json], known: frozenset[str], caller: Caller) -> None:
    """Refuse a request with a key that is neither known nor allowed; remove it if it is empty.

    Raises:
        RequestError: 400, naming the key.
    """
    if body.keys() <= known:
        return
    for key in body.keys() - known - set(caller.allow_fields):
        if key == TEMPLATE and _has_only_switches(body[key]):
            continue
        if body.pop(key) not in (None, "", [], {}):
            name = key[:LONGEST_SHOWN]
            raise unsupported_field(
                name,
                "no reviewer sees what this field does to the reply; remove it, or ask the "
                f'operator to allow it: allow_fields = ["{name}"] for the key of the client, or in '
                "the settings of a gateway without keys",
            )


def _has_only_switches(options: Json) -> bool:
    """Return whether options of a template only turn reasoning on or off, as known keys do."""
    if not (isinstance(options, dict) and options):
        return False
    return all(key in SWITCHES and isinstance(value, bool) for key, value in options.items())


def check_sampling(body: dict[str, Json]) -> None:
    """Check the sampling options that all three APIs share.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    for key in ("temperature", "top_p"):
        value = body.get(key)
        if value is not None and not (_is_number(value) and value >= 0):
            raise invalid_field(key, value, "a number that is not negative")
    for key in ("max_tokens", "max_completion_tokens"):
        if body.get(key) is not None:
            as_count(body[key], key, MOST_TOKENS)
    for key in ("reasoning_effort", "verbosity"):  # some templates show them to the model
        value = body.get(key)
        if value is not None and not (isinstance(value, str) and LEVEL.fullmatch(value)):
            raise invalid_field(key, value, "a word such as 'low'")


def has_strict_schema(body: dict[str, Json]) -> bool:
    """Return whether a chat's reply must fit a strict schema: then OpenAI refuses beside it."""
    response_format = body.get("response_format")
    schema = response_format.get("json_schema") if isinstance(response_format, dict) else None
    return isinstance(schema, dict) and schema.get("strict") is True


def subject_of(body: dict[str, Json]) -> str:
    """Return the client's id of its user, from the fields of OpenAI's APIs; empty without one."""
    for key in ("safety_identifier", "user"):
        if body.get(key) is not None:
            return as_text(body[key], key)
    return ""


def _is_number(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_nested_deeper(body: dict[str, Json], limit: int) -> bool:
    """Return whether objects and lists are nested more than `limit` levels deep."""
    level: list[dict[str, Json] | list[Json]] = [body]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


HALF_PAIR = (
    "has half of a UTF-16 surrogate pair, which is no character; send both halves, such as "
    "\\ud83d\\ude00, or the character itself"
)


def _find_half_pair(raw: bytes) -> str:
    """Return where a body has a half of a surrogate pair; empty if that is not what is wrong."""
    try:
        body: Json = json.loads(raw)
    except (ValueError, RecursionError):
        return ""
    values: list[tuple[str, Json]] = [("", body)]
    while values:
        where, value = values.pop()
        if isinstance(value, dict):
            values += [(f"{where}.{key}".removeprefix("."), v) for key, v in value.items()]
            values += [(where or "a key", key) for key in value]
        elif isinstance(value, list):
            values += [(f"{where}[{index}]", v) for index, v in enumerate(value)]
        elif isinstance(value, str) and mend_text(value) != value:
            return mend_text(where)[:LONGEST_PLACE]
    return ""


def _unreadable_body_error(need: str) -> RequestError:
    return RequestError(400, "invalid_request", f"the request's body is not {need}")


def _too_deep_error() -> RequestError:
    return RequestError(
        400, "invalid_request", f"the request's body is nested more than {DEEPEST} levels deep"
    )


ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
MEDIA: Mapping[str, Media] = {
    "image_url": "image",
    "input_audio": "audio",
    "video_url": "video",
    "file": "file",
}
"""Kinds of a message's parts that are not text, and what each is."""


def turns_of(messages: Json) -> list[Message]:
    """Read the messages as plain turns.

    Raises:
        RequestError: they are invalid.
    """
    items = as_list(messages, "messages")
    if not items:
        raise invalid_field("messages", items, "one message or more")
    return [
        _read_plain_turn(message) or turn_of(message, f"messages[{index}]")
        for index, message in enumerate(items)
    ]


def text_of(content: Json, where: str) -> str:
    """Return a message's text, with placeholders such as `[image]` for images, audio and files.

    Raises:
        RequestError: it is neither a string nor a list of parts.
    """
    if isinstance(content, str):
        return as_text(content, where)
    if not isinstance(content, list):
        raise invalid_field(where, content, "a string or a list of parts")
    return "\n".join(_read_part_text(part, place) for part, place in objects_in(content, where))


def turn_of(message: Json, where: str) -> Message:
    """Read one message as a plain turn.

    Raises:
        RequestError: it is invalid.
    """
    fields = as_object(message, where)
    role = fields.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid_field(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    if role == "assistant":
        return _read_assistant_turn(fields, where)
    content = text_of(fields.get("content"), f"{where}.content")
    if role != "tool" or fields.get("tool_call_id") is None:
        return Message(role=ROLES[role], content=content)
    call_id = as_text(fields["tool_call_id"], f"{where}.tool_call_id")
    return Message(role="tool", content=content, call_id=call_id)


def read_reply(message: Mapping[str, Json], where: str) -> Reply:
    """Read the message of a chat completion: text, refusal, reasoning and calls of all kinds.

    Raises:
        RequestError: it is invalid.
    """
    turn = turn_of({**message, "role": "assistant"}, where)
    thoughts = [thought for key in REASONING if isinstance(thought := message.get(key), str)]
    # Some servers write the same text under both names.
    reasoning = "\n".join(filter(None, dict.fromkeys(thoughts)))
    return Reply(text=turn.content, calls=turn.calls, reasoning=reasoning)


def _read_plain_turn(message: Json) -> Message | None:
    """Return the turn of a message that is a role and a text, as most are; None of any other."""
    if not isinstance(message, dict) or len(message) != 2:
        return None
    role, content = message.get("role"), message.get("content")
    if isinstance(role, str) and role in ROLES and isinstance(content, str) and "\0" not in content:
        return Message(role=ROLES[role], content=content)
    return None


def _read_assistant_turn(message: dict[str, Json], where: str) -> Message:
    """Read an assistant's turn: text, refusal and tool calls."""
    texts = [
        text_of(message[key], f"{where}.{key}")
        for key in ("content", "refusal")
        if message.get(key) is not None
    ]
    calls: list[ToolCall] = []
    if message.get("tool_calls") is not None:
        for call, place in objects_in(message["tool_calls"], f"{where}.tool_calls"):
            calls.append(_read_tool_call(call, place))
    if message.get("function_call") is not None:
        function_call = message["function_call"]
        calls.append(
            _read_called_tool("", function_call, "function_call", f"{where}.function_call")
        )
    text = "\n".join(text for text in texts if text)
    return Message(role="assistant", content=text, calls=tuple(calls))


def _read_tool_call(call: dict[str, Json], where: str) -> ToolCall:
    call_id = call.get("id")
    call_id = call_id if isinstance(call_id, str) else ""
    if is_custom(call):
        return _read_called_tool(call_id, call["custom"], "custom", f"{where}.custom")
    return _read_called_tool(call_id, call.get("function"), "function", f"{where}.function")


def is_custom(call: dict[str, Json]) -> bool:
    """Return whether this is a custom tool of a chat, whose input is free text, or a call of it."""
    return call.get("function") is None and call.get("custom") is not None


def _read_called_tool(call_id: str, called: Json, kind: CallKind, where: str) -> ToolCall:
    fields = as_object(called, where)
    key = "input" if kind == "custom" else "arguments"
    return ToolCall(
        id=call_id,
        name=as_name(fields.get("name"), f"{where}.name"),
        arguments=as_text(fields.get(key), f"{where}.{key}"),
        kind=kind,
    )


def _read_part_text(fields: dict[str, Json], where: str) -> str:
    kind = as_name(fields.get("type"), f"{where}.type")
    if kind == "text":
        return as_text(fields.get("text"), f"{where}.text")
    if kind == "refusal":
        return as_text(fields.get("refusal"), f"{where}.refusal")
    if isinstance(fields.get("text"), str):  # the agents must see the text of unknown kinds, too
        return as_text(fields["text"], f"{where}.text")
    return f"[{MEDIA.get(kind, kind)}]"
