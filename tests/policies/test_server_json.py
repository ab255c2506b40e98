"""The forms in which servers of models send one and the same thing."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.policies.server_json import (
    MOST_COUNT,
    TextJoiner,
    mend_text,
    read_content,
    read_count,
    read_json,
    tidy_completion,
)

SMILE = "\N{GRINNING FACE}"
HIGH, LOW = "\ud83d", "\ude00"


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (3, 3),
        (3.0, 3),
        (0, 0),
        (MOST_COUNT, MOST_COUNT),
        (None, None),
        (3.5, None),
        (-1, None),
        (True, None),
        ("3", 3),
        ("three", None),
        ("-3", None),
        ([3], None),
        (float("inf"), None),
        (float("nan"), None),
        (10**30, None),
    ],
)
def test_a_count_is_a_whole_number_or_unknown(value, count):
    assert read_count(value) == count


@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        (None, "", ""),
        ("Hi.", "Hi.", ""),
        ([], "", ""),
        ([{"type": "text", "text": "Hi"}, {"type": "text", "text": "."}], "Hi.", ""),
        ([{"type": "output_text", "text": "Hi."}, None, "!"], "Hi.!", ""),
        ([{"text": "Hi."}], "Hi.", ""),
        ({"type": "text", "text": {"value": "Hi.", "annotations": []}}, "Hi.", ""),
        ([{"type": "refusal", "refusal": "No."}], "No.", ""),
        ([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi."}], "Hi.", "Hm."),
        (
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True},
                {"type": "text", "text": "Hi."},
            ],
            "Hi.",
            "Hm.",
        ),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}], "", "Hm."),
        ([{"type": "reasoning", "text": "Hm."}], "", "Hm."),
        ([{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "Hi."}], "Hi.", ""),
        ([{"type": "text", "text": None}], "", ""),
        ({"answer": 42}, '{"answer":42}', ""),
        ([1, 2], "[1,2]", ""),
        (42, "42", ""),
        (False, "false", ""),
    ],
)
def test_a_content_is_a_text_and_its_reasoning(content, text, reasoning):
    assert read_content(content) == (text, reasoning)


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([HIGH, LOW], ["", SMILE]),
        (["a" + HIGH, LOW + "b"], ["a", SMILE + "b"]),
        ([HIGH, "a"], ["", "\ufffda"]),
        ([HIGH, HIGH, LOW], ["", "\ufffd", SMILE]),
        ([LOW, HIGH], ["\ufffd", ""]),
        ([HIGH, "", LOW], ["", "", SMILE]),
        ([SMILE], [SMILE]),
    ],
)
def test_halves_of_a_pair_in_two_pieces_are_joined(pieces, texts):
    joiner = TextJoiner()
    assert [joiner.add(piece) for piece in pieces] == texts
    assert joiner.end() == ("\ufffd" if pieces[-1] == HIGH else "")
    assert joiner.end() == ""


@given(st.text(), st.data())
def test_a_text_cut_anywhere_in_utf_16_is_whole_again(text, data):
    units = text.encode("utf-16-le")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(units) // 2), max_size=5)))
    edges = [0, *[2 * cut for cut in cuts], len(units)]
    joiner = TextJoiner()
    pieces = [
        units[start:end].decode("utf-16-le", "surrogatepass") for start, end in pairwise(edges)
    ]
    assert "".join([joiner.add(piece) for piece in pieces]) + joiner.end() == text


@given(st.text(st.characters()))
def test_mended_texts_can_be_encoded_and_others_stay(text):
    assert mend_text(text) == text
    assert mend_text(text + HIGH + "x" + LOW).encode() == (text + "\ufffdx\ufffd").encode()


def test_json_is_read_with_half_a_pair_with_a_mark_and_with_bytes_that_are_no_text():
    assert read_json(b'{"a": "\\ud83d"}') == {"a": HIGH}
    assert read_json(b'{"a": "\\ud83d\\ude00"}') == {"a": SMILE}
    assert read_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    assert read_json(b'{"a": "\xff"}') == {"a": "\ufffd"}
    for raw in (b"", b"<html>", b'{"a": "\\ud83d'):
        with pytest.raises(ValueError, match=r"."):
            read_json(raw)


def without(value, dropped):
    """Return a JSON value without the keys whose value is `dropped`."""
    if isinstance(value, dict):
        return {k: without(v, dropped) for k, v in value.items() if v is not dropped}
    return [without(item, dropped) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("key", ["message", "delta"])
def test_null_is_as_good_as_absent_wherever_it_is(key):
    call = {"index": None, "id": None, "type": None, "function": {"name": "f", "arguments": None}}
    words = {"role": None, "content": None, "refusal": None, "tool_calls": [None, call]}
    body = {
        "id": None,
        "model": None,
        "choices": [None, {"index": None, key: words, "finish_reason": None, "logprobs": None}],
        "usage": None,
    }
    read = tidy_completion(body)
    function = read["choices"][0][key]["tool_calls"][0]["function"]
    assert function["name"] == "f"
    assert not json.dumps(without(read, None)).count("null")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"page": 1}, '{"page":1}'), ([1], "[1]"), ("{}", "{}"), (7, "7"), ({"a": HIGH}, None)],
)
def test_arguments_are_json_text_whatever_they_were(arguments, text):
    call = {"id": 7, "function": {"name": "f", "arguments": arguments}}
    read = tidy_completion({"choices": {"message": {"tool_calls": call}}})["choices"][0]["message"]
    (got,) = read["tool_calls"]
    assert got["function"]["arguments"] == (text or '{"a": "\ufffd"}')
    assert got["id"] == "7"


def test_a_call_may_be_spelt_without_a_function_and_a_message_without_an_object():
    flat = {"choices": [{"message": {"tool_calls": [{"name": "f", "arguments": "{}"}]}}]}
    (call,) = tidy_completion(flat)["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}
    assert tidy_completion({"choices": [{"delta": "Hi"}]})["choices"][0]["delta"] == {
        "content": "Hi"
    }


def test_fields_of_another_type_are_absent():
    fields = {"model": 7, "usage": "free", "system_fingerprint": []}
    assert tidy_completion({**fields, "choices": []}) == {"choices": []}


@pytest.mark.parametrize("body", [[], 1, {"choices": 1}, {"choices": ["a"]}])
def test_what_is_no_completion_is_an_error(body):
    with pytest.raises(ValueError, match="not a"):
        tidy_completion(body)
