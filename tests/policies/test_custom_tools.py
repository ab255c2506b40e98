"""Custom tools for servers that know functions only."""

import pytest

from waltzrl.policies.custom_tools import PARAMETERS, restore_custom_calls, with_functions
from waltzrl.records import ToolCall

CUSTOM = {"name": "patch", "description": "Edits."}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}}
TOOLS = [{"type": "custom", "custom": CUSTOM}]
NAMED = {"type": "custom", "custom": {"name": "patch"}}
FUNCTION = {"type": "function", "function": {"name": "f"}}


def test_custom_tools_and_their_calls_become_functions_of_one_text():
    user = {"role": "user", "content": "Hi"}
    call = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": '+"a"'}}
    chat = {
        "model": "m",
        "tools": [{"type": "custom", "custom": {**CUSTOM, "format": GRAMMAR}}, FUNCTION],
        "messages": [user, {"role": "assistant", "tool_calls": [call]}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [NAMED, FUNCTION]}},
    }
    function = {"type": "function", "function": {"name": "patch"}}
    assert with_functions(chat) == {
        "model": "m",
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "patch",
                    "description": "Edits.\n\nThe input follows this grammar:\nstart: /.+/",
                    "parameters": PARAMETERS,
                },
            },
            FUNCTION,
        ],
        "messages": [
            user,
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "patch", "arguments": '{"input": "+\\"a\\""}'},
                    }
                ],
            },
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"tools": [function, FUNCTION]},
        },
    }
    assert with_functions({"tool_choice": NAMED}) == {"tool_choice": function}


def test_a_chat_without_custom_tools_stays_as_it_is():
    chat = {"tools": [FUNCTION], "messages": [{"role": "user"}], "tool_choice": "auto"}
    assert with_functions(chat) == chat


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "+a"}', "+a"),
        ('{"patch": "+a"}', "+a"),
        ("+a", "+a"),
        ('{"a": "b", "c": "d"}', '{"a": "b", "c": "d"}'),
        ('{"input": 1}', '{"input": 1}'),
    ],
)
def test_a_call_of_such_a_function_is_one_of_the_custom_tool(arguments, text):
    call = ToolCall(id="1", name="patch", arguments=arguments)
    (restored,) = restore_custom_calls([call], TOOLS)
    assert restored == ToolCall(id="1", name="patch", arguments=text, kind="custom")


def test_other_calls_stay_as_they_are():
    calls = (
        ToolCall(id="1", name="f", arguments="{}"),
        ToolCall(id="2", name="patch", arguments="{}", kind="custom"),
    )
    assert restore_custom_calls(calls, TOOLS) == calls
    assert restore_custom_calls(calls, None) == calls
