"""Chats for templates that take one system message, at the beginning, and turns that alternate.

Agents have system turns in the middle of a conversation, and several at its beginning.
"""

import re
from collections.abc import Mapping

LATE_SYSTEM = re.compile(
    r"system (?:message|prompt|role)\b.{0,60}\b(?:beginning|first|start)"
    r"|(?:unexpected|incorrect|invalid) (?:message )?role|\brole param error|roles must alternate"
    r"|[\"'`]developer\b|\bdeveloper\b.{0,80}\b(?:role|system)|\brole\b.{0,80}\bdeveloper\b",
    re.IGNORECASE,
)
"""The words with which templates refuse a chat for the order of its turns, or for developers'."""


def with_system_first(chat: Mapping[str, object]) -> dict[str, object]:
    """Return a chat with one system message; those after it are said in turns of the user."""
    turns: list[dict[str, object]] = []
    messages = chat.get("messages")
    for message in messages if isinstance(messages, list) else ():
        role = message.get("role")
        if role in ("system", "developer"):
            role = "system" if not turns or turns[-1]["role"] == "system" else "user"
        if turns and role in ("system", "user") and turns[-1]["role"] == role:
            content = _join_contents(turns[-1].get("content"), message.get("content"))
            turns[-1] = {**turns[-1], "content": content}
        else:
            turns.append({**message, "role": role})
    return {**chat, "messages": turns}


def _join_contents(first: object, second: object) -> object:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_list_parts(first), *_list_parts(second)]


def _list_parts(content: object) -> list[object]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
