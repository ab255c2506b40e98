"""The input of a Responses request as the messages of a chat."""

from waltzrl.serving.exchange import Json
from waltzrl.serving.wire.fields import (
    as_list,
    as_name,
    as_object,
    as_text,
    unsupported,
    wrong,
)
from waltzrl.serving.wire.turns import text_of

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
ITEMS = "message, function_call, function_call_output or reasoning"


def chat_messages(instructions: Json, given: Json) -> list[Json]:
    """Return the chat that a request's `instructions` and `input` stand for.

    Raises:
        RequestError: an item is malformed, or of a kind that a chat cannot carry.
    """
    chat: list[Json] = []
    if instructions is not None:
        chat.append({"role": "system", "content": text_of(instructions, "instructions")})
    if isinstance(given, str):
        return [*chat, {"role": "user", "content": text_of(given, "input")}]
    if not isinstance(given, list) or not given:
        raise wrong("input", given, "a string, or a list with one item or more")
    for place, item in enumerate(given):
        _add(chat, as_object(item, f"input[{place}]"), f"input[{place}]")
    if not chat:
        raise wrong("input", "reasoning items only", "one message or more")
    return chat


def _add(chat: list[Json], item: dict[str, Json], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        chat.append(_message(item, where))
    elif kind == "function_call":
        _add_call(chat, item, where)
    elif kind == "function_call_output":
        call_id = as_name(item.get("call_id"), f"{where}.call_id")
        output = _content(item.get("output"), f"{where}.output")
        chat.append({"role": "tool", "tool_call_id": call_id, "content": output})
    elif kind != "reasoning":
        raise wrong(f"{where}.type", kind, ITEMS)


def _message(item: dict[str, Json], where: str) -> Json:
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    return {"role": ROLES[role], "content": _content(item.get("content"), f"{where}.content")}


def _add_call(chat: list[Json], item: dict[str, Json], where: str) -> None:
    """Put a call on the assistant's turn: in a chat, all calls of a turn are one message's."""
    name = as_name(item.get("name"), f"{where}.name")
    arguments = as_text(item.get("arguments"), f"{where}.arguments")
    call: Json = {
        "id": as_name(item.get("call_id"), f"{where}.call_id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    last = chat[-1] if chat else None
    if not isinstance(last, dict) or last["role"] != "assistant":
        last = {"role": "assistant", "content": None}
        chat.append(last)
    before = last.get("tool_calls")
    last["tool_calls"] = [*before, call] if isinstance(before, list) else [call]


def _content(content: Json, where: str) -> Json:
    """Respell parts; a single text becomes a string, which every upstream takes."""
    if isinstance(content, str):
        return text_of(content, where)
    found = as_list(content, where)
    parts = [_part(part, f"{where}[{place}]") for place, part in enumerate(found)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return [*parts]


def _part(part: Json, where: str) -> dict[str, Json]:
    found = as_object(part, where)
    kind = found.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": as_text(found.get("text"), f"{where}.text")}
    if kind == "refusal":
        return {"type": "refusal", "refusal": as_text(found.get("refusal"), f"{where}.refusal")}
    if kind == "input_image":
        return _image(found, where)
    if kind == "input_file":
        if found.get("file_url") is not None:
            raise unsupported(f"{where}.file_url", "a chat takes no file by address; send its data")
        keys = ("file_data", "file_id", "filename")
        named: dict[str, Json] = {key: found[key] for key in keys if key in found}
        return {"type": "file", "file": named}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": found.get("input_audio")}
    raise wrong(
        f"{where}.type", kind, "input_text, output_text, refusal or input_image, _file, _audio"
    )


def _image(part: dict[str, Json], where: str) -> dict[str, Json]:
    if part.get("image_url") is None:
        raise unsupported(f"{where}.image_url", "a chat takes images by their address or as data")
    image: dict[str, Json] = {"url": as_name(part["image_url"], f"{where}.image_url")}
    if part.get("detail") is not None:
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}
