"""Fields of a chat that some servers refuse, and that a request can do without."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal, TypeVar, get_args

from waltzrl.errors import WaltzError
from waltzrl.policies.refused_tools import with_functions, with_short_names
from waltzrl.policies.system_first import LATE_SYSTEM, with_system_first

Answer = TypeVar("Answer")

RefusedField = Literal[
    "reasoning",
    "stream_options",
    "max_tokens",
    "reasoning_effort",
    "user",
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "store",
    "verbosity",
    "thought_signature",
    "custom_tools",
    "tool_names",
    "late_system",
]
"""A field that a server may refuse, or miss.

The reasoning of earlier turns has no standard, and a client that got it sends it back with every
request. `stream_options` asks for token counts. `max_tokens` is the older name of another field.
`thought_signature` is what Gemini misses in a call of an earlier turn: some APIs have no place for
it. Custom tools become functions, long names of tools shorter, and system messages after the first
the user's. The others are hints.
"""
FIELDS: tuple[RefusedField, ...] = get_args(RefusedField)
LASTING: tuple[RefusedField, ...] = (
    "stream_options",
    "max_tokens",
    "thought_signature",
    "custom_tools",
    "tool_names",
    "late_system",
)
"""The fields that a model refuses whatever their value is, and that no client misses."""
REFUSES_A_FIELD = re.compile(
    r"unsupported|unexpected|unknown|unrecogni[sz]ed|\bextra|additional|please remove"
    r"|not (?:be )?(?:supported|permitted|allowed|included)|only allowed when"
    r"|missing a \W?thought_signature",
    re.IGNORECASE,
)
"""The words with which servers refuse a field; those that need it say that it is missing."""
SEEN_IN_FEW: Mapping[RefusedField, re.Pattern[str]] = {
    "custom_tools": re.compile("custom|function|tool"),
    "tool_names": re.compile("name"),
    "late_system": LATE_SYSTEM,
}
"""The words with which servers refuse what few chats have, so that they need not be exact."""
NEWER = "max_completion_tokens"
REASONING = ("reasoning_content", "reasoning")
"""The names of the reasoning of a message."""
UNSIGNED = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""What Google's documentation has for a call that has no signature."""


async def send_without_refused(
    chat: Mapping[str, object],
    refusal: WaltzError,
    send: Callable[[Mapping[str, object]], Awaitable[Answer]],
    words_of: Callable[[WaltzError], str],
) -> tuple[Answer, RefusedField | None]:
    """Send a refused chat again, without the fields that the server refuses, or by newer names.

    Args:
        chat: the body of the request.
        refusal: the error that the request ended with.
        send: sends a body.
        words_of: returns the server's words if an error is an answer 400 or 422, else nothing.

    Returns:
        The answer, and the field that later requests to the model can do without, if there is one.
        A server may quote what a client sent, so of several fields only the last is known to be
        refused: without the others the chat was refused, and without it too it was not.

    Raises:
        WaltzError: the last error, if it names no field that the request can do without.
    """
    while (field := _refused_field(chat, words_of(refusal))) is not None:
        chat = without_fields(chat, [field])
        try:
            answer = await send(chat)
        except WaltzError as error:
            refusal = error
        else:
            return answer, field if field in LASTING else None
    raise refusal


def without_fields(
    chat: Mapping[str, object], refused: Iterable[RefusedField]
) -> dict[str, object]:
    """Return the chat as a server takes it that refuses these fields."""
    changed = dict(chat)
    for field in refused:
        if change := CHANGES.get(field):
            changed |= change(changed)
        elif field in changed:
            value = changed.pop(field)
            if field == "max_tokens":
                changed.setdefault(NEWER, value)
    return changed


def _refused_field(chat: Mapping[str, object], words: str) -> RefusedField | None:
    """Return the field of a chat that a server's words refuse; None without such a field."""
    for field in FIELDS:
        if field == "max_tokens" and NEWER in chat:  # the client sent both
            continue
        if _refuses(words, field) and without_fields(chat, [field]) != chat:
            return field
    return None


def _refuses(words: str, field: RefusedField) -> bool:
    """Return whether the words refuse a field; one that is a word of English must be in quotes, or
    before what is said of it.
    """
    if pattern := SEEN_IN_FEW.get(field):
        return pattern.search(words) is not None
    if not REFUSES_A_FIELD.search(words):
        return False
    if field == "max_tokens" and NEWER not in words:  # its number may be too large
        return False
    if field == "reasoning" and "reasoning_content" in words:
        return True
    if "_" in field:
        return re.search(rf"\b{field}\b", words) is not None
    return re.search(rf"[\"'`]{field}[\"'`]|\b{field}: extra inputs", words, re.I) is not None


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


def _with_signatures(chat: Mapping[str, object]) -> dict[str, object]:
    """Return the messages with a signature at the first call of each, as Gemini has them."""
    messages = chat.get("messages")
    return {"messages": [*map(_sign_message, messages)]} if isinstance(messages, list) else {}


def _sign_message(message: object) -> object:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not (isinstance(message, dict) and calls):
        return message
    first, *others = calls
    return {**message, "tool_calls": [{"extra_content": UNSIGNED, **first}, *others]}


CHANGES: Mapping[RefusedField, Callable[[Mapping[str, object]], dict[str, object]]] = {
    "reasoning": _without_reasoning,
    "thought_signature": _with_signatures,
    "custom_tools": with_functions,
    "tool_names": with_short_names,
    "late_system": with_system_first,
}
"""The fields that are no keys of a chat -> what returns its keys without them, or with what a
server misses.
"""
