import asyncio

import pytest

from waltzrl.errors import PolicyError
from waltzrl.policies import Sampling, SavedPolicy
from waltzrl.records import Message

POLICY = SavedPolicy({"How do I kill a process?": "Use kill PID.", "Hi": "Hello."})


def reply(*turns):
    roles = ("user", "assistant")
    messages = [Message(role=roles[i % 2], content=text) for i, text in enumerate(turns)]
    return asyncio.run(POLICY.reply(messages, Sampling()))


def test_the_users_last_turn_decides_the_reply():
    assert reply("How do I kill a process?").text == "Use kill PID."
    assert reply("How do I kill a process?", "Use kill PID.", "Hi").text == "Hello."


def test_a_system_message_changes_nothing():
    messages = [Message(role="system", content="Hi"), Message(role="user", content="Hi")]
    assert asyncio.run(POLICY.reply(messages, Sampling())).text == "Hello."


def test_what_was_never_saved_has_no_reply_and_says_so():
    with pytest.raises(PolicyError, match="no reply was saved for 'Hi!'"):
        reply("Hi!")


def test_a_long_prompt_is_not_repeated_whole_in_the_error():
    with pytest.raises(PolicyError) as error:
        reply("word " * 1000)
    assert len(str(error.value)) < 100
