"""Fields of a chat that some servers refuse, and that a request can do without."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from waltzrl.errors import WaltzError
from waltzrl.policies.refused_tools import (
    with_functions,
    with_own_ids,
    with_plain_schemas,
    with_short_ids,
    with_short_names,
    with_shown_by_user,
)
from waltzrl.policies.system_first import LATE_SYSTEM, with_system_first

Answer = TypeVar("Answer")
Change: TypeAlias = Callable[[Mapping[str, object]], dict[str, object]]
RefusedField: TypeAlias = str
"""A key of `FIELDS`."""

REFUSES_A_FIELD = re.compile(
    r"unsupported|unexpected|unknown|unrecogni[sz]ed|\bextra|additional|please remove"
    r"|not (?:be )?(?:supported|permitted|allowed|included)|only allowed when"
    r"|missing a \W?thought_signature",
    re.IGNORECASE,
)
"""The words with which servers refuse a field; those that need it say that it is missing."""
NEWER = "max_completion_tokens"
REASONING = ("reasoning_content", "reasoning")
"""The names of the reasoning of a message."""
NO_REASONING = " "
"""The shortest reasoning that DeepSeek's server takes, of a turn whose own nobody has kept."""
EMPTY = "[empty]"
"""The content of a message that has none, for a server that wants one."""
GO_ON = "Go on from exactly there, and do not repeat it."
"""What a model is asked that does not go on by itself with a reply which the client has begun."""
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
    tried: list[RefusedField] = []
    while (field := _refused_field(chat, words_of(refusal), tried)) is not None:
        tried.append(field)  # two changes could undo each other without end
        chat = without_fields(chat, [field])
        try:
            answer = await send(chat)
        except WaltzError as error:
            refusal = error
        else:
            return answer, field if FIELDS[field].lasting else None
    raise refusal


def without_fields(
    chat: Mapping[str, object], refused: Iterable[RefusedField]
) -> dict[str, object]:
    """Return the chat as a server takes it that refuses these fields."""
    changed = dict(chat)
    for field in refused:
        if change := FIELDS[field].change:
            changed |= change(changed)
        elif field in changed:
            value = changed.pop(field)
            if field == "max_tokens":
                changed.setdefault(NEWER, value)
    return changed


def _refused_field(
    chat: Mapping[str, object], words: str, tried: Iterable[RefusedField]
) -> RefusedField | None:
    """Return the field of a chat that a server's words refuse; None without a new one."""
    refuses = REFUSES_A_FIELD.search(words) is not None
    for field, known in FIELDS.items():
        if field in tried or (field == "max_tokens" and NEWER in chat):  # the client sent both
            continue
        named = (refuses or known.seen_in_few) and re.search(known.words, words)
        if named and without_fields(chat, [field]) != chat:
            return field
    return None


def _without_reasoning(chat: Mapping[str, object]) -> dict[str, object]:
    return _change_messages(
        chat, lambda message: {key: message[key] for key in message if key not in REASONING}
    )


def _with_reasoning(chat: Mapping[str, object]) -> dict[str, object]:
    """Return the assistant's messages with reasoning, as a model has them that misses it."""
    return _change_messages(chat, _add_reasoning)


def _add_reasoning(message: Mapping[str, object]) -> Mapping[str, object]:
    if message.get("role") != "assistant" or any(message.get(key) for key in REASONING):
        return message
    return {**message, REASONING[0]: NO_REASONING}


def _with_signatures(chat: Mapping[str, object]) -> dict[str, object]:
    """Return the messages with a signature at the first call of each, as Gemini has them."""
    return _change_messages(chat, _sign_message)


def _sign_message(message: Mapping[str, object]) -> Mapping[str, object]:
    calls = message.get("tool_calls")
    if not (isinstance(calls, list) and calls):
        return message
    first, *others = calls
    return {**message, "tool_calls": [{"extra_content": UNSIGNED, **first}, *others]}


def _with_request_last(chat: Mapping[str, object]) -> dict[str, object]:
    """Return the messages with a request to go on after a reply that the client has begun."""
    messages = chat.get("messages")
    if not (isinstance(messages, list) and messages and isinstance(messages[-1], dict)):
        return {}
    if messages[-1].get("role") != "assistant" or messages[-1].get("tool_calls"):
        return {}
    return {"messages": [*messages, {"role": "user", "content": GO_ON}]}


def _with_words(chat: Mapping[str, object]) -> dict[str, object]:
    return _change_messages(chat, _fill_content)


