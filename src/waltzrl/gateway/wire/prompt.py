"""Turns a chat-completions request into the prompt that the reviewers see.

The messages become turns. Whatever else can steer the reply becomes the prompt's context: the
definitions of tools, the format of the reply, documents, and every other text in a message.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import unquote_to_bytes

from waltzrl.gateway.exchange import Json
from waltzrl.gateway.keys import ANONYMOUS, Caller
from waltzrl.gateway.wire.fields import MEDIA, ROLES, is_custom, turns_of, unsupported_field
from waltzrl.records import Media, Message, Prompt, Role

CARRIERS: Mapping[str, Role] = {
    "tools": "system",
    "functions": "system",
    "tool_choice": "system",
    "function_call": "system",
    "response_format": "system",
    "web_search_options": "system",
    "documents": "tool",
    "prediction": "assistant",
    "stop": "system",
}
"""Keys of a request whose texts steer the reply, and the role in whose turns models read them."""
TURN_KEYS = frozenset(("role", "content"))
ASSISTANT_KEYS = TURN_KEYS | {"refusal", "tool_calls", "function_call"}
"""Keys of an assistant's message that `turns_of` reads, or whose value has parts that it reads; of
any other message it reads those above. Some templates show a model the calls of each."""
ID_KEYS = frozenset(("id", "tool_call_id"))
ID = re.compile(r"(?:[a-z0-9]{1,16}[-_:.]){0,2}[A-Za-z0-9]{1,64}")
"""An id as servers make them, such as `call_9uA1` or `chatcmpl-tool-4e0c`; any other is text."""
_FORMAT_WORDS = """
    $defs $ref additionalProperties allOf anyOf array auto boolean cache_control const content
    custom data default definition description detail enum ephemeral file_data file_id filename
    format function grammar high id index input integer items json_object json_schema lark low mp3
    name none null number object oneOf parameters properties regex required schema source strict
    string syntax text title type wav
