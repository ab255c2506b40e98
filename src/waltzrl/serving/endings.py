"""Why replies end, in the words of the many servers that generate them."""

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from waltzrl.policies.tool_calls import is_complete
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Finish

FINISHES: Mapping[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "content_filter": "content_filter",
}
"""The words of servers in lower case; any other is the end of a reply."""


def finish_of(reason: str | None, calls: Sequence[ToolCall]) -> Finish:
    """Return why a reply ended; without a reason, arguments that are incomplete were cut off."""
    if is_reason(reason):
        return FINISHES.get(reason.lower(), "stop")
    if not calls:
        return "stop"
    return "tool_calls" if is_complete(calls[-1].arguments) else "length"


def is_reason(reason: str | None) -> TypeGuard[str]:
    """Return whether a reply has ended; some servers write null as a word."""
    return reason is not None and reason.lower() not in ("", "null", "none")


def stop_sequence_of(stop_reason: object, matched_stop: object) -> str | None:
    """Return the stop sequence that ended the reply, where vLLM or SGLang say which."""
    texts = [text for text in (stop_reason, matched_stop) if isinstance(text, str)]
    return texts[0] if texts else None
