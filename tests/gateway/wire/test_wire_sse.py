"""Server-sent events, however their bytes are cut."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode

from support.wire_server import CALL, answer_of, stream_of
from waltzrl.gateway.wire import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from waltzrl.gateway.wire.format import COMMENT, DONE, LINE_ENDS, encode_event
from waltzrl.policies.sse import EventDecoder, ServerSentEvent

STREAM = (
    b": hello\r\ndata: one\r\n\r\nevent: ping\ndata:two\n\n"
    b"data: three\rdata:  four\r\rid: 7\nretry: 5\n\nevent: lonely\n\n"
    b"event: last\ndata: \xe2\x82\xac: \xf0\x9f\x8c\x8a\n\ndata: cut short"
)
EVENTS = [
    ServerSentEvent("one"),
    ServerSentEvent("two", "ping"),
    ServerSentEvent("three\n four"),
    ServerSentEvent("\u20ac: \U0001f30a", "last"),
]


def decoded(chunks):
    decoder = EventDecoder()
    return [found for chunk in chunks for found in decoder.feed(chunk)]


def pieces(data, cuts):
    edges = [0, *sorted(cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def test_every_line_end_of_the_standard_ends_a_line():
    assert decoded([STREAM]) == EVENTS


def test_bytes_may_come_one_by_one():
    assert decoded(bytes([byte]) for byte in STREAM) == EVENTS


@given(st.sets(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_where_the_bytes_are_cut(cuts):
    assert decoded(pieces(STREAM, cuts)) == EVENTS


TEXT = st.text(st.characters(exclude_categories=["Cs"])).map("\x85\u2028\u2029{}".format)
NAME = st.sampled_from(["", "ping", "response.created"])


@given(st.lists(st.tuples(TEXT, NAME)), st.lists(st.integers(0, 400)))
def test_what_is_encoded_is_decoded(events, cuts):
    raw = b"".join(encode_event(encode(text), name) + COMMENT for text, name in events)
    inside = {cut for cut in cuts if cut <= len(raw)}
    found = [(json.loads(event.data), event.name) for event in decoded(pieces(raw, inside))]
    assert found == events
    # Clients that split a text find the same lines, as httpx does, whose lines end at more.
    assert raw.decode().splitlines() == [line.decode() for line in raw.splitlines()]


@pytest.mark.parametrize("wire", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_no_character_of_a_reply_ends_a_line_of_its_stream(wire):
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    body |= {"prompt": "Hi", "input": "Hi"}
    own = {CHAT: "messages", COMPLETIONS: "prompt", MESSAGES: "messages", RESPONSES: "input"}
    others = {"messages", "prompt", "input"} - {own[wire]}
    chat = wire.read(encode({k: v for k, v in body.items() if k not in others}), "42")
    call = replace(CALL, arguments='{"city":"a\u2028b"}')
    stream = b"".join(stream_of(wire.writer(chat), [answer_of("a\x85b\u2028c\u2029d", call)]))
    assert stream.decode().splitlines() == [line.decode() for line in stream.splitlines()]
    assert all(escape in stream for escape in LINE_ENDS.values())


@given(st.binary(), st.sets(st.integers(0, 100)))
def test_any_bytes_give_the_same_events_in_any_cut(raw, cuts):
    inside = {cut for cut in cuts if cut <= len(raw)}
    assert decoded(pieces(raw, inside)) == decoded([raw])


def test_a_comment_is_no_event():
    assert decoded([COMMENT, DONE]) == [ServerSentEvent("[DONE]")]


def test_bytes_that_are_not_utf8_are_marked():
    assert decoded([b"data: \xff\n\n"]) == [ServerSentEvent("\N{REPLACEMENT CHARACTER}")]


def test_a_mark_of_the_byte_order_precedes_only_the_first_line():
    mark = b"\xef\xbb\xbf"
    stream = mark + b"data: one\n\n" + mark + b"data: two\n\n"
    assert decoded([stream]) == [ServerSentEvent("one")]
    assert decoded(bytes([byte]) for byte in stream) == [ServerSentEvent("one")]
