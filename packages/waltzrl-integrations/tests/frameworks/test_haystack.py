"""What holds of the adapter for Haystack only."""

from copy import deepcopy

import pytest
from drivers import of_framework

from waltzrl import open_guard

pytestmark = of_framework("haystack")


@pytest.fixture
def generator():
    """Yield a guarded generator of one reply with a call, and what happened to the wrapped one."""
    from haystack import component
    from haystack.dataclasses import ChatMessage, ToolCall

    from waltzrl_integrations.haystack import GuardedChatGenerator

    seen = []

    @component
    class Fixed:
        def warm_up(self):
            seen.append("warm")

        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage], generation_kwargs=None, tools=None):
            seen.extend(messages)
            call = ToolCall("bake", {"loaves": 2}, id="1")
            return {"replies": [ChatMessage.from_assistant("Two loaves.", tool_calls=[call])]}

    guard = open_guard()
    with guard.sync:
        yield GuardedChatGenerator(Fixed(), guard), seen


def test_a_text_is_a_message_of_a_user(generator):
    guarded, seen = generator
    assert guarded.run("How do I bake?")["replies"][0].text == "Two loaves."
    assert [(message.role, message.text) for message in seen] == [("user", "How do I bake?")]


def test_a_copy_is_guarded_by_the_same_guard(generator):
    guarded, _seen = generator
    copied = deepcopy(guarded)
    assert copied._guard is guarded._guard
    assert copied.run("How do I bake?")["replies"][0].text == "Two loaves."


def test_the_wrapped_generator_is_warmed_up(generator):
    guarded, seen = generator
    guarded.warm_up()
    assert seen == ["warm"]


def test_a_stream_is_printed_as_that_of_another_generator(generator, capsys):
    from haystack.components.generators.utils import print_streaming_chunk

    guarded, _seen = generator
    guarded.run("How do I bake?", streaming_callback=print_streaming_chunk)
    printed = capsys.readouterr().out
    assert "[ASSISTANT]\nTwo loaves." in printed
    assert printed.count("[ASSISTANT]") == 1
    assert "bake" in printed
    assert '{"loaves": 2}' in printed
