"""Reads calls that are no `function` in `tool_calls`: of custom tools, and in `function_call`."""

import json
import secrets

import msgspec

from waltzrl.records import ToolCall


def name_and_text(call: object, key: str) -> tuple[str, str] | None:
    """Return the name in a call and the text under `key`; None if it is no object."""
    fields: object = None if call is None else msgspec.to_builtins(call)
    if not isinstance(fields, dict):
        return None
    name, text = fields.get("name"), fields.get(key)
    if text is not None and not isinstance(text, str):
        text = json.dumps(text, ensure_ascii=False)
    return name if isinstance(name, str) else "", text or ""


class OlderCall:
    """The call in the field `function_call` of a reply, which some servers send empty with any."""

    def __init__(self) -> None:
        self._name = self._arguments = ""
        # The field has no id, which a call needs in other APIs than a chat.
        self._id = f"call_{secrets.token_hex(12)}"

    def add(self, part: object) -> None:
        """Add the field's value, whole or the next part of it in a stream."""
        name, arguments = name_and_text(part, "arguments") or ("", "")
        self._name = name or self._name
        self._arguments += arguments

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The call; none if the field was missing or empty."""
        if not (self._name or self._arguments):
            return ()
        name, arguments = self._name, self._arguments
        return (ToolCall(id=self._id, name=name, arguments=arguments, kind="function_call"),)


def older_calls(field: object) -> tuple[ToolCall, ...]:
    """Return the call in a whole field `function_call`."""
    call = OlderCall()
    call.add(field)
    return call.calls
