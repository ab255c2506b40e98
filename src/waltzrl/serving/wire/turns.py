"""What reviewers are shown of a chat: plain turns, with calls and tool results as text."""

from collections.abc import Sequence

from waltzrl.agents.rules import TOOL_RESULT
from waltzrl.records import Message, Prompt, Role, ToolCall
from waltzrl.serving.messages_in_transit import Json
from waltzrl.serving.wire.fields import as_list, as_name, as_object, as_text, wrong

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "user",
    "function": "user",
}
PLACEHOLDERS = {
    "image_url": "[image]",
    "input_audio": "[audio]",
    "video_url": "[video]",
    "file": "[file]",
}


def prompt_of(messages: Json, request_id: str) -> Prompt:
    """Read the messages of a chat-completions request.

    A prompt ends with what must be answered. What the client puts after that, such as a reply that
    it has begun, steers the answer as much, so it is shown as a part of it.
    Where neither a user nor a tool speaks, the last turn counts as the user's.

    Raises:
        RequestError: the messages are not what the API asks for.
    """
    return Prompt(id=request_id, messages=_ending_with_user(turns_of(messages)))


def turns_of(messages: Json) -> list[Message]:
    """Read the messages as plain turns.

    Raises:
        RequestError: they are not what the API asks for.
    """
    found = as_list(messages, "messages")
    if not found:
        raise wrong("messages", found, "one message or more")
    return [_turn(one, f"messages[{place}]") for place, one in enumerate(found)]


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


def _turn(message: Json, where: str) -> Message:
    found = as_object(message, where)
    role = found.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    if role == "assistant":
        return Message(role="assistant", content=_said(found, where))
    words = text_of(found.get("content"), f"{where}.content")
    if role in ("tool", "function"):
        words = TOOL_RESULT + words
    return Message(role=ROLES[role], content=words)


def _said(message: dict[str, Json], where: str) -> str:
    """Return what an assistant said: words, a refusal, and every call on a line of its own."""
    lines = [
        text_of(message[key], f"{where}.{key}")
        for key in ("content", "refusal")
        if message.get(key) is not None
    ]
    calls = message.get("tool_calls")
    if calls is not None:
        for place, call in enumerate(as_list(calls, f"{where}.tool_calls")):
            lines.append(_call_line(call, f"{where}.tool_calls[{place}]"))
    if message.get("function_call") is not None:
        lines.append(_function_line(message["function_call"], f"{where}.function_call"))
    return "\n".join(line for line in lines if line)


def _call_line(call: Json, where: str) -> str:
    return _function_line(as_object(call, where).get("function"), f"{where}.function")


def _function_line(function: Json, where: str) -> str:
    found = as_object(function, where)
    name = as_name(found.get("name"), f"{where}.name")
    arguments = as_text(found.get("arguments"), f"{where}.arguments")
    return ToolCall(id="", name=name, arguments=arguments).line


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


def _ending_with_user(turns: Sequence[Message]) -> tuple[Message, ...]:
    for end in range(len(turns), 0, -1):
        if turns[end - 1].role == "user":
            asked = "\n".join(turn.content for turn in turns[end - 1 :])
            return (*turns[: end - 1], Message(role="user", content=asked))
    return (*turns[:-1], Message(role="user", content=turns[-1].content))
