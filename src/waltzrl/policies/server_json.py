"""Reads what the servers of models send, in whichever of its usual forms.

Null counts as absent, a number may be a float, a text may be a list of parts, and the arguments of
a call an object. What is read so is brought into the form that OpenAI documents.
"""

import json
import re
from collections.abc import Mapping
from math import floor, isfinite

import msgspec

MOST_COUNT = 2**53
"""The largest count that is believed; every integer up to it is exact as a float."""
HIGH_HALF = ("\ud800", "\udbff")
"""The first and the last code unit that begin a surrogate pair."""
PART_TEXTS = ("text", "refusal", "content")
"""The keys under which a part of a content has its text."""
FIELD_TYPES: Mapping[str, type] = {"model": str, "system_fingerprint": str}
"""The types of fields of a completion; a value of another type counts as absent."""
COUNT_NAMES = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
}
"""The names of counts in newer APIs, which some servers use in a chat -> those of a chat."""
REASONING_TEXTS = ("thinking", "reasoning", "summary")
"""The keys under which a part has reasoning; such a part may also have it under one of the others.
"""


def read_json(raw: bytes | str) -> object:
    """Decode JSON, also with halves of surrogate pairs and control characters in its texts.

    Only the standard library reads these.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = raw if isinstance(raw, str) else raw.decode("utf-8-sig", "replace")
        return json.loads(text, strict=False)


def encode_body(value: object) -> bytes:
    """Encode JSON for a server; a half of a surrogate pair, which UTF-8 lacks, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return mend_text(json.dumps(value, ensure_ascii=False)).encode()


def mend_text(text: str) -> str:
    """Join the halves of surrogate pairs; a half without its other becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mend_json(value: object) -> object:
    """Mend every text in a JSON value, and remove the keys whose value is null."""
    if isinstance(value, str):
        return mend_text(value)
    if isinstance(value, list):
        return [mend_json(item) for item in value]
    if isinstance(value, dict):
        return {mend_text(key): mend_json(v) for key, v in value.items() if v is not None}
    return value


class TextJoiner:
    """Joins the pieces of a text that may be divided within a surrogate pair."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """Return the text that this piece completes."""
        if not self._half and piece.isascii():  # most are
            return piece
        text = self._half + piece
        first, last = HIGH_HALF
        self._half = text[-1] if text and first <= text[-1] <= last else ""
        return mend_text(text[:-1] if self._half else text)

    def end(self) -> str:
        """Return what is left at the end of the text: U+FFFD for half a pair."""
        half, self._half = self._half, ""
        return mend_text(half)


def read_count(value: object) -> int | None:
    """Return a count of tokens, which may be a text; None where it cannot be read."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,15}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not (0 <= value <= MOST_COUNT) or value != int(value):
        return None
    return int(value)


def read_content(content: object) -> tuple[str, str]:
    """Return the text and the reasoning of a content.

    A list of parts is joined. Any other value is the JSON that the model wrote and that its server
    has decoded, so it is encoded again.
    """
    if content is None:
        return "", ""
    if isinstance(content, str):
        return content, ""
    parts = content if isinstance(content, list) else [content]
    if not all(part is None or isinstance(part, str) or _is_part(part) for part in parts):
        return encode_json(content), ""
    texts = [("", "") if part is None else _read_part(part) for part in parts]
    return "".join(text for text, _ in texts), "".join(reasoning for _, reasoning in texts)


