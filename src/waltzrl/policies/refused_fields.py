"""Fields of a chat that some servers refuse, and that a request can do without."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

RefusedField = Literal["reasoning_content", "stream_options", "max_tokens"]
"""A field that a server may refuse.

The reasoning of earlier turns has no standard, and a client that got it sends it back with every
request. `stream_options` asks for token counts. `max_tokens` is the older name of another field.
"""
FIELDS: tuple[RefusedField, ...] = get_args(RefusedField)
REFUSES_A_FIELD = re.compile(
    r"unsupported|unexpected|unknown|unrecogni[sz]ed|\bextra|additional|please remove"
    r"|not (?:be )?(?:supported|permitted|allowed|included)",
    re.IGNORECASE,
)
"""The words with which servers refuse a field; those that need it say that it is missing."""
NEWER = "max_completion_tokens"


def refused_field(chat: Mapping[str, object], words: str) -> RefusedField | None:
    """Return the field of a chat that a server refuses; None if it refuses none of these.

    Args:
        chat: the body of the request.
        words: of the server's answer 400 or 422.
    """
    if not REFUSES_A_FIELD.search(words):
        return None
    for field in FIELDS:
        # A server that names only the older field may find the number too large.
        is_named = field in words and (field != "max_tokens" or NEWER in words)
        if is_named and without_fields(chat, [field]) != chat:
            return field
    return None


def without_fields(
    chat: Mapping[str, object], refused: Iterable[RefusedField]
) -> dict[str, object]:
    """Return the chat as a server takes it that refuses these fields."""
    changed = dict(chat)
    for field in refused:
        if field == "reasoning_content":
            changed |= _without_reasoning(changed)
        elif field in changed:
            value = changed.pop(field)
            if field == "max_tokens":
                changed.setdefault(NEWER, value)
    return changed


def _without_reasoning(chat: Mapping[str, object]) -> dict[str, object]:
    messages = chat.get("messages")
    if not isinstance(messages, list):
        return {}
    shorter = [
        {key: value for key, value in message.items() if key != "reasoning_content"}
        if isinstance(message, dict)
        else message
        for message in messages
    ]
    return {"messages": shorter}
