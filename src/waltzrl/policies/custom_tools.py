"""Custom tools, whose input is free text, for servers that know functions only."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from waltzrl.records import ToolCall

PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The schema of a function that stands for a custom tool."""


def with_functions(chat: Mapping[str, object]) -> dict[str, object]:
    """Return a chat with functions of one text for its custom tools, and for calls of them."""
    changed = dict(chat)
    tools, messages, choice = (chat.get(key) for key in ("tools", "messages", "tool_choice"))
    if isinstance(tools, list):
        changed["tools"] = [*map(_convert_tool, tools)]
    if isinstance(messages, list):
        changed["messages"] = [*map(_convert_message, messages)]
    if choice is not None:
        changed["tool_choice"] = _convert_choice(choice)
    return changed


def restore_custom_calls(calls: Iterable[ToolCall], tools: object) -> tuple[ToolCall, ...]:
    """Return calls of functions that stand for custom tools as calls of these."""
    customs = map(_find_custom, tools if isinstance(tools, list) else [])
    names = {custom.get("name") for custom in customs if custom}
    return tuple(
        replace(call, kind="custom", arguments=_read_input(call.arguments))
        if call.kind == "function" and call.name in names
        else call
        for call in calls
    )


def _find_custom(item: object) -> Mapping[str, object] | None:
    custom = item.get("custom") if isinstance(item, dict) else None
    return custom if isinstance(custom, dict) else None


def _convert_tool(tool: object) -> object:
    custom = _find_custom(tool)
    if custom is None:
        return tool
    described = [custom.get("description")]
    form = custom.get("format")
    grammar = form.get("grammar") if isinstance(form, dict) else None
    if isinstance(grammar, dict):
        described.append(f"The input follows this grammar:\n{grammar.get('definition')}")
    function: dict[str, object] = {
        "name": custom.get("name"),
        "description": "\n\n".join(str(text) for text in described if text),
        "parameters": PARAMETERS,
    }
    return {"type": "function", "function": function}


def _convert_message(message: object) -> object:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not (isinstance(message, dict) and isinstance(calls, list)):
        return message
    return {**message, "tool_calls": [*map(_convert_call, calls)]}


def _convert_call(call: object) -> object:
    custom = _find_custom(call)
    if custom is None or not isinstance(call, dict):
        return call
    arguments = json.dumps({"input": custom.get("input")}, ensure_ascii=False)
    function = {"name": custom.get("name"), "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": function}


def _convert_choice(choice: object) -> object:
    if custom := _find_custom(choice):
        return {"type": "function", "function": custom}
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    if not (isinstance(allowed, dict) and isinstance(allowed.get("tools"), list)):
        return choice
    tools = [*map(_convert_choice, allowed["tools"])]
    return {"type": "allowed_tools", "allowed_tools": {**allowed, "tools": tools}}


def _read_input(arguments: str) -> str:
    """Return the only text in the arguments of a function; what is none is an input as it is."""
    try:
        texts = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    values = [*texts.values()] if isinstance(texts, dict) else []
    return values[0] if len(values) == 1 and isinstance(values[0], str) else arguments
