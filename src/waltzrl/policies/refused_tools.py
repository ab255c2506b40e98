"""Tools and calls as servers take them that know functions only, or that limit names and ids.

Nobody else sees them so: reviewers and clients have the calls of the client's own tools.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import sha256

from waltzrl.policies.server_json import mend_text
from waltzrl.records import ToolCall

PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The schema of a function that stands for a custom tool, whose input is free text."""
KINDS = ("function", "custom")
NARROWING = frozenset(
    (
        *("$schema", "$id", "$anchor", "$comment", "additionalProperties", "patternProperties"),
        *("propertyNames", "unevaluatedProperties", "dependentRequired", "dependentSchemas"),
        *("exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems", "contains"),
        *("if", "then", "else", "not", "default", "examples", "deprecated", "readOnly"),
    )
)
"""Keywords of JSON Schema that some servers do not know, and without which a model still knows what
to write."""
NAMED_SCHEMAS = ("properties", "$defs", "definitions")
"""Keywords whose values are schemas by name."""
SHOWN = {"type": "text", "text": "[tool_result]"}
"""What a user's message begins with that holds what tools have shown, and not the user."""
MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")
LONGEST_NAME = 64
"""The characters of a name that OpenAI takes."""


def with_functions(chat: Mapping[str, object]) -> dict[str, object]:
    """Return a chat with functions of one text for its custom tools, and for calls of them."""
    return _convert_tools(chat, _convert_tool, _convert_call, _convert_choice)


def with_short_names(chat: Mapping[str, object]) -> dict[str, object]:
    """Return a chat whose tools have no long names."""
    return _convert_tools(chat, _shorten_name, _shorten_name, _shorten_name)


def with_plain_schemas(chat: Mapping[str, object]) -> dict[str, object]:
    """Return a chat whose functions are described without what Gemini's schemas do not have."""
    return _convert_tools(chat, _simplify_tool, _keep, _keep)


def with_short_ids(chat: Mapping[str, object]) -> dict[str, object]:
    """Return a chat whose earlier calls, and the results of them, have ids that any server takes.

    A client may have them of another server, whose ids are longer or have other characters.
    """
    messages = chat.get("messages")
    if not isinstance(messages, list):
        return dict(chat)
    return {**chat, "messages": [_shorten_result(_convert_calls(m, _shorten_id)) for m in messages]}


def with_own_ids(chat: Mapping[str, object]) -> dict[str, object]:
    """Return a chat in which no two calls have the same id, and each result has that of its call.

    Some models count the calls of each of their replies anew.
    """
    used: set[str] = set()
    waiting: dict[object, list[str]] = {}
    """The ids of a turn's calls -> what those without a result are called now."""

    def rename(call: object) -> object:
        if not (isinstance(call, dict) and isinstance(call.get("id"), str)):
            return call
        own, number = call["id"], 1
        while own in used:
            number += 1
            own = f"{call['id']}_{number}"
        used.add(own)
        waiting.setdefault(call["id"], []).append(own)
        return {**call, "id": own}

    messages: list[object] = []
    for message in _list_messages(chat):
        if isinstance(message, dict) and message.get("tool_calls"):
            waiting.clear()
        changed = _convert_calls(message, rename)
        if isinstance(changed, dict) and waiting.get(changed.get("tool_call_id")):
            changed = {**changed, "tool_call_id": waiting[changed["tool_call_id"]].pop(0)}
        messages.append(changed)
    return {**chat, "messages": messages}


def with_shown_by_user(chat: Mapping[str, object]) -> dict[str, object]:
    """Return a chat with the parts of tools' results that are no text in a user's message.

    It says whose they are, and follows the results of all calls of a turn, because nothing may
    stand between these.
    """
    messages: list[object] = []
    shown: list[object] = []
    for message in _list_messages(chat):
        is_result = isinstance(message, dict) and message.get("role") == "tool"
        if shown and not is_result:
            messages.append({"role": "user", "content": [SHOWN, *shown]})
            shown = []
        parts = message.get("content") if isinstance(message, dict) and is_result else None
        if isinstance(message, dict) and isinstance(parts, list):
            texts = [part for part in parts if _find_text(part) is not None]
            if len(texts) < len(parts):
                shown += [part for part in parts if _find_text(part) is None]
                message = {**message, "content": "\n".join(map(str, map(_find_text, texts)))}
        messages.append(message)
    if shown:
        messages.append({"role": "user", "content": [SHOWN, *shown]})
    return {**chat, "messages": messages}


def _list_messages(chat: Mapping[str, object]) -> list[object]:
    messages = chat.get("messages")
    return messages if isinstance(messages, list) else []


def _find_text(part: object) -> object:
    return part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None


