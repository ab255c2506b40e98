"""Tools for servers that know functions only, or that limit the length of a name."""

import pytest

from waltzrl.policies.refused_tools import (
    PARAMETERS,
    restore_calls,
    with_functions,
    with_own_ids,
    with_plain_schemas,
    with_short_ids,
    with_short_names,
    with_shown_by_user,
)
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


def test_a_chat_without_custom_tools_and_long_names_stays_as_it_is():
    chat = {"tools": [FUNCTION], "messages": [{"role": "user"}], "tool_choice": "auto"}
    assert with_functions(chat) == with_short_names(chat) == with_short_ids(chat) == chat


def test_long_names_are_shorter_and_come_back_whole():
    long = f"mcp__{'a' * 70}__search"
    tools = [
        {"type": kind, kind: {"name": name}}
        for kind, name in (("function", long), ("custom", f"{long}_all"), ("function", "f"))
    ]
    call = {"id": "1", "type": "function", "function": {"name": long, "arguments": "{}"}}
    short = with_short_names(
        {"tools": tools, "messages": [{"tool_calls": [call]}], "tool_choice": tools[0]}
    )
    first, other, last = (tool[tool["type"]]["name"] for tool in short["tools"])
    assert (first[:55], len(first), len(other), last) == (long[:55], 64, 64, "f")
    assert first != other
    assert short["messages"][0]["tool_calls"][0]["function"]["name"] == first
    assert short["tool_choice"]["function"]["name"] == first
    calls = [ToolCall(id="1", name=name, arguments='{"input": "a"}') for name in (first, other)]
    function, custom = restore_calls(calls, tools)
    assert (function.name, function.kind) == (long, "function")
    assert (custom.name, custom.kind, custom.arguments) == (f"{long}_all", "custom", "a")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "+a"}', "+a"),
        ('{"patch": "+a"}', "+a"),
        ('{"input": "a\\ud83d\\ude00b\\ud83d"}', "a\U0001f600b\ufffd"),
        ("+a", "+a"),
        ('{"a": "b", "c": "d"}', '{"a": "b", "c": "d"}'),
        ('{"input": 1}', '{"input": 1}'),
    ],
)
def test_a_call_of_such_a_function_is_one_of_the_custom_tool(arguments, text):
    call = ToolCall(id="1", name="patch", arguments=arguments)
    (restored,) = restore_calls([call], TOOLS)
    assert restored == ToolCall(id="1", name="patch", arguments=text, kind="custom")


def test_other_calls_stay_as_they_are():
    calls = (
        ToolCall(id="1", name="f", arguments="{}"),
        ToolCall(id="2", name="patch", arguments="{}", kind="custom"),
    )
    assert restore_calls(calls, TOOLS) == calls
    assert restore_calls(calls, None) == calls


def test_a_schema_loses_keywords_that_only_narrow_it_and_no_name_of_a_property():
    inner = {"type": "integer", "exclusiveMinimum": 0, "enum": [1, 2], "description": "How many."}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"default": {"type": "array", "items": inner}, "not": {"type": "string"}},
        "required": ["default"],
        "additionalProperties": False,
    }
    described = {"type": "function", "function": {"name": "f", "parameters": schema}}
    plain = {"type": "integer", "enum": [1, 2], "description": "How many."}
    tools = with_plain_schemas({"tools": [described, FUNCTION, *TOOLS]})["tools"]
    assert tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"default": {"type": "array", "items": plain}, "not": {"type": "string"}},
        "required": ["default"],
    }
    assert tools[1:] == [FUNCTION, *TOOLS]


def called(*ids):
    calls = [{"id": i, "type": "function", "function": {"name": "f"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id, content="done"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_ids_that_several_calls_have_become_different_ones_and_results_keep_their_calls():
    user = {"role": "user", "content": "Go."}
    turns = [called("f:0", "f:0"), result("f:0", "a"), result("f:0", "b"), user]
    turns += [called("f:0", "f:1"), result("f:1"), user, called("f:0"), result("f:0"), result("x")]
    own = [called("f:0", "f:0_2"), result("f:0", "a"), result("f:0_2", "b"), user]
    own += [called("f:0_3", "f:1"), result("f:1"), user]
    own += [called("f:0_4"), result("f:0_4"), result("x")]
    assert with_own_ids({"messages": turns})["messages"] == own
    assert with_own_ids({"messages": own})["messages"] == own


def test_what_tools_show_is_marked_in_a_users_turn_after_the_results_of_a_turn():
    text = {"type": "text", "text": "see"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    user = {"role": "user", "content": "And?"}
    turns = [called("1", "2"), result("1", [text, image]), result("2", [image]), user]
    mark = {"type": "text", "text": "[tool_result]"}
    shown = {"role": "user", "content": [mark, image, image]}
    told = [called("1", "2"), result("1", "see"), result("2", "")]
    assert with_shown_by_user({"messages": turns})["messages"] == [*told, shown, user]
    assert with_shown_by_user({"messages": turns[:-1]})["messages"] == [*told, shown]
    words = [called("1"), result("1", [text]), user]
    assert with_shown_by_user({"messages": words})["messages"] == words
