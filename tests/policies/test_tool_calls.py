"""Calls in the text of a model."""

import json

import pytest

from waltzrl.policies.tool_calls import (
    CallAssembler,
    before_calls,
    is_complete,
    read_calls,
    with_ids,
)
from waltzrl.records import ToolCall

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


ONE, TWO = '{"page":1}', '{"page":2}'


def assembled(*fragments):
    """Return the names and arguments of the calls that these fragments make, and their ids."""
    assembler = CallAssembler()
    for index, call_id, name, arguments in fragments:
        assembler.add(index, ToolCall(id=call_id, name=name, arguments=arguments))
    calls = assembler.calls
    assert calls == assembler.calls
    assert bool(assembler) == bool(calls)
    assert all(call.id for call in calls)
    assert len({call.id for call in calls}) == len(calls)
    return [(call.name, call.arguments) for call in calls], [call.id for call in calls]


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Tool calls without an index stay apart, and every call has an id of its own",
)
@pytest.mark.parametrize(
    "fragments",
    [
        # Whole calls: with an index, without, with the same, with ids and without.
        [(0, "a", "f", ONE), (1, "b", "f", TWO)],
        [(None, "a", "f", ONE), (None, "b", "f", TWO)],
        [(0, "a", "f", ONE), (0, "b", "f", TWO)],
        [(None, "", "f", ONE), (None, "", "f", TWO)],
        [(0, "", "f", ONE), (0, "", "f", TWO)],
        [(0, "", "f", ONE), (1, "", "f", TWO)],
        [("0", "a", "f", ONE), ("1", "b", "f", TWO)],
        # Fragments of arguments.
        [(None, "a", "f", ""), (None, "", "", ONE), (None, "b", "f", ""), (None, "", "", TWO)],
        [
            (0, "a", "f", '{"pa'),
            (0, "", "", 'ge":1}'),
            (0, "b", "f", '{"page"'),
            (0, "", "", ":2}"),
        ],
        [(0, "", "f", '{"pa'), (0, "", "", 'ge":1}'), (1, "", "f", '{"page":'), (1, "", "", "2}")],
        # The id and the name come apart, in either order.
        [(None, "a", "", ""), (None, "", "f", ONE), (None, "b", "", ""), (None, "", "f", TWO)],
        [(0, "a", "", ""), (0, "", "f", ONE), (1, "b", "", ""), (1, "", "f", TWO)],
        [(0, "", "f", ""), (0, "a", "", ONE), (1, "", "f", ""), (1, "b", "", TWO)],
        # Every fragment repeats the id, the name, or both.
        [(None, "a", "", '{"pa'), (None, "a", "f", 'ge":1}'), (None, "b", "f", TWO)],
        [(0, "a", "f", '{"pa'), (0, "a", "f", 'ge":1}'), (0, "a", "f", ""), (1, "b", "f", TWO)],
        [(0, "", "f", '{"pa'), (0, "", "f", 'ge":1}'), (0, "", "f", TWO)],
        [(None, "a", "f", ONE), (None, "b", "f", '{"pa'), (None, "b", "f", 'ge":2}')],
        # Every fragment has a new id.
        [
            (0, "a", "f", '{"pa'),
            (0, "b", "", 'ge":1}'),
            (1, "c", "f", '{"page'),
            (1, "d", "", '":2}'),
        ],
        # Fragments of two calls take turns.
        [
            (0, "a", "f", '{"page'),
            (1, "b", "f", '{"page'),
            (0, "", "", '":1}'),
            (1, "", "", '":2}'),
        ],
        [
            (None, "a", "f", '{"page'),
            (None, "b", "f", '{"page'),
            (None, "a", "", '":1}'),
            (None, "b", "", '":2}'),
        ],
        # An empty object stands for the arguments that follow.
        [
            (0, "a", "f", "{}"),
            (0, "", "", ONE),
            (1, "b", "f", "{}"),
            (1, "", "", '{"page":'),
            (1, "", "", "2}"),
        ],
        # One id for all, and a call that is repeated as a whole.
        [(None, "f", "f", ONE), (None, "f", "f", TWO)],
        [(0, "a", "f", ONE), (0, "a", "f", ONE), (1, "b", "f", TWO), (1, "b", "f", TWO)],
        # The last fragment has the whole arguments again.
        [
            (0, "a", "f", '{"page'),
            (0, "", "", '":1}'),
            (0, "", "", ONE),
            (1, "b", "f", TWO),
            (1, "b", "", TWO),
        ],
        [(None, "a", "f", ONE), (None, "", "", ONE), (None, "b", "f", TWO), (None, "", "", TWO)],
        # Each fragment has all that came before it, too.
        [
            (0, "a", "f", ""),
            (0, "", "", '{"pa'),
            (0, "", "", '{"page":'),
            (0, "", "", ONE),
            (1, "b", "f", '{"'),
            (1, "b", "f", TWO),
        ],
        # Only the first fragment has an index, or only the later ones.
        [(0, "a", "f", '{"pa'), (None, "", "", 'ge":1}'), (1, "b", "f", TWO)],
        [(None, "a", "f", '{"pa'), (0, "", "", 'ge":1}'), (None, "b", "f", TWO)],
    ],
)
def test_two_calls_stay_two_whatever_their_fragments_lack(fragments):
    assert assembled(*fragments)[0] == [("f", ONE), ("f", TWO)]