def _fill_content(message: Mapping[str, object]) -> Mapping[str, object]:
    """Return a message without empty texts: words that say so, or null beside calls."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    kept = [part for part in parts if not (isinstance(part, dict) and part.get("text") == "")]
    if content and (kept or not parts):
        return message if len(kept) == len(parts) else {**message, "content": kept}
    return {**message, "content": None if message.get("tool_calls") else EMPTY}


def _with_plain_texts(chat: Mapping[str, object]) -> dict[str, object]:
    return _change_messages(chat, _join_parts)


def _join_parts(message: Mapping[str, object]) -> Mapping[str, object]:
    """Return a message whose content is a text, as reviewers read it, if it has texts only.

    Null, as an assistant's message that calls tools has it, becomes an empty text.
    """
    parts = message.get("content")
    if parts is None:
        return {**message, "content": ""}
    if not isinstance(parts, list):
        return message
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    if len(texts) < len(parts):
        return message
    return {**message, "content": "\n".join(map(str, texts))}


def _change_messages(
    chat: Mapping[str, object], change: Callable[[Mapping[str, object]], Mapping[str, object]]
) -> dict[str, object]:
    messages = chat.get("messages")
    if not isinstance(messages, list):
        return {}
    return {"messages": [change(m) if isinstance(m, dict) else m for m in messages]}


class _Field(NamedTuple):
    """What is known of a field that a server may refuse, or miss."""

    words: str
    """A regular expression for how servers name it. A word of English must be in quotes, or before
    what is said of it."""
    lasting: bool = False
    """Whether a model refuses it whatever its value is, and no client misses it."""
    change: Change | None = None
    """Returns keys of a chat without it, or with what a server misses; None for a key of a chat."""
    seen_in_few: bool = False
    """Whether few chats have it, so that the words of a refusal need not be exact."""


PARTS = (
    r"(?i)expected a? ?string|(?:should|must) be a (?:valid )?string"
    r"|content\b.{0,40}(?:\barray|<nil>)"
)
"""How servers refuse a content in parts, and one that is null."""
NO_WORDS = (
    r"(?i)\b(?:content|text|message)\b.{0,60}(?:non-?empty|not be empty|is empty|are empty)"
    r"|must have (?:non-empty )?content|empty (?:content|text|message)"
)
"""How servers refuse a message without a word."""
BEGUN_REPLY = (
    r"(?i)\bprefill|ends? with a user (?:message|turn)|last (?:role|message)\b.{0,30}\buser"
)
"""How servers refuse a conversation that ends with a begun reply."""
DUPLICATE_ID = r"(?i)\bid\b.*duplicat|duplicat.*\bids?\b"
SHOWN_BY_TOOL = r"(?i)\bimage|\btool\b|toolmessage|\bcontent\b|invalid .messages"
"""How servers refuse a picture in the result of a tool; OpenAI's have them in a user's message."""
MISSES_REASONING = r"(?is)\breasoning.?content\b.*\b(?:missing|passed back)\b"
SCHEMA = r"(?is)unknown name .*\b(?:parameters|tools?|function)"
"""How Gemini's servers refuse a keyword of a schema."""
CALL_ID = r"(?is)(?:call|tool|use)\w*[^a-z]{0,9}_?id\b.*(?:must be|match|pattern|length|too long)"
"""How servers refuse the form of a call's id."""


def _quoted(field: str) -> str:
    return rf"(?i:[\"'`]{field}[\"'`]|\b{field}: extra inputs)"


FIELDS: Mapping[RefusedField, _Field] = {
    # A model that thinks wants its reasoning back, which most clients do not keep.
    "missing_reasoning": _Field(MISSES_REASONING, True, _with_reasoning, seen_in_few=True),
    # It has no standard, and a client that got it sends it back with every request.
    "reasoning": _Field(f"reasoning_content|{_quoted('reasoning')}", change=_without_reasoning),
    # It asks for token counts.
    "stream_options": _Field(r"\bstream_options\b", lasting=True),
    # The older name of another field, without which the words are of a number that is too large.
    "max_tokens": _Field(rf"(?s:(?=.*{NEWER}).*\bmax_tokens\b)", lasting=True),
    # Hints, some of which are words of English.
    **{
        hint: _Field(rf"\b{hint}\b" if "_" in hint else _quoted(hint))
        for hint in (
            *("reasoning_effort", "user", "metadata", "prompt_cache_key", "safety_identifier"),
            *("store", "verbosity", "parallel_tool_calls"),
        )
    },
    # What Gemini misses in a call of an earlier turn: some APIs have no place for it.
    "thought_signature": _Field(r"\bthought_signature\b", True, _with_signatures),
    # Texts in parts become one text, and null an empty one.
    "content_parts": _Field(PARTS, True, _with_plain_texts, seen_in_few=True),
    # Keywords of the schemas of functions are left out.
    "schemas": _Field(SCHEMA, True, with_plain_schemas, seen_in_few=True),
    # A request to go on follows a reply that the client has begun.
    "begun_reply": _Field(BEGUN_REPLY, True, _with_request_last, seen_in_few=True),
    # Messages without a word get some.
    "empty_content": _Field(NO_WORDS, True, _with_words, seen_in_few=True),
    # Ids that several calls of a conversation have become different ones.
    "duplicate_ids": _Field(DUPLICATE_ID, True, with_own_ids, seen_in_few=True),
    # What a tool shows becomes the user's.
    "tool_images": _Field(SHOWN_BY_TOOL, True, with_shown_by_user, seen_in_few=True),
    # They become shorter ids, functions, shorter names, and turns of the user.
    "call_ids": _Field(CALL_ID, True, with_short_ids, seen_in_few=True),
    "custom_tools": _Field("custom|function|tool", True, with_functions, seen_in_few=True),
    "tool_names": _Field("name", True, with_short_names, seen_in_few=True),
    "late_system": _Field(f"(?i:{LATE_SYSTEM.pattern})", True, with_system_first, seen_in_few=True),
}