def encode_json(value: object) -> str:
    """Return a value as JSON in one line."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which is mended later
        return json.dumps(value, ensure_ascii=False)


def tidy_completion(body: object) -> dict[str, object]:
    """Return a chat completion, or a chunk of a streamed one, in the form that OpenAI documents.

    The texts of a chunk may still begin or end with half of a surrogate pair.

    Raises:
        ValueError: it has another form.
    """
    if not isinstance(body, dict):
        raise ValueError("not an object")  # noqa: TRY004 (of a type that the server chose)
    fields = {
        key: mend_json(value)
        for key, value in body.items()
        if value is not None and isinstance(value, FIELD_TYPES.get(key, object))
    }
    if isinstance(created := fields.get("created"), float) and isfinite(created):
        fields["created"] = floor(created)
    fields["created"] = read_count(fields.get("created"))
    usage = fields.get("usage")
    fields["usage"] = _tidy_usage(usage) if isinstance(usage, dict) else None
    choices = [_tidy_choice(choice) for choice in _require_objects(body.get("choices"))]
    return {**_drop_nulls(fields), "choices": choices}


def _tidy_usage(usage: Mapping[str, object]) -> dict[str, object]:
    """Return the counts of tokens, and the parts of some, that can be read."""
    usage = {COUNT_NAMES.get(key, key): value for key, value in usage.items()} | dict(usage)
    return _drop_nulls(
        {
            key: _tidy_usage(value)
            if key.endswith("_details") and isinstance(value, dict)
            else read_count(value)
            for key, value in usage.items()
        }
    )


def _tidy_choice(choice: Mapping[str, object]) -> dict[str, object]:
    message, delta, finish = choice.get("message"), choice.get("delta"), choice.get("finish_reason")
    usage = choice.get("usage")
    if isinstance(finish, dict):
        finish = finish.get("type")
    others = {key: value for key, value in choice.items() if key not in ("message", "delta")}
    tidy: dict[str, object] = {
        "message": None if message is None else mend_json(_tidy_words(message)),
        # Not mended yet: a delta may end within a surrogate pair that the next chunk completes.
        "delta": None if delta is None else _tidy_words(delta),
        "finish_reason": finish if isinstance(finish, str) else None,
        "usage": _tidy_usage(usage) if isinstance(usage, dict) else None,
    }
    return _drop_nulls({key: mend_json(value) for key, value in others.items()} | tidy)


def _tidy_words(words: object) -> dict[str, object]:
    """Return a message or what a chunk adds to one."""
    if not isinstance(words, dict):
        return {"content": read_content(words)[0]}
    text, reasoning = read_content(words.get("content"))
    own = next((words[key] for key in ("reasoning", "reasoning_content") if words.get(key)), None)
    tidy: dict[str, object] = {
        "content": text or None,
        "refusal": "".join(read_content(words.get("refusal"))) or None,
        "reasoning": "".join(read_content(own)) or reasoning or None,
        "reasoning_content": None,
        "tool_calls": [_tidy_call(call) for call in _require_objects(words.get("tool_calls"))],
        "images": words.get("images") or _has_media(words.get("content")) or None,
    }
    return _drop_nulls({**words, **tidy})


def _has_media(content: object) -> bool:
    """Return whether a content has a part that is no text."""
    parts = content if isinstance(content, list) else [content]
    types = [str(part.get("type")) for part in parts if isinstance(part, dict)]
    return any(word in kind for kind in types for word in ("image", "audio", "video"))


def _tidy_call(call: Mapping[str, object]) -> dict[str, object]:
    """Return a tool call, or a fragment of one; its function may be spelt without nesting."""
    call_id, function = call.get("id"), call.get("function")
    if function is None and ("name" in call or "arguments" in call):
        function = call
    tidy = {
        "id": None if call_id is None else str(call_id),
        "function": _tidy_function(function) if isinstance(function, dict) else None,
    }
    return _drop_nulls({**call, **tidy})


def _tidy_function(function: Mapping[str, object]) -> dict[str, object]:
    name, arguments = function.get("name"), function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = encode_json(arguments)
    return _drop_nulls({"name": None if name is None else str(name), "arguments": arguments})


def _is_part(value: object) -> bool:
    """Return whether a value is a part of a content: it has a type, or a text alone."""
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("type"), str) or value.keys() == {"text"}


def _read_part(part: object) -> tuple[str, str]:
    """Return the text and the reasoning of a part; a part of another kind has none."""
    if not isinstance(part, dict):
        return str(part), ""
    reasoning = next((part[key] for key in REASONING_TEXTS if part.get(key)), None)
    text = next((part[key] for key in PART_TEXTS if part.get(key)), None)
    if isinstance(text, dict) and "value" in text:  # as OpenAI's assistants have it
        text = text["value"]
    words = "".join(read_content(text if reasoning is None else reasoning))
    is_reasoning = reasoning is not None or str(part.get("type")).startswith(REASONING_TEXTS)
    return ("", words) if is_reasoning else (words, "")


def _require_objects(value: object) -> list[dict[str, object]]:
    """Return the objects in a list, or a single object as a list, without those that are empty.

    Raises:
        ValueError: there is something else.
    """
    items = [item for item in (value if isinstance(value, list) else [value]) if item]
    objects = [item for item in items if isinstance(item, dict)]
    if len(objects) < len(items):
        raise ValueError("not a list of objects")
    return objects


def _drop_nulls(fields: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value is not None}
