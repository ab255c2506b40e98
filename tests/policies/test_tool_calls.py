"""Calls in the text of a model."""

import json

import pytest

from waltzrl.policies.tool_calls import before_calls, read_calls

WEATHER = '{"name": "weather", "arguments": {"city": "Oslo"}}'


def read(text):
    rest, calls = read_calls(text, {"weather", "time"})
    assert all(call.id.startswith("call_") for call in calls)
    assert len({call.id for call in calls}) == len(calls)
    return rest, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize(
    ("text", "rest", "calls"),
    [
        (f"<tool_call>\n{WEATHER}\n</tool_call>", "", [("weather", {"city": "Oslo"})]),
        (f"<tool_call>{WEATHER}", "", [("weather", {"city": "Oslo"})]),
        (
            f'Let me look.\n<tool_call>{WEATHER}</tool_call>\n<tool_call>{{"name": "time"}}',
            "Let me look.",
            [("weather", {"city": "Oslo"}), ("time", {})],
        ),
        (
            '{"name": "weather", "parameters": {"city": "Oslo"}}',
            "",
            [("weather", {"city": "Oslo"})],
        ),
        (
            '<|python_tag|>{"name": "time", "parameters": {}}; {"name": "time", "parameters": {}}',
            "",
            [("time", {}), ("time", {})],
        ),
    ],
)
def test_calls_of_the_common_formats_are_read(text, rest, calls):
    assert read(text) == (rest, calls)


@pytest.mark.parametrize(
    "text",
    [
        "Hello.",
        '{"name": "launch", "parameters": {}}',
        '{"name": "time", "parameters": 7}',
        '{"name": "time"} and more',
        '<tool_call>{"name": "launch", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "time", </tool_call>',
        "<tool_call></tool_call>",
        '{"name": ["time"]}',
        "{" * 100_000,
    ],
)
def test_what_is_no_call_of_a_known_function_stays_text(text):
    assert read(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "before"),
    [("Hello.", "Hello."), ("Hi \n<tool_call>{", "Hi"), (' {"name"', ""), ("<|python_tag|>", "")],
)
def test_what_precedes_a_call_is_known_while_it_is_written(text, before):
    assert before_calls(text) == before