"""
FORMAT_WORDS = frozenset(_FORMAT_WORDS.split())
"""Keys and values that belong to the formats; all others are words that a model reads."""
ENCODED = re.compile(r"data:\S*|[\w+/=-]{512,}", re.ASCII)
"""Data in some encoding, which is no text."""
SHORT = 64
"""The number of characters below which a value is text."""

TEXT_FILES = (
    *("data:text/", "data:message/", "data:application/json", "data:application/xml"),
    *("data:application/x-", "data:application/csv", "data:application/yaml"),
    *("data:application/toml", "data:application/sql", "data:application/javascript"),
)
"""The beginnings, in lower case, of URLs with the content of a text file."""
LONGEST_TYPE = max(map(len, TEXT_FILES))
CHARSET = re.compile(r"(;charset=)\"?([^;,\"]*)\"?", re.IGNORECASE)
"""The parameter of such a URL that names the encoding; UTF-8 without it."""


def prompt_of(body: Mapping[str, Json], request_id: str, caller: Caller = ANONYMOUS) -> Prompt:
    """Read the prompt of a chat-completions request.

    A prompt ends with the turn of a user or tool that must be answered. Turns after it, such as
    the beginning of a reply, influence the answer as much, so they are appended to that turn.
    Without a turn of a user or tool, the last turn counts as the user's.

    Raises:
        RequestError: the messages are invalid, or the caller may not send what is in them.
    """
    turns = _end_with_request(turns_of(body.get("messages")))
    context = [
        Message(role=role, content=f"{key}:\n{text}")
        for key, role in CARRIERS.items()
        if key in body and (text := _join_texts(body[key]))
    ]
    media: list[tuple[Media, str]] = []
    for message in _select_objects(body.get("messages")):
        if len(message) > 2 or not isinstance(message.get("content"), str):  # the rare case
            context += _read_beside_turn(message)
            media += _yield_media(message)
    images = _screen_media(media, caller) if media else ()
    return Prompt(
        id=request_id,
        messages=turns,
        context=tuple(context),
        trusted=caller.system_turns == "operator",
        unseen=() if images else tuple(dict.fromkeys(kind for kind, _url in media)),
        images=images,
    )


def _screen_media(media: Sequence[tuple[Media, str]], caller: Caller) -> tuple[str, ...]:
    """Return the images to review; none if all media pass unseen.

    Raises:
        RequestError: the caller may not send one of them, or its kind cannot be reviewed.
    """
    if caller.media == "pass":
        return ()
    for kind, url in media:
        if caller.media == "refuse" or kind != "image" or not url:
            article = "an" if kind[0] in "aio" else "a"
            raise unsupported_field(
                kind, f"no reviewer sees what is in {article} {kind}, so this key may not send one"
            )
        if not url.startswith("data:"):
            raise unsupported_field(
                kind,
                "the reviewer and the model would each load this address, and might get different "
                "images; send the image itself as a `data:` URL",
            )
    return tuple(url for _kind, url in media)


def _end_with_request(turns: Sequence[Message]) -> tuple[Message, ...]:
    for end in range(len(turns), 0, -1):
        last = turns[end - 1]
        if last.role in ("user", "tool"):
            if end == len(turns):
                return tuple(turns)
            request = "\n".join(turn.full_text for turn in turns[end - 1 :])
            return (*turns[: end - 1], replace(last, content=request))
    return (*turns[:-1], Message(role="user", content=turns[-1].full_text))


def _read_beside_turn(message: Mapping[str, Json]) -> Iterator[Message]:
    """Yield the texts of a message that are not in its turn: names, reasoning, files."""
    # `turns_of` has checked the roles and the kinds of parts.
    role = ROLES[str(message["role"])]
    in_turn = ASSISTANT_KEYS if role == "assistant" else TURN_KEYS
    for key, value in message.items():
        if key not in in_turn and not _is_id(key, value) and (text := _join_texts(value)):
            yield Message(role=role, content=f"{key}:\n{text}")
    for call in _select_objects(message.get("tool_calls")):
        key, text_key = ("custom", "input") if is_custom(call) else ("function", "arguments")
        called = _drop_keys(call.get(key), "name", text_key)
        if text := _join_texts([_drop_keys(call, key), called]):
            yield Message(role=role, content=f"call:\n{text}")
    if text := _join_texts(_drop_keys(message.get("function_call"), "name", "arguments")):
        yield Message(role=role, content=f"call:\n{text}")
    for part in _select_objects(message.get("content")):
        kind = str(part["type"])
        if text := _read_beside_part(part, kind):
            # The user does not say what is in a file; the model reads it, as a tool's result.
            yield Message(role="tool" if kind == "file" else role, content=f"{kind}:\n{text}")


def _read_beside_part(part: dict[str, Json], kind: str) -> str:
    """Return the texts of a part that are not in its turn; in a file, its decoded text."""
    in_turn = "refusal" if kind == "refusal" else "text" if _has_text(part) else "type"
    if kind not in MEDIA:
        return _join_texts(_drop_keys(part, "type", in_turn))
    decoded = _decode_file(part)
    # Neither an address nor encoded data are words; the text of a file stands decoded.
    encoded = "url" if decoded is None else "file_data"
    beside = _join_texts(
        [_drop_keys(part, "type", in_turn, kind), _drop_keys(part.get(kind), encoded)]
    )
    return "\n".join(filter(None, (beside, decoded)))


def _has_text(part: Mapping[str, Json]) -> bool:
    return isinstance(part.get("text"), str)


def _drop_keys(value: Json, *keys: str) -> dict[str, Json]:
    """Return the other keys of an object; none of any other value."""
    if not isinstance(value, dict):
        return {}
    return {key: inner for key, inner in value.items() if key not in keys}


def _yield_media(message: Mapping[str, Json]) -> Iterator[tuple[Media, str]]:
    """Yield the kinds of parts that are not text, with the URL of an image."""
    if message.get("audio") is not None:
        yield "audio", ""
    for part in _select_objects(message.get("content")):
        kind = str(part["type"])
        if kind in ("text", "refusal") or _has_text(part):
            continue
        media = MEDIA.get(kind, "other")
        if media == "image":
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, dict) else image
            yield media, url if isinstance(url, str) else ""
        elif media != "file" or _decode_file(part) is None:
            yield media, ""


def _decode_file(part: Mapping[str, Json]) -> str | None:
    file = part.get("file")
    return decode_text_file(file.get("file_data") if isinstance(file, dict) else None)


def decode_text_file(data: Json) -> str | None:
    """Return the text in a file's `data:` URL; None when it is not text."""
    if not isinstance(data, str) or not data[:LONGEST_TYPE].lower().startswith(TEXT_FILES):
        return None
    head, _, encoded = data.partition(",")
    is_base64 = head.lower().endswith(";base64")
    try:
        raw = base64.b64decode(encoded) if is_base64 else unquote_to_bytes(encoded)
    except (binascii.Error, ValueError):
        return None
    charset = CHARSET.search(head)
    with suppress(LookupError, ValueError):  # the encoding is unknown, or none of texts
        return raw.decode(charset[2] if charset else "utf-8", "replace")
    return raw.decode("utf-8", "replace")


def _join_texts(value: Json) -> str:
    """Return all words in a value, one text a line; keys too, as a model reads them."""
    # An ordered set, because tools repeat many texts.
    texts: dict[str, None] = {}
    _collect_texts(value, texts)
    return "\n".join(texts)


def _collect_texts(value: Json, texts: dict[str, None]) -> None:
    if isinstance(value, str):
        if value not in FORMAT_WORDS and not (len(value) > SHORT and ENCODED.fullmatch(value)):
            texts[value] = None
    elif isinstance(value, dict):
        for key, inner in value.items():
            _collect_texts(key, texts)
            if not _is_id(key, inner):
                _collect_texts(inner, texts)
    elif isinstance(value, list):
        for inner in value:
            _collect_texts(inner, texts)


def _is_id(key: str, value: Json) -> bool:
    return key in ID_KEYS and isinstance(value, str) and ID.fullmatch(value) is not None


def _select_objects(value: Json) -> list[dict[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
