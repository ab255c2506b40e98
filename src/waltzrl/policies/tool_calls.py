"""Finds tool calls in the text of a model, in the formats of Hermes and Qwen, and of Llama."""

import json
import re
import secrets
from collections.abc import Collection, Iterator

from waltzrl.records import ToolCall

OPENING = "<tool_call>"
"""What precedes a call in the format of Hermes and Qwen."""
_HERMES = re.compile(r"\s*<tool_call>(.*?)(?:</tool_call>\s*|\Z)", re.DOTALL)
_LLAMA_PREFIX = "<|python_tag|>"
_DECODER = json.JSONDecoder()


def read_calls(text: str, names: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text without its calls, and the calls of the functions in `names`.

    Hermes and Qwen write `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, and Llama
    `{"name": ..., "parameters": {...}}`, several divided by semicolons, without other text. What
    is no well-formed call of a known function stays text.
    """
    bare = text.strip().removeprefix(_LLAMA_PREFIX).strip()
    if bare.startswith("{"):
        calls = [_call(part, names) for part in _objects(bare)]
        if calls and all(calls):
            return "", tuple(call for call in calls if call)
    calls_found: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        calls = [_call(part, names) for part in _objects(match[1].strip())]
        if not calls or not all(calls):
            return match[0]
        calls_found.extend(call for call in calls if call)
        return ""

    return _HERMES.sub(take, text), tuple(calls_found)


def before_calls(text: str) -> str:
    """Return the beginning of a growing text that can be no part of a call."""
    if text.lstrip().startswith(("{", _LLAMA_PREFIX)):
        return ""
    before, opening, _ = text.partition(OPENING)
    return before.rstrip() if opening else text


def _objects(text: str) -> Iterator[object]:
    """Yield the JSON objects in `text`, divided by semicolons; None where it is something else."""
    position = 0
    while position < len(text):
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            yield None
            return
        yield value
        while position < len(text) and text[position] in "; \n\t":
            position += 1


def _call(value: object, names: Collection[str]) -> ToolCall | None:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(name, str) or name not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    return ToolCall(
        id=f"call_{secrets.token_hex(12)}",
        name=name,
        arguments=json.dumps(arguments, ensure_ascii=False),
    )