@pytest.mark.parametrize("index", [0, None])
def test_a_new_name_begins_a_call_also_after_no_arguments(index):
    assert assembled((index, "", "f", ""), (index, "", "g", ""))[0] == [("f", ""), ("g", "")]


@pytest.mark.parametrize("arguments", ['{"a": {}}', '{"a": [{}, {}]}', '{"a": "}{}"}'])
def test_objects_within_arguments_are_no_repetition(arguments):
    for size in (1, 2):
        parts = [arguments[at : at + size] for at in range(0, len(arguments), size)]
        fragments = [(0, "", "", part) for part in parts]
        assert assembled((0, "a", "f", ""), *fragments)[0] == [("f", arguments)]


@pytest.mark.parametrize("cut", ['{"a": {', '{"a": {"a": {}', '{"a": [{}'])
def test_arguments_that_were_cut_stay_cut(cut):
    for size in (1, 6):
        parts = [cut[at : at + size] for at in range(0, len(cut), size)]
        fragments = [(0, "", "", part) for part in parts]
        assert assembled((0, "a", "f", ""), *fragments)[0] == [("f", cut)]


def test_the_ids_of_the_server_stay_where_they_are_its_own():
    assert assembled((0, "a", "f", ONE), (1, "b", "f", TWO))[1] == ["a", "b"]
    first, second = assembled((0, "a", "f", ONE), (1, "a", "f", TWO))[1]
    assert (first, second[:5]) == ("a", "call_")


def test_no_fragment_is_no_call():
    assert assembled() == ([], [])


def test_halves_of_a_pair_in_two_fragments_are_joined():
    texts = ((0, "a", "f", '{"a":"\ud83d'), (0, "", "", '\ude00"}'))
    assert assembled(*texts)[0] == [("f", '{"a":"\N{GRINNING FACE}"}')]


def test_a_call_without_an_id_gets_one_and_an_id_is_used_once():
    calls = [ToolCall(id=call_id, name="f", arguments="{}") for call_id in ("", "a", "", "a")]
    named = with_ids(calls)
    assert named[1].id == "a"
    assert len({call.id for call in named}) == 4
    assert all(named[place].id.startswith("call_") for place in (0, 2, 3))
    assert with_ids(named) == named


@pytest.mark.parametrize(
    ("arguments", "complete"),
    [
        ("{}", True),
        ('{"a": [1]} \n', True),
        ("", True),
        (" ", True),
        ("null", True),
        ('{"a": ', False),
        ("{" * 100_000, False),
        ("[1]", False),
        ("1", False),
    ],
)
def test_arguments_are_complete_when_they_are_an_object_or_nothing(arguments, complete):
    assert is_complete(arguments) is complete
