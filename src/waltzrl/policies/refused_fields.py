"""Fields of a chat that some servers refuse, and that a request can do without."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

RefusedField = Literal[
    "reasoning",
    "stream_options",
    "max_tokens",
    "reasoning_effort",
    "user",
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
]
"""A field that a server may refuse.

The reasoning of earlier turns has no standard, and a client that got it sends it back with every
request. `stream_options` asks for token counts. `max_tokens` is the older name of another field.
The others are hints.
"""
FIELDS: tuple[RefusedField, ...] = get_args(RefusedField)
LASTING: tuple[RefusedField, ...] = ("stream_options", "max_tokens")
"""The fields that a model refuses whatever their value is, and that no client misses."""
REFUSES_A_FIELD = re.compile(
    r"unsupported|unexpected|unknown|unrecogni[sz]ed|\bextra|additional|please remove"
    r"|not (?:be )?(?:supported|permitted|allowed|included)|only allowed when",
    re.IGNORECASE,
)
"""The words with which servers refuse a field; those that need it say that it is missing."""
NEWER = "max_completion_tokens"
REASONING = ("reasoning_content", "reasoning")
"""The names of the reasoning of a message."""


def refused_field(chat: Mapping[str, object], words: str) -> RefusedField | None:
    """Return the field of a chat that a server refuses; None if it refuses none of these.

    Args:
        chat: the body of the request.
        words: of the server's answer 400 or 422.
    """
    if not REFUSES_A_FIELD.search(words):
        return None
    return next(
        (
            field
            for field in FIELDS
            if _names_field(words, field)
            and without_fields(chat, [field]) != chat
            and not (field == "max_tokens" and NEWER in chat)
        ),
        None,
    )


def worth_remembering(refused: Sequence[RefusedField]) -> bool:
    """Return whether later requests to the model can do without these fields from the beginning.

    A server may quote what a client sent, so of several fields it is not known which it refuses.
    """
    return len(refused) == 1 and refused[0] in LASTING


def without_fields(
    chat: Mapping[str, object], refused: Iterable[RefusedField]
) -> dict[str, object]:
    """Return the chat as a server takes it that refuses these fields."""
    changed = dict(chat)
    for field in refused:
        if field == "reasoning":
            changed |= _without_reasoning(changed)
        elif field in changed:
            value = changed.pop(field)
            if field == "max_tokens":
                changed.setdefault(NEWER, value)
    return changed


def _names_field(words: str, field: RefusedField) -> bool:
    """Return whether the words name a field; one that is a word of English must be in quotes."""
    if field == "max_tokens" and NEWER not in words:  # its number may be too large
        return False
    if field == "reasoning" and "reasoning_content" in words:
        return True
    if "_" in field:
        return re.search(rf"\b{field}\b", words) is not None
    return re.search(rf"[\"'`]{field}[\"'`]", words) is not None


def _without_reasoning(chat: Mapping[str, object]) -> dict[str, object]:
    messages = chat.get("messages")
    if not isinstance(messages, list):
        return {}
    shorter = [
        {key: value for key, value in message.items() if key not in REASONING}
        if isinstance(message, dict)
        else message
        for message in messages
    ]
    return {"messages": shorter}
