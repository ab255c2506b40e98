"""JSON that fits a schema, while it grows."""

import json
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from waltzrl.errors import InputError
from waltzrl.policies.json_schema import JsonSchema

ANY = JsonSchema({})
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"))
"""Any, without the one control character that llguidance keeps out of strings."""
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | texts | st.floats(-9, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)
objects = st.dictionaries(texts, values, max_size=4)


SIZES = JsonSchema(
    {
        "type": "object",
        "properties": {"size": {"enum": ["small", "large"]}, "n": {"type": "integer"}},
        "required": ["size"],
        "additionalProperties": False,
    }
)


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    size: Literal["small", "smaller", 7]
    parts: "list[Part]" = []


class Order(BaseModel):
    model_config = ConfigDict(strict=True)
    part: Part | None
    amount: float
    notes: dict[str, int]


ORDER = JsonSchema(Order.model_json_schema())
parts = st.recursive(
    st.builds(Part, name=texts, size=st.sampled_from(["small", "smaller", 7])),
    lambda inner: st.builds(
        Part,
        name=texts,
        size=st.just("small"),
        parts=st.lists(inner, max_size=2),
    ),
    max_leaves=3,
)
orders = st.builds(
    Order,
    part=st.none() | parts,
    amount=st.floats(-100, 100),
    notes=st.dictionaries(texts, st.integers(-9, 99), max_size=2),
)


@pytest.mark.slow
@settings(max_examples=30)
@given(objects, st.sampled_from([None, (",", ":"), (" , ", " : ")]))
def test_every_object_is_complete_and_every_beginning_of_it_possible(value, separators):
    text = json.dumps(value, separators=separators, ensure_ascii=False)
    assert ANY.state(text) == "complete"
    assert {ANY.state(text[:end]) for end in range(len(text))} == {"possible"}


@settings(max_examples=30)
@given(orders)
def test_what_fits_a_schema_is_complete_and_every_beginning_of_it_possible(order):
    text = json.dumps(order.model_dump(), ensure_ascii=False)
    assert ORDER.state(text) == "complete"
    assert {ORDER.state(text[:end]) for end in range(len(text))} == {"possible"}


@given(orders, st.data())
def test_a_changed_object_fits_exactly_when_it_is_valid(order, data):
    value = order.model_dump()
    place = data.draw(st.sampled_from([v for v in (value, value["part"]) if v is not None]))
    name = data.draw(st.sampled_from([*place, "other"]))
    if data.draw(st.booleans()):
        place.pop(name, None)
    else:
        place[name] = data.draw(st.sampled_from([None, 1.5, 7, "small", [], {}, {"a": 1}, True]))
    try:
        TypeAdapter(Order).validate_json(json.dumps(value))
        valid = True
    except ValidationError:
        valid = False
    assert (ORDER.state(json.dumps(value, ensure_ascii=False)) == "complete") == valid


@given(st.text('{}[]",:0123456789.eE+-truefalsn \\\\u\n', max_size=12))
def test_what_is_complete_is_json(text):
    state = ANY.state("{" + text)
    try:
        fits = isinstance(json.loads("{" + text), dict)
    except ValueError:
        fits = False
    assert state != "complete" or fits
    assert state != "impossible" or not fits or " " in text or "\n" in text


@pytest.mark.parametrize(
    "text",
    ["[", '"a"', "7", "{,", '{"a" 1', '{"a":1,}', '{"a":01', '{"a":0.e', '{"a":tru}', '{"a":"\n'],
)
def test_what_can_become_no_object_is_impossible(text):
    assert ANY.state(text) == "impossible"


def test_names_and_literals_are_kept_to_while_they_are_written():
    schema = SIZES
    states = {text: schema.state(text) for text in ('{"s', '{"x', '{"size": "l', '{"size": "m')}
    assert list(states.values()) == ["possible", "impossible", "possible", "impossible"]
    assert schema.state("{}") == "impossible"
    assert schema.state('{"size": "small"}') == "complete"
    assert schema.state('{"size": "small", "n": 1.') == "impossible"
    assert schema.state('{"size": "small", "n": 1, ') == "impossible"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, 'Unimplemented keys: ."uniqueItems"'),
        ({"properties": []}, "properties must be an object"),
        ({"$ref": "#/$defs/a"}, "'/\\$defs/a' does not exist"),
        ({"$ref": "http://a.b"}, "'http://a.b' is not present"),
        ({"type": "array"}, "type: got 'array'; need 'object'"),
        ({"$ref": "#"}, "circular references"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}}, "incompatible types"),
        ({"properties": {"a": {"type": "string", "pattern": "(?=x)a"}}}, "look-ahead .* not supp"),
        ([], "the schema: got list"),
    ],
)
def test_a_schema_that_cannot_be_enforced_says_why(schema, problem):
    with pytest.raises(InputError, match=problem):
        JsonSchema(schema)


def test_an_object_may_contain_others_of_its_kind():
    schema = JsonSchema({"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}})
    assert schema.state('{"kids": [{"kids": []}]}') == "complete"
    assert schema.state('{"kids": [{"kids": 1') == "impossible"


def test_only_objects_fit_whatever_else_a_schema_permits():
    for schema in ({"type": ["object", "null"]}, {"anyOf": [{"type": "object"}, {"type": "null"}]}):
        assert JsonSchema(schema).state("null") == "impossible"
        assert JsonSchema(schema).state("{}") == "complete"


def test_bounds_and_patterns_are_kept_to():
    schema = JsonSchema(
        {
            "properties": {
                "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
                "size": {"type": "integer", "minimum": 3, "maximum": 40},
                "tags": {"type": "array", "items": {"type": "null"}, "maxItems": 1},
            }
        }
    )
    states = {
        text: schema.state(text)
        for text in (
            '{"code": "AB"}',
            '{"code": "ABC',
            '{"size": 40}',
            '{"size": 41',
            '{"tags": [null]}',
            '{"tags": [null,',
        )
    }
    assert list(states.values()) == ["complete", "impossible"] * 3


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process keeps to `response_format`, and to a call where `tool_choice` "
    "demands one, token by token",
)
@settings(max_examples=15)
@given(st.sampled_from([ANY, ORDER, SIZES]), st.randoms(use_true_random=False))
def test_no_possible_text_is_a_dead_end(schema, chance):
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, schema.grammar, log_level=0)
    for _ in range(80):
        if matcher.is_accepting():
            return
        following = [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]
        assert following
        assert tokenizer.eos_token not in following
        assert matcher.consume_token(chance.choice(following))
