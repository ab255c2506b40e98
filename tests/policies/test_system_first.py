"""Chats for templates that take one system message, at the beginning."""

import pytest

from waltzrl.policies.system_first import LATE_SYSTEM, with_system_first

IMAGE = {"type": "image_url", "image_url": {"url": "https://a.example/i.png"}}


def turn(role, content):
    return {"role": role, "content": content}


def test_system_messages_at_the_beginning_are_one_and_later_ones_are_said_with_the_user():
    chat = {
        "model": "m",
        "messages": [
            turn("system", "Be brief."),
            turn("developer", "Be kind."),
            turn("user", "Hi"),
            turn("system", "Agents: none."),
            turn("assistant", "Hello."),
            turn("system", "It is noon."),
            turn("user", [IMAGE]),
        ],
    }
    assert with_system_first(chat) == {
        "model": "m",
        "messages": [
            turn("system", "Be brief.\n\nBe kind."),
            turn("user", "Hi\n\nAgents: none."),
            turn("assistant", "Hello."),
            turn("user", [{"type": "text", "text": "It is noon."}, IMAGE]),
        ],
    }


def test_a_chat_whose_turns_are_in_order_stays_as_it_is():
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    results = [{"role": "tool", "tool_call_id": name, "content": "a"} for name in ("1", "2")]
    chat = {"messages": [turn("system", "a"), turn("user", "b"), calls, *results]}
    assert with_system_first(chat) == chat


@pytest.mark.parametrize(
    "words",
    [
        "System message must be at the beginning.",
        "After the optional system message, conversation roles must alternate user/assistant",
        "Unexpected role 'system' after role 'user'",
        "Unexpected message role.",
        "messages[0].role: unknown variant `developer`, expected one of `system`, `user`",
        "'messages.0' : for 'role:developer' the following must be satisfied",
        "developer is not one of ['system', 'assistant', 'user'] - 'messages.0.role'",
    ],
)
def test_servers_say_so_in_such_words(words):
    assert LATE_SYSTEM.search(words)


@pytest.mark.parametrize(
    "words",
    [
        "The server had an error. Please contact the developer.",
        "Enable it by visiting https://console.developers.example/apis and retry.",
    ],
)
def test_other_words_about_developers_do_not_say_so(words):
    assert LATE_SYSTEM.search(words) is None
