"""What reviewers are shown of a chat: plain turns, with tool calls and their results."""

from collections.abc import Sequence
from dataclasses import replace

from waltzrl.records import Message, Prompt, Role, ToolCall
from waltzrl.serving.exchange import Json
from waltzrl.serving.wire.fields import as_list, as_name, as_object, as_text, wrong

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
PLACEHOLDERS = {
    "image_url": "[image]",
    "input_audio": "[audio]",
    "video_url": "[video]",
    "file": "[file]",
}


def prompt_of(messages: Json, request_id: str) -> Prompt:
    """Read the messages of a chat-completions request.

    A prompt ends with what must be answered. What the client puts after that, such as the
    beginning of a reply, steers the answer as much, so it is shown as a part of it.
    Where there is no turn of a user or a tool, the last turn counts as the user's.

    Raises:
        RequestError: the messages are not what the API asks for.
    """
    return Prompt(id=request_id, messages=_ending_with_request(turns_of(messages)))


def turns_of(messages: Json) -> list[Message]:
    """Read the messages as plain turns.

    Raises:
        RequestError: they are not what the API asks for.
    """
    found = as_list(messages, "messages")
    if not found:
        raise wrong("messages", found, "one message or more")
    return [turn_of(one, f"messages[{place}]") for place, one in enumerate(found)]


def turn_of(message: Json, where: str) -> Message:
    """Read one message as a plain turn.

    Raises:
        RequestError: it is not what the API asks for.
    """
    fields = as_object(message, where)
    role = fields.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    if role == "assistant":
        return _assistant_turn(fields, where)
    content = text_of(fields.get("content"), f"{where}.content")
    if role != "tool" or fields.get("tool_call_id") is None:
        return Message(role=ROLES[role], content=content)
    call_id = as_text(fields["tool_call_id"], f"{where}.tool_call_id")
    return Message(role="tool", content=content, call_id=call_id)


def text_of(content: Json, where: str) -> str:
    """Return a message's words; pictures, sounds and files leave a word in brackets.

    Raises:
        RequestError: it is neither a string nor a list of parts.
    """
    if isinstance(content, str):
        return as_text(content, where)
    if not isinstance(content, list):
        raise wrong(where, content, "a string or a list of parts")
    return "\n".join(_part(one, f"{where}[{place}]") for place, one in enumerate(content))


def _assistant_turn(message: dict[str, Json], where: str) -> Message:
    """Read an assistant's turn: its text, a refusal, and its calls."""
    texts = [
        text_of(message[key], f"{where}.{key}")
        for key in ("content", "refusal")
        if message.get(key) is not None
    ]
    calls: list[ToolCall] = []
    if message.get("tool_calls") is not None:
        for place, call in enumerate(as_list(message["tool_calls"], f"{where}.tool_calls")):
            here = f"{where}.tool_calls[{place}]"
            fields = as_object(call, here)
            call_id = fields.get("id")
            calls.append(
                _call(
                    call_id if isinstance(call_id, str) else "",
                    fields.get("function"),
                    f"{here}.function",
                )
            )
    if message.get("function_call") is not None:
        calls.append(_call("", message["function_call"], f"{where}.function_call"))
    text = "\n".join(text for text in texts if text)
    return Message(role="assistant", content=text, calls=tuple(calls))


def _call(call_id: str, function: Json, where: str) -> ToolCall:
    fields = as_object(function, where)
    return ToolCall(
        id=call_id,
        name=as_name(fields.get("name"), f"{where}.name"),
        arguments=as_text(fields.get("arguments"), f"{where}.arguments"),
    )


def _part(part: Json, where: str) -> str:
    found = as_object(part, where)
    kind = as_name(found.get("type"), f"{where}.type")
    if kind == "text":
        return as_text(found.get("text"), f"{where}.text")
    if kind == "refusal":
        return as_text(found.get("refusal"), f"{where}.refusal")
    if isinstance(found.get("text"), str):  # kinds that we do not know may carry words as well
        return as_text(found["text"], f"{where}.text")
    return PLACEHOLDERS.get(kind, f"[{kind}]")


def _ending_with_request(turns: Sequence[Message]) -> tuple[Message, ...]:
    for end in range(len(turns), 0, -1):
        last = turns[end - 1]
        if last.role in ("user", "tool"):
            request = "\n".join(turn.full_text for turn in turns[end - 1 :])
            return (*turns[: end - 1], replace(last, content=request))
    return (*turns[:-1], Message(role="user", content=turns[-1].full_text))