def restore_calls(calls: Iterable[ToolCall], tools: object) -> tuple[ToolCall, ...]:
    """Return calls of what stands for the client's tools as calls of these."""
    names: dict[str, str] = {}
    customs: set[str] = set()
    for tool in tools if isinstance(tools, list) else ():
        for kind in KINDS:
            if named := _find(tool, kind):
                name = str(named.get("name"))
                names[_shorten(name)] = name
                if kind == "custom":
                    customs.add(name)
    return tuple(_restore_call(call, names.get(call.name, call.name), customs) for call in calls)


def _restore_call(call: ToolCall, name: str, customs: Iterable[str]) -> ToolCall:
    if call.kind == "function" and name in customs:
        return replace(call, name=name, kind="custom", arguments=_read_input(call.arguments))
    return replace(call, name=name)


Convert = Callable[[object], object]


def _convert_tools(
    chat: Mapping[str, object],
    convert_tool: Convert,
    convert_call: Convert,
    convert_choice: Convert,
) -> dict[str, object]:
    changed = dict(chat)
    tools, messages, choice = (chat.get(key) for key in ("tools", "messages", "tool_choice"))
    if isinstance(tools, list):
        changed["tools"] = [*map(convert_tool, tools)]
    if isinstance(messages, list):
        changed["messages"] = [_convert_calls(message, convert_call) for message in messages]
    allowed = _find(choice, "allowed_tools") or {}
    if isinstance(named := allowed.get("tools"), list):
        converted = {**allowed, "tools": [*map(convert_choice, named)]}
        changed["tool_choice"] = {"type": "allowed_tools", "allowed_tools": converted}
    elif choice is not None:
        changed["tool_choice"] = convert_choice(choice)
    return changed


def _convert_calls(message: object, convert: Convert) -> object:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not (isinstance(message, dict) and isinstance(calls, list)):
        return message
    return {**message, "tool_calls": [*map(convert, calls)]}


def _find(item: object, key: str) -> Mapping[str, object] | None:
    """Return the object that another has under a key; None if there is none."""
    found = item.get(key) if isinstance(item, dict) else None
    return found if isinstance(found, dict) else None


def _shorten_name(item: object) -> object:
    for kind in KINDS:
        if isinstance(item, dict) and (named := _find(item, kind)):
            item = {**item, kind: {**named, "name": _shorten(str(named.get("name")))}}
    return item


def _shorten(name: str) -> str:
    """Return a name; the beginning and a digest of one that is too long."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:55]}_{sha256(name.encode()).hexdigest()[:8]}"


def _keep(item: object) -> object:
    return item


def _simplify_tool(tool: object) -> object:
    function = _find(tool, "function") or {}
    if not (isinstance(tool, dict) and "parameters" in function):
        return tool
    return {**tool, "function": {**function, "parameters": _simplify(function["parameters"])}}


def _simplify(schema: object) -> object:
    """Return a schema without the keywords that only narrow what is valid, or say nothing."""
    if isinstance(schema, list):
        return [_simplify(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    simple: dict[str, object] = {}
    for key, value in schema.items():
        if key in NAMED_SCHEMAS and isinstance(value, dict):  # whose keys are names
            simple[key] = {name: _simplify(inner) for name, inner in value.items()}
        elif key not in NARROWING:
            simple[key] = value if key in ("enum", "required") else _simplify(value)
    return simple


def _shorten_id(item: object, key: str = "id") -> object:
    """Return an object with an id that Mistral takes, which takes the fewest, under its key."""
    if not (isinstance(item, dict) and isinstance(item.get(key), str)):
        return item
    if MISTRAL_ID.fullmatch(item[key]):
        return item
    return {**item, key: sha256(item[key].encode()).hexdigest()[:9]}


def _shorten_result(message: object) -> object:
    return _shorten_id(message, "tool_call_id")


def _convert_tool(tool: object) -> object:
    custom = _find(tool, "custom")
    if custom is None:
        return tool
    described = [custom.get("description")]
    grammar = _find(custom.get("format"), "grammar")
    if grammar:
        described.append(f"The input follows this grammar:\n{grammar.get('definition')}")
    function: dict[str, object] = {
        "name": custom.get("name"),
        "description": "\n\n".join(str(text) for text in described if text),
        "parameters": PARAMETERS,
    }
    return {"type": "function", "function": function}


def _convert_call(call: object) -> object:
    custom = _find(call, "custom")
    if custom is None or not isinstance(call, dict):
        return call
    arguments = json.dumps({"input": custom.get("input")}, ensure_ascii=False)
    function = {"name": custom.get("name"), "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": function}


def _convert_choice(choice: object) -> object:
    custom = _find(choice, "custom")
    return {"type": "function", "function": custom} if custom else choice


def _read_input(arguments: str) -> str:
    """Return the only text in the arguments of a function; what is none is an input as it is."""
    try:
        texts = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    values = [*texts.values()] if isinstance(texts, dict) else []
    # In JSON, half a character may be escaped.
    return mend_text(values[0]) if len(values) == 1 and isinstance(values[0], str) else arguments
