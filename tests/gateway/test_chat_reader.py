"""Reading a model server's replies: what is passed on as it came, and what never is."""

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.errors import RequestError
from waltzrl.gateway.chat_reader import read_beginning, read_completion, repeats_a_key, tokens_spell
from waltzrl.gateway.exchange import UpstreamDelta
from waltzrl.gateway.stream_reader import StreamReader
from waltzrl.policies.server_faults import ReportedError
from waltzrl.policies.sse import ServerSentEvent
from waltzrl.records import ToolCall, Usage

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SIGNED = {
    "id": "9",
    "function": {"name": "g", "arguments": "{}"},
    "extra_content": {"google": {"thought_signature": "c2ln"}},
}
CALLED = {"finish_reason": "tool_calls"}
CUSTOM = {"id": "call_1", "type": "custom", "custom": {"name": "apply_patch", "input": "+a\n+b"}}
HIDDEN = "words that nobody reviewed"
DEEP = b"[" * 100_000


def completion(message=None, choice=None, **more):
    """Spell a reply with these additions to its message, its choice and itself."""
    fields = {"role": "assistant", "content": "Hello.", **(message or {})}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": fields, "finish_reason": "stop", **(choice or {})}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        **more,
    }


def read(answer):
    return read_completion(json.dumps(answer).encode(), 5.0)


@pytest.mark.parametrize("kept", ["café", "caf"])
def test_the_beginning_of_a_reply_is_read(kept):
    message = {"reasoning": "So.", "content": "café"}
    raw = json.dumps({"choices": [{"message": message}]}, ensure_ascii=False)
    end = raw.encode().index(kept.encode()) + len(kept.encode())
    reply = read_beginning(raw.encode()[: end if kept == "café" else end + 1])  # within the é
    assert (reply.reasoning, reply.text, reply.usage) == ("So.", kept, None)


def test_counts_and_calls_are_read_of_a_beginning():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    answer = {
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        "choices": [{"message": {"tool_calls": [call]}}],
    }
    reply = read_beginning(json.dumps(answer).encode()[: -len('"}}]}}]}')])
    assert reply.calls == (ToolCall(id="c", name="f", arguments="{"),)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, 4)


def test_a_beginning_without_a_word_is_none():
    for raw in (b"", b"\n", b"[", b'{"id": "1"', b'{"choices": [{"message": {"content": "'):
        assert read_beginning(raw) is None


def test_a_reply_is_read_and_its_bytes_are_kept():
    raw = json.dumps(completion()).encode()
    upstream_reply = read_completion(raw, 5.0)
    assert (upstream_reply.reply.text, upstream_reply.finish, upstream_reply.raw) == (
        "Hello.",
        "stop",
        raw,
    )
    counts = (
        upstream_reply.reply.usage.input_tokens,
        upstream_reply.reply.usage.output_tokens,
        upstream_reply.reply.milliseconds,
    )
    assert counts == (3, 4, 5.0)


@pytest.mark.parametrize(
    "answer",
    [
        completion({"refusal": None, "annotations": [], "audio": None, "function_call": None}),
        completion({"reasoning": None, "reasoning_content": None, "tool_calls": []}),
        completion({"reasoning": "Hm."}),
        completion({"reasoning_content": "Hm."}),
        completion({"reasoning_content": "Hm.", "reasoning": "Hm."}),
        completion(choice={"stop_reason": 2, "logprobs": None, "token_ids": None}),
        completion(prompt_logprobs=None, prompt_token_ids=None, kv_transfer_params=None),
        completion(service_tier="default", system_fingerprint=None),
        completion({"content": None, "tool_calls": [CALL]}, CALLED),
        completion({"content": None, "tool_calls": [CUSTOM]}, CALLED),
        completion({"content": None, "refusal": "I won't."}),
        completion(usage=None),
    ],
)
def test_keys_that_hold_no_other_words_leave_the_bytes_as_they_are(answer):
    assert json.loads(read(answer).raw) == answer


@pytest.mark.parametrize(
    "answer",
    [
        completion({"reasoning_content": HIDDEN, "reasoning": "Hm."}),
        completion({"thinking_blocks": [HIDDEN]}),
        completion({"reasoning_details": [{"type": "reasoning.text", "text": HIDDEN}]}),
        completion({"annotations": [{"url": HIDDEN}]}),
        completion({"audio": {"transcript": HIDDEN}}),
        completion({"function_call": {"name": "f", "arguments": "{}", "thought": HIDDEN}}),
        completion({"function_call": [HIDDEN]}),
        completion({"refusal": HIDDEN}),
        completion({"tool_calls": [{**CALL, "extra_content": HIDDEN}]}),
        completion({"tool_calls": [{**CALL, "function": {"name": "f", "thought": HIDDEN}}]}),
        completion({"tool_calls": [{**CALL, "custom": {"name": "f", "input": HIDDEN}}]}),
        completion({"tool_calls": [{**CUSTOM, "custom": {"name": "f", "thought": HIDDEN}}]}),
        completion({"tool_calls": [{**CUSTOM, "custom": [HIDDEN]}]}),
        completion(choice={"text": HIDDEN}),
        completion(choice={"finish_reason": HIDDEN}),
        completion(choice={"stop_reason": 100 * HIDDEN}),
        completion({"role": HIDDEN}),
        completion({"tool_calls": [{**CALL, "type": HIDDEN}]}),
        completion(choice={"token_ids": [1, 2]}),
        completion(hidden=HIDDEN),
        completion(usage={"prompt_tokens": 3, "hidden": HIDDEN}),
        completion(usage={"prompt_tokens_details": {"hidden": HIDDEN}}),
        completion(usage={"prompt_tokens_details": {HIDDEN: 1}}),
        completion(system_fingerprint=100 * HIDDEN),
        completion(id=100 * HIDDEN),
        completion(prompt_logprobs=[HIDDEN]),
        completion(choices=[*completion()["choices"], *completion()["choices"]]),
        completion(
            choice={"logprobs": {"content": [{"token": "Hello."}], "refusal": [{"token": HIDDEN}]}}
        ),
    ],
)
def test_a_reply_with_other_words_is_read_and_its_bytes_are_dropped(answer):
    upstream_reply = read(answer)
    assert (upstream_reply.reply.text, upstream_reply.raw) == ("Hello.", None)


@pytest.mark.parametrize(
    ("once", "twice"),
    [
        ('"content": "Hello."', '"content": "words", "content": "Hello."'),
        ('"content": "Hello."', '"content": "words", "c\\u006fntent": "Hello."'),
        ('"usage"', '"choices": [{"message": {"content": "Hello."}}], "usage"'),
        ('"arguments"', '"arguments": "words", "arguments"'),
        ('"prompt_tokens"', '"words": 1, "words": 2, "prompt_tokens"'),
    ],
)
def test_a_reply_that_another_reader_may_read_differently_is_spelt_anew(once, twice):
    raw = json.dumps(completion({"tool_calls": [CALL]}, CALLED))
    upstream_reply = read_completion(raw.replace(once, twice, 1).encode(), 5.0)
    assert (upstream_reply.reply.text, upstream_reply.raw) == ("Hello.", None)
    assert read_completion(raw.encode(), 5.0).raw is not None


@given(
    st.recursive(
        st.none() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
    st.booleans(),
)
def test_an_answer_without_a_repeated_key_repeats_none(value, is_ascii):
    assert not repeats_a_key(json.dumps(value, ensure_ascii=is_ascii).encode())


@given(st.text(), st.text(), st.booleans())
def test_a_repeated_key_is_seen_whatever_the_values_quote(key, text, is_ascii):
    name, value = (json.dumps(part, ensure_ascii=is_ascii) for part in (key, text))
    assert repeats_a_key(f'[{{{name} : {value}, "b": {value}, {name}:{value}}}]'.encode())


@given(
    st.dictionaries(
        st.sampled_from(["annotations", "audio", "function_call"]) | st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers(0, 9) | st.text(),
            lambda inner: st.lists(inner, max_size=3),
        ),
        max_size=3,
    )
)
def test_whatever_a_server_adds_the_bytes_go_out_only_without_unread_words(extra):
    known = {"role", "content", "refusal", "tool_calls", "reasoning", "reasoning_content"}
    extra = {key: value for key, value in extra.items() if key not in known}
    upstream_reply = read(completion(extra))
    assert upstream_reply.reply.text == "Hello."
    assert upstream_reply.raw is None or not any(extra.values())


def test_a_refusal_is_the_text_of_a_reply_that_has_no_other():
    assert read(completion({"content": None, "refusal": "I won't."})).reply.text == "I won't."


def test_tool_calls_are_read():
    upstream_reply = read(
        completion({"content": None, "tool_calls": [CALL]}, {"finish_reason": "tool_calls"})
    )
    assert upstream_reply.reply.calls == (ToolCall(id="call_1", name="f", arguments='{"a": 1}'),)
    assert (upstream_reply.reply.text, upstream_reply.finish) == ("", "tool_calls")


@pytest.mark.parametrize("arguments", [{}, {"arguments": ""}, {"arguments": "null"}])
@pytest.mark.parametrize(
    ("finish", "written"), [("tool_calls", "{}"), ("length", ""), ("content_filter", "")]
)
def test_a_call_of_a_function_without_parameters_has_an_empty_object(arguments, finish, written):
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", **arguments}}
    whole = read(completion({"content": None, "tool_calls": [call]}, {"finish_reason": finish}))
    _, deltas = deltas_of(chunk({"tool_calls": [call]}), chunk({}, finish))
    written = written or arguments.get("arguments", "")
    for calls in (whole.reply.calls, deltas[-1].calls):
        assert calls == (ToolCall(id="call_1", name="f", arguments=written),)
    assert whole.raw is None or finish != "tool_calls"


@pytest.mark.parametrize("finish", ["tool_calls", None])
@pytest.mark.parametrize(
    ("arguments", "read_as"),
    [
        (json.dumps('{"a": "\u00e9"}'), '{"a": "\u00e9"}'),
        (json.dumps("{}"), "{}"),
        (json.dumps("two words"), json.dumps("two words")),
        ('"{', '"{'),
        ("1", "1"),
    ],
)
def test_arguments_that_a_server_encodes_twice_are_decoded(arguments, read_as, finish):
    function = {"name": "f", "arguments": arguments}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    whole = read(completion({"content": None, "tool_calls": [call]}, {"finish_reason": finish}))
    _, deltas = deltas_of(chunk({"tool_calls": [call]}), chunk({}, finish), "[DONE]")
    for calls in (whole.reply.calls, deltas[-1].calls):
        assert calls == (ToolCall(id="call_1", name="f", arguments=read_as),)
    if arguments != read_as:
        assert (whole.finish, deltas[-1].finish, whole.raw) == ("tool_calls", "tool_calls", None)


def test_a_reply_that_was_cut_says_so_and_an_unknown_end_is_an_end():
    cut = read(completion(choice={"finish_reason": "length"}))
    assert (cut.finish, cut.reply.finish) == ("length", "length")
    assert read(completion(choice={"finish_reason": "eos"})).finish == "stop"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"null",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": null}',
        b'{"choices": "Hello."}',
        b'{"choices": ["Hello."]}',
        b'{"choices": [{"text": "Hello.", "finish_reason": "stop"}]}',
        b'{"choices": [{"message": {"tool_calls": "f"}}]}',
        b'{"choices": [{"message": {"content": "Hello."}}]',
        b'{"x": ' + DEEP,
    ],
)
def test_what_is_no_chat_completion_is_the_upstreams_fault(answer):
    with pytest.raises(RequestError, match="not a chat completion") as raised:
        read_completion(answer, 0.0)
    assert (raised.value.status, raised.value.kind) == (502, "upstream")


LOST = [
    # Counts that are unknown.
    completion(usage={"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}),
    completion(usage={}),
    completion(usage={"prompt_tokens": 3}),
    completion(usage={"prompt_tokens": "3", "completion_tokens": 4.5}),
    completion(usage={"prompt_tokens": -3, "completion_tokens": 10**30}),
    completion(usage="free"),
    completion(usage=[]),
    # Fields that are null, or of another type.
    completion(id=None, object=None, created=None, model=None, usage=None),
    completion(created="now", model=7, system_fingerprint=[], service_tier={}, usage=None),
    completion({"role": None, "refusal": None, "tool_calls": None}, usage=None),
    completion({"tool_calls": [None], "reasoning": None, "annotations": None}, usage=None),
    completion(choice={"index": None, "logprobs": None, "finish_reason": None}, usage=None),
    completion(choice={"index": 0.0, "logprobs": "none", "finish_reason": 7}, usage=None),
    completion(choice={"logprobs": {"content": None}}, usage=None),
    completion(error=None, usage=None),
    completion(error={}, usage=None),
    # Other containers.
    completion(choices=completion()["choices"][0], usage=None),
    completion(choices=[None, *completion()["choices"]], usage=None),
    completion(choices=[{"message": "Hello."}], usage=None),
    completion({"content": [{"type": "text", "text": "Hel"}, {"text": "lo."}]}, usage=None),
    completion({"content": {"type": "text", "text": "Hello."}}, usage=None),
]
"""Replies that say `Hello.`, and not how many tokens that took."""


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A complete reply is not lost over its form, whole or streamed; unknown counts are unknown",
)
@pytest.mark.parametrize("answer", LOST)
def test_a_complete_reply_is_not_lost_over_its_form(answer):
    reply = read(answer).reply
    assert (reply.text, reply.calls, reply.usage) == ("Hello.", (), None)


def as_chunk(answer):
    """Return a reply as one chunk of a stream."""
    choices = answer["choices"] if isinstance(answer["choices"], list) else [answer["choices"]]
    spelt = [
        choice and {**choice, "delta": choice["message"], "message": None} for choice in choices
    ]
    return json.dumps({**answer, "choices": spelt})


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A complete reply is not lost over its form, whole or streamed; unknown counts are unknown",
)
@pytest.mark.parametrize("answer", LOST)
def test_a_complete_stream_is_not_lost_over_its_form(answer):
    reader, deltas = deltas_of(as_chunk(answer), "[DONE]")
    assert "".join(delta.text for delta in deltas) == "Hello."
    assert [delta.usage for delta in deltas] == [None] * len(deltas)
    assert reader.ended


@pytest.mark.parametrize("message", [{}, {"message": None}])
def test_a_reply_that_was_filtered_needs_no_message(message):
    reason = "content_filter: PROHIBITED_CONTENT"
    upstream_reply = read({"choices": [{"index": 0, "finish_reason": reason, **message}]})
    assert (upstream_reply.reply.text, upstream_reply.finish) == ("", "content_filter")


def test_calls_in_choices_of_their_own_are_of_the_reply():
    parts = [{"content": "So.", "tool_calls": None}]
    parts += [{"content": None, "tool_calls": [{**CALL, "id": id_}]} for id_ in ("a", "b")]
    choices = [{"message": part, "finish_reason": "tool_calls"} for part in parts]
    upstream_reply = read(completion(choices=choices))
    assert [call.id for call in upstream_reply.reply.calls] == ["a", "b"]
    assert (upstream_reply.reply.text, upstream_reply.finish) == ("So.", "tool_calls")
    assert upstream_reply.raw is None


def test_the_calls_of_another_reply_are_none_of_the_first():
    other = {"message": {"content": HIDDEN, "tool_calls": [CALL]}}
    assert read(completion(choices=[*completion()["choices"], other])).reply.calls == ()


def test_counts_that_are_floats_are_read():
    counts = {"prompt_tokens": 3.0, "completion_tokens": 4.0, "total_tokens": 7.0}
    details = {"cached_tokens": 2.0, "audio_tokens": None, "text_tokens": True}
    answer = completion(usage={**counts, "prompt_tokens_details": details})
    usage = Usage(input_tokens=3, output_tokens=4, model="m")
    assert read(answer).reply.usage == usage
    assert read(answer).details.usage == {"prompt_tokens_details": {"cached_tokens": 2}}
    _, deltas = deltas_of(json.dumps({"choices": None, "model": "m", "usage": counts}))
    assert deltas == [UpstreamDelta(usage=usage)]


COUNTS = {
    "prompt_tokens": 3.0,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1, "audio_tokens": None},
}


def test_the_last_counts_that_can_be_read_are_those_of_a_stream():
    null = {"prompt_tokens": None, "completion_tokens": None}
    events = [chunk({"content": "a"}, usage={"prompt_tokens": 3, "completion_tokens": 4})]
    _, deltas = deltas_of(*events, chunk({}, "stop", usage=null), "[DONE]")
    assert [delta.usage for delta in deltas if delta.usage] == [
        Usage(input_tokens=3, output_tokens=4)
    ]


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens": "3", "completion_tokens": "4"},
        {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}},
        {"input_tokens": 9, "prompt_tokens": 3, "completion_tokens": 4},
    ],
)
def test_counts_that_are_texts_or_have_the_names_of_newer_apis_are_read(counts):
    usage = Usage(input_tokens=3, output_tokens=4, model="m")
    whole = read(completion(usage=counts))
    assert whole.reply.usage == usage
    last = json.dumps({"choices": [], "model": "m", "usage": counts})
    reader, deltas = deltas_of(chunk({"content": "a"}, "stop"), last)
    assert deltas[-1].usage == usage
    _, deltas = deltas_of(chunk({"content": "a"}, "stop", model="m", usage=counts))
    assert [delta.usage for delta in deltas if delta.usage] == [usage]
    assert whole.details.usage.get("prompt_tokens_details") == (
        reader.details.usage.get("prompt_tokens_details")
    )
    assert ("input_tokens_details" in counts) == bool(whole.details.usage)


@pytest.mark.parametrize("name", ["cached_tokens", "prompt_cache_hit_tokens"])
def test_tokens_from_a_cache_are_read_where_few_servers_have_them(name):
    counts = {"prompt_tokens": 3, "completion_tokens": 4, name: 2}
    details = {"prompt_tokens_details": {"cached_tokens": 2}}
    assert read(completion(usage=counts)).details.usage == details
    reader, _ = deltas_of(chunk({"content": "a"}, "stop", usage=counts))
    assert reader.details.usage == details
    own = {**counts, "prompt_tokens_details": {"cached_tokens": 1}}
    assert read(completion(usage=own)).details.usage["prompt_tokens_details"]["cached_tokens"] == 1


@pytest.mark.parametrize("count", ["", "-3", "3.5", "three", "9" * 5000])
def test_a_text_that_is_no_count_is_unknown(count):
    assert (
        read(completion(usage={"prompt_tokens": count, "completion_tokens": 4})).reply.usage is None
    )


def test_characters_that_json_escapes_may_be_bare():
    raw = json.dumps(completion({"content": "a\tb\nc"})).encode()
    bare = raw.replace(b"\\t", b"\t").replace(b"\\n", b"\n")
    assert bare != raw
    assert (read_completion(bare, 0).reply.text, read_completion(bare, 0).raw) == ("a\tb\nc", None)


def test_nothing_that_follows_the_end_of_a_stream_is_read():
    late = json.dumps({"error": "late"})
    reader, deltas = deltas_of(chunk({"content": "Hello."}, "stop"), "[DONE]", late)
    assert ([delta.text for delta in deltas], reader.done) == (["Hello.", ""], True)


def test_counts_that_are_all_zero_are_unknown_because_every_request_has_a_token():
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    counts = {"prompt_tokens": 3, "completion_tokens": 0}
    assert read(completion(usage=zeros)).reply.usage is None
    assert read(completion(usage=counts)).reply.usage is not None
    _, deltas = deltas_of(chunk({"content": "a"}, "stop", usage=counts), chunk({}, usage=zeros))
    assert [delta.usage for delta in deltas if delta.usage] == [
        Usage(input_tokens=3, output_tokens=0)
    ]


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens": 3, "completion_tokens": 4},
        {"input_tokens": 3, "output_tokens": 4},
        COUNTS,
    ],
)
def test_counts_in_the_last_choice_of_a_stream_are_read(counts):
    last = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": counts}
    reader, deltas = deltas_of(chunk({"content": "a"}), json.dumps({"choices": [last]}), "[DONE]")
    assert [delta.usage for delta in deltas if delta.usage] == [
        Usage(input_tokens=3, output_tokens=4)
    ]
    assert bool(reader.details.usage) == (counts is COUNTS)


@pytest.mark.parametrize("created", [float("inf"), 1e300, -1, True, "now", [17]])
def test_a_time_that_is_none_is_unknown(created):
    assert read(completion(created=created)).details.created is None
    assert read(completion(created=17.5)).details.created == 17


def test_parts_that_are_thoughts_are_reasoning():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"text": "Hi."}]
    reply = read(completion({"content": parts})).reply
    assert (reply.text, reply.reasoning) == ("Hi.", "Hm.")
    _, deltas = deltas_of(chunk({"content": parts[:1]}), chunk({"content": parts[1:]}))
    assert deltas == [UpstreamDelta(reasoning="Hm."), UpstreamDelta(text="Hi.")]


@pytest.mark.parametrize("answer", [completion({"content": {"a": 1}}), completion({"content": 1})])
def test_a_content_that_the_server_decoded_is_spelt_as_the_model_wrote_it(answer):
    written = json.dumps(answer["choices"][0]["message"]["content"], separators=(",", ":"))
    assert read(answer).reply.text == written
    assert "".join(delta.text for delta in deltas_of(as_chunk(answer))[1]) == written


def test_arguments_that_are_an_object_are_json():
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"page": 1}}}
    calls = (ToolCall(id="a", name="f", arguments='{"page":1}'),)
    upstream_reply = read(completion({"tool_calls": [call]}))
    assert (upstream_reply.reply.calls, upstream_reply.raw) == (calls, None)
    assert deltas_of(chunk({"tool_calls": [call]}, "tool_calls"))[1][-1].calls == calls


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Tool calls without an index stay apart, and every call has an id of its own",
)
@pytest.mark.parametrize("call_id", [{}, {"id": None}, {"id": ""}])
def test_a_call_without_an_id_gets_one_of_its_own(call_id):
    calls = [{**call_id, "type": "function", "function": CALL["function"]} for _ in range(2)]
    upstream_reply = read(completion({"content": None, "tool_calls": calls}))
    _, deltas = deltas_of(*[chunk({"tool_calls": [call]}) for call in calls], "[DONE]")
    for made in (upstream_reply.reply.calls, deltas[-1].calls):
        assert [call.arguments for call in made] == ['{"a": 1}'] * 2
        assert len({call.id for call in made} - {""}) == 2
    assert upstream_reply.raw is None


def test_an_id_that_two_calls_have_is_given_to_the_first():
    first, second = read(completion({"tool_calls": [CALL, CALL]})).reply.calls
    assert (first.id, second.id[:5], second.id != first.id) == ("call_1", "call_", True)


SMILE = "\N{GRINNING FACE}"


@pytest.mark.parametrize("key", ["content", "refusal", "reasoning", "reasoning_content"])
def test_halves_of_a_pair_in_two_deltas_are_one_character(key):
    halves = [chunk({key: "a\ud83d"}), chunk({key: "\ude00b"}), chunk({key: "\ud83d"})]
    _, deltas = deltas_of(*halves, chunk({}, "stop"))
    assert "".join(delta.text + delta.reasoning for delta in deltas) == f"a{SMILE}b\ufffd"


def test_a_half_in_an_argument_or_a_name_is_mended():
    def part(arguments, **more):
        call = {"index": 0, "function": {"name": None, "arguments": arguments}, **more}
        return chunk({"tool_calls": [call]}, model="m\ud83d")

    counts = {"prompt_tokens": 3, "completion_tokens": 4}
    _, deltas = deltas_of(
        part('{"a": "\ud83d', id="x\ud83d"),
        part('\ude00"}'),
        chunk({}, "tool_calls", usage=counts, model="m\ud83d"),
    )
    calls = (ToolCall(id="x\ufffd", name="", arguments=f'{{"a": "{SMILE}"}}'),)
    assert [delta.calls for delta in deltas if delta.calls] == [calls]
    assert [delta.usage.model for delta in deltas if delta.usage] == ["m\ufffd"]


def test_half_a_pair_in_a_whole_reply_is_a_replacement_character():
    answer = completion(
        {
            "content": "a\ud83d",
            "reasoning": "\ude00",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": "\ud83d"}'}}],
        }
    )
    reply = read(answer).reply
    assert (reply.text, reply.reasoning) == ("a\ufffd", "\ufffd")
    assert reply.calls[0].arguments == '{"a": "\ufffd"}'
    assert read_completion(json.dumps(completion()).encode().replace(b".", b"\xff"), 0).reply.text


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("STOP", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("max_output_tokens", "length"),
        ("TOKEN_LIMIT", "length"),
        ("cancelled", "length"),
        ("timeout", "length"),
        ("error", "length"),
        ("tool_use", "stop"),
        ("insufficient_system_resource", "length"),
        ("model_context_window_exceeded", "length"),
        ("ContentFilter", "content_filter"),
        ("SAFETY", "content_filter"),
        ("content_filter: PROHIBITED_CONTENT", "content_filter"),
        ("RECITATION", "content_filter"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("refusal", "content_filter"),
        ("tool_calls", "stop"),
        ({"type": "length", "length": 9}, "length"),
    ],
)
def test_the_words_for_an_end_are_those_of_many_servers(reason, finish):
    assert read(completion(choice={"finish_reason": reason})).finish == finish
    assert deltas_of(chunk({"content": "a"}, reason))[1][-1].finish == finish


@pytest.mark.parametrize("reason", ["tool_calls", "tool_use", "function_call"])
def test_the_words_for_calls_are_those_of_many_servers(reason):
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    assert read(completion({"tool_calls": [call]}, {"finish_reason": reason})).finish == (
        "tool_calls"
    )


@pytest.mark.parametrize("empty", [{}, {"name": "", "arguments": ""}, {"name": None}])
def test_a_call_without_name_and_arguments_is_none(empty):
    call = {"id": "0", "type": "function", "function": empty}
    for others, finish in (([], "stop"), ([SIGNED], "tool_calls")):
        whole = read(completion({"tool_calls": [call, *others]}, CALLED))
        reader, deltas = deltas_of(chunk({"tool_calls": [call, *others]}), chunk({}, "tool_calls"))
        for calls, found, details in (
            (whole.reply.calls, whole.finish, whole.details),
            (deltas[-1].calls, deltas[-1].finish, reader.details),
        ):
            assert [c.name for c in calls] == ["g"] * len(others)
            assert (found, details.signatures) == (finish, {c.id: "c2ln" for c in calls})
        assert whole.raw is None


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    "media",
    [
        {"content": "", "images": [IMAGE]},
        {"content": [IMAGE]},
        {"content": IMAGE},
        {"content": None, "audio": {"id": "1", "data": "AA=="}},
    ],
)
def test_a_reply_of_media_alone_is_no_empty_reply(media):
    for answer in (
        lambda: read(completion(media)),
        lambda: deltas_of(chunk(media), chunk({}, "stop")),
    ):
        with pytest.raises(RequestError, match="images or sound alone") as raised:
            answer()
        assert raised.value.status == 502
    texts = {"images": [IMAGE], "content": "Look."}
    assert read(completion(texts)).reply.text == "Look."
    assert deltas_of(chunk(texts), chunk({}, "stop"))[1][0].text == "Look."


@pytest.mark.parametrize("reason", ["stop", "STOP", "eos_token", "tool_use", "tool_calls"])
@pytest.mark.parametrize(("calls", "finish"), [([CALL], "tool_calls"), ([], "stop")])
def test_an_end_says_whether_there_are_calls_whatever_the_server_says(reason, calls, finish):
    whole = read(completion({"tool_calls": calls}, {"finish_reason": reason}))
    assert (whole.finish, whole.raw is None) == (finish, reason != finish)
    streamed = deltas_of(chunk({"content": "a"}), chunk({"tool_calls": calls}), chunk({}, reason))
    assert streamed[1][-1].finish == finish


@pytest.mark.parametrize(
    ("arguments", "finish"), [('{"a": 1}', "tool_calls"), ("", "tool_calls"), ('{"a": ', "length")]
)
def test_a_call_without_an_end_was_cut_off_if_its_arguments_were(arguments, finish):
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    assert read(completion({"tool_calls": [call]}, {"finish_reason": None})).finish == finish
    assert deltas_of(chunk({"tool_calls": [call]}), "[DONE]")[1][-1].finish == finish


@pytest.mark.parametrize(
    ("said", "sequence"),
    [
        ({"stop_reason": "END"}, "END"),
        ({"matched_stop": "END"}, "END"),
        ({"stop_reason": None, "matched_stop": None}, None),
        ({"stop_reason": 2}, None),
        ({"matched_stop": 2}, None),
        ({}, None),
    ],
)
def test_the_stop_sequence_is_read_where_a_server_names_it(said, sequence):
    upstream_reply = read(completion(choice=said))
    assert upstream_reply.details.stop_sequence == sequence
    assert upstream_reply.raw is not None
    choice = {"delta": {"content": "a"}, "finish_reason": "stop", **said}
    assert deltas_of(json.dumps({"choices": [choice]}))[0].details.stop_sequence == sequence


def test_what_follows_a_reply_and_is_no_chunk_loses_nothing():
    reader, deltas = deltas_of(chunk({"content": "Hello."}, "stop"), "DONE", '{"choices": 1}')
    assert ([delta.text for delta in deltas], reader.ended) == (["Hello.", ""], True)
    with pytest.raises(ReportedError, match="busy"):
        deltas_of(chunk({"content": "Hello."}, "stop"), json.dumps({"error": "busy"}))


@pytest.mark.parametrize("reason", ["", "null", "None"])
def test_a_word_for_null_ends_no_reply(reason):
    reader, deltas = deltas_of(chunk({"content": "a"}, reason))
    assert (reader.ended, deltas) == (False, [UpstreamDelta(text="a")])
    assert (
        read(completion({"tool_calls": [CALL]}, {"finish_reason": reason})).finish == "tool_calls"
    )


def test_a_message_in_the_place_of_deltas_is_heard_once():
    whole = json.dumps(completion())
    _, deltas = deltas_of(whole, whole)
    assert "".join(delta.text for delta in deltas) == "Hello."
    _, deltas = deltas_of(chunk({"content": "Hello."}), whole)
    assert "".join(delta.text for delta in deltas) == "Hello."


@pytest.mark.parametrize(
    "data",
    [
        *("", " ", "null", ": keepalive", "ping", "[PING]", "keep-alive", "Heartbeat"),
        *('{"type": "ping"}', '{"choices": null}'),
        ServerSentEvent("2023-02-20 08:40:33", "ping"),
    ],
)
def test_an_event_that_says_nothing_is_passed_over(data):
    assert deltas_of(data, chunk({"content": "a"}))[1] == [UpstreamDelta(text="a")]


@pytest.mark.parametrize("data", ["pinging", "Heartbeats are normal.", '{"choices": '])
def test_an_event_with_other_words_is_not_passed_over(data):
    with pytest.raises(RequestError, match="not a completion chunk"):
        deltas_of(data, chunk({"content": "a"}))


def test_a_failure_in_an_answer_of_200_is_reported():
    limited = {"error": {"message": "slow down", "code": 429}}
    for answer in (limited, [limited], {"choices": None, **limited}, {**completion(), **limited}):
        with pytest.raises(ReportedError, match="slow down") as raised:
            read(answer)
        assert raised.value.fault.status == 429
    named = ServerSentEvent(json.dumps({"message": "slow down", "code": 429}), "error")
    for event in (json.dumps(limited), chunk({}, "error", **limited), named):
        with pytest.raises(ReportedError, match="slow down"):
            deltas_of(event)


@pytest.mark.parametrize("error", [None, "", {}, [], {"message": None, "code": None}])
def test_an_error_that_says_nothing_is_no_failure(error):
    assert deltas_of(chunk({"content": "a"}, error=error))[1] == [UpstreamDelta(text="a")]
    assert read(completion(error=error)).reply.text == "Hello."


def chunk(delta, finish=None, **more):
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def deltas_of(*events):
    """Return a reader that has read these events, and its deltas."""
    reader = StreamReader()
    named = [
        event if isinstance(event, ServerSentEvent) else ServerSentEvent(event) for event in events
    ]
    return reader, [delta for event in named for delta in reader.read(event)]


def test_a_stream_is_words_then_an_end_then_counts():
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    words = (chunk({"role": "assistant", "content": ""}), chunk({"content": "Hel"}))
    reader, deltas = deltas_of(
        *words, chunk({"content": "lo."}), chunk({}, "length"), usage, "[DONE]"
    )
    assert deltas == [
        UpstreamDelta(text="Hel"),
        UpstreamDelta(text="lo."),
        UpstreamDelta(finish="length"),
        UpstreamDelta(usage=Usage(input_tokens=3, output_tokens=4)),
    ]
    assert reader.ended


def test_fragments_of_calls_are_gathered_by_their_index():
    def part(index, name=None, arguments="", **more):
        call = {"index": index, "function": {"name": name, "arguments": arguments}, **more}
        return chunk({"tool_calls": [call]})

    _, deltas = deltas_of(
        part(0, "f", id="a"),
        part(1, "g", '{"x"', id="b"),
        part(0, arguments='{"y"'),
        part(1, arguments=": 1}"),
        part(0, arguments=": 2}"),
        chunk({}, "tool_calls"),
    )
    calls = (
        ToolCall(id="a", name="f", arguments='{"y": 2}'),
        ToolCall(id="b", name="g", arguments='{"x": 1}'),
    )
    assert deltas == [UpstreamDelta(calls=calls, finish="tool_calls")]


def test_calls_of_a_stream_in_choices_of_their_own_are_of_the_reply():
    part = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}
    other = {"index": 1, "delta": {"tool_calls": [part]}, "finish_reason": "tool_calls"}
    text = {"index": 0, "delta": {"content": "Let me look."}}
    second = {"index": 2, "delta": {"content": "Another reply."}}
    _, deltas = deltas_of(json.dumps({"choices": [text, other, second]}))
    assert "".join(delta.text for delta in deltas) == "Let me look."
    assert deltas[-1].calls == (ToolCall(id="call_1", name="f", arguments="{}"),)
    assert deltas[-1].finish == "tool_calls"


def test_an_end_without_a_reason_loses_no_call():
    reader, deltas = deltas_of(chunk({"tool_calls": [CALL]}), "[DONE]")
    assert deltas == [
        UpstreamDelta(
            calls=(ToolCall(id="call_1", name="f", arguments='{"a": 1}'),), finish="tool_calls"
        )
    ]
    assert reader.ended
    assert deltas_of(chunk({"content": "Hi"}), "[DONE]")[1][-1] == UpstreamDelta(finish="stop")


def test_a_stream_that_breaks_off_has_not_ended():
    assert not deltas_of(chunk({"content": "Hel"}))[0].ended


def test_only_the_first_choice_and_only_reviewed_words_of_a_stream_are_heard():
    two = json.dumps({"choices": [{"delta": {"content": "a"}}, {"delta": {"content": HIDDEN}}]})
    blocks = chunk({"content": None, "thinking_blocks": [HIDDEN]})
    assert deltas_of(two, blocks, chunk({"refusal": "No."}))[1] == [
        UpstreamDelta(text="a"),
        UpstreamDelta(text="No.", refused=True),
    ]


CUSTOM_CALL = ToolCall(id="call_1", name="apply_patch", arguments="+a\n+b", kind="custom")


def signed(signature, **more):
    return {**CALL, "extra_content": {"google": {"thought_signature": signature}}, **more}


@pytest.mark.parametrize("id_", ["a", "", None])
def test_the_signature_of_a_call_is_kept_by_its_id(id_):
    calls = [signed("AAA=", index=0, id="0"), signed("BBB=", index=1, id=id_)]
    message = {"content": None, "tool_calls": calls}
    whole = read(completion(message))
    reader, deltas = deltas_of(chunk(message, "tool_calls"))
    for read_calls, details in (
        (whole.reply.calls, whole.details),
        (deltas[-1].calls, reader.details),
    ):
        assert details.signatures == {"0": "AAA=", read_calls[1].id: "BBB="}


@pytest.mark.parametrize("signature", [HIDDEN, "", 7, None, ["AAA="], "AAA=\n"])
def test_a_signature_that_says_something_is_none(signature):
    assert read(completion({"tool_calls": [signed(signature)]})).details.signatures == {}


def test_a_call_of_a_custom_tool_is_read_with_its_input():
    assert read(completion({"content": None, "tool_calls": [CUSTOM]})).reply.calls == (CUSTOM_CALL,)


def test_the_input_of_a_custom_tool_is_gathered_from_a_stream():
    parts = [
        {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "apply_patch"}},
        {"index": 0, "custom": {"input": "+a\n"}},
        {"index": 0, "custom": {"input": "+b"}},
    ]
    chunks = [chunk({"tool_calls": [part]}) for part in parts]
    end = json.dumps({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    assert deltas_of(*chunks, end)[1] == [UpstreamDelta(calls=(CUSTOM_CALL,), finish="tool_calls")]


OLDER = {"content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}


def older_calls(calls):
    """Return the calls without their ids, which are made for them."""
    assert all(call.id.startswith("call_") for call in calls)
    return [(call.name, call.arguments, call.kind) for call in calls]


@pytest.mark.parametrize("finish", ["function_call", "stop"])
def test_a_call_in_the_older_field_is_read(finish):
    upstream_reply = read(completion(OLDER, choice={"finish_reason": finish}))
    assert older_calls(upstream_reply.reply.calls) == [("f", '{"a": 1}', "function_call")]
    assert (upstream_reply.finish, upstream_reply.raw) == ("tool_calls", None)


@pytest.mark.parametrize("ended", [True, False])
def test_a_call_in_the_older_field_is_gathered_from_a_stream(ended):
    chunks = [
        chunk({"function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"a"'}}),
        chunk({"function_call": {"arguments": ": 1}"}}),
    ]
    end = json.dumps({"choices": [{"delta": {}, "finish_reason": "function_call"}]})
    (delta,) = deltas_of(*chunks, *([end] if ended else []), "[DONE]")[1]
    assert older_calls(delta.calls) == [("f", '{"a": 1}', "function_call")]
    assert delta.finish == "tool_calls"


@pytest.mark.parametrize("empty", [{"name": "", "arguments": ""}, {}, None, []])
def test_an_empty_older_field_is_no_call(empty):
    assert read(completion({"function_call": empty})).reply.calls == ()


def test_a_refusal_is_told_from_content():
    assert read(completion({"content": None, "refusal": "No."})).refused
    assert not read(completion()).refused


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_is_read(key):
    assert read(completion({key: "Hm."})).reply.reasoning == "Hm."
    _, deltas = deltas_of(chunk({key: "Hm."}), chunk({"content": "Hi."}))
    assert deltas == [UpstreamDelta(reasoning="Hm."), UpstreamDelta(text="Hi.")]


def test_a_server_that_ends_its_reply_twice_calls_once():
    part = chunk({"tool_calls": [{**CALL, "index": 0}]})
    ends = [chunk({}, "tool_calls")] * 2
    _, deltas = deltas_of(part, *ends, "[DONE]")
    assert [call.name for delta in deltas for call in delta.calls] == ["f"]


SECOND = {"index": 1, "id": "call_2", "function": {"name": "g", "arguments": ""}}


@pytest.mark.parametrize(
    ("events", "names", "finish"),
    [
        ([chunk({"content": "So."}, "stop"), chunk({"tool_calls": [CALL]}, "tool_calls")], "f", ""),
        ([chunk({"content": "So."}, "stop"), chunk({"tool_calls": [CALL]})], "f", ""),
        ([chunk({"tool_calls": [part]}, "tool_calls") for part in (CALL, SECOND)], "fg", ""),
        ([chunk({"tool_calls": [CALL]}, "tool_calls"), chunk({}, "stop")], "f", ""),
        ([chunk({"content": word}, "stop") for word in "ab"], "", "stop"),
        ([chunk({"content": "a"}, "stop"), chunk({"content": "b"}, "length")], "", "length"),
        ([chunk({"content": "a"}, "length"), chunk({}, "stop")], "", "length"),
    ],
)
def test_what_follows_an_end_changes_it(events, names, finish):
    _, deltas = deltas_of(*events, "[DONE]")
    last = [delta for delta in deltas if delta.finish][-1]
    assert "".join(call.name for call in last.calls) == names
    assert last.finish == (finish or "tool_calls")


@pytest.mark.parametrize("data", ["rubbish", "[]", "1", '{"choices": 1}', '{"x": "\\ud800', "["])
def test_an_event_that_is_no_chunk_is_the_upstreams_fault(data):
    with pytest.raises(RequestError, match="an event that is not a completion chunk") as raised:
        deltas_of(data)
    assert raised.value.status == 502


def test_an_event_that_is_nested_without_end_is_the_upstreams_fault():
    with pytest.raises(RequestError, match="an event that is not a completion chunk"):
        deltas_of('{"choices": ' + DEEP.decode())


def token(text, **more):
    """Return a token with its log-probability, and an alternative."""
    alternative = {"token": "Bye", "logprob": -3.0, "bytes": [66, 121, 101]}
    return {
        "token": text,
        "logprob": -0.5,
        "bytes": list(text.encode()),
        "top_logprobs": [alternative],
        **more,
    }


def details_of(*tokens, **more):
    return read(completion(choice={"logprobs": {"content": tokens}}, **more)).details


def test_what_a_server_says_about_its_reply_is_read():
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 0, HIDDEN: 1},
        "completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": HIDDEN},
    }
    details = details_of(
        token("Hello"),
        token("."),
        created=17,
        usage=usage,
        system_fingerprint="fp_1",
        service_tier="flex",
    )
    assert (details.created, details.system_fingerprint, details.service_tier) == (
        17,
        "fp_1",
        "flex",
    )
    assert details.usage == {
        "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert list(msgspec.to_builtins(details.logprobs)) == [token("Hello"), token(".")]


@pytest.mark.parametrize(
    "tokens",
    [
        [token("Hello"), token(".")],
        [token("Hello."), token("<|im_end|>")],
        [token("Hello", bytes=None), token(".", bytes=None)],
    ],
)
def test_log_probabilities_of_the_replys_own_tokens_leave_the_bytes_as_they_are(tokens):
    assert read(completion(choice={"logprobs": {"content": tokens}})).raw is not None


@pytest.mark.parametrize(
    "tokens",
    [
        [token("Hello")],
        [token("Hello."), token(HIDDEN)],
        [token(HIDDEN, bytes=list(b"Hello"))],
        [token("Hello."), token(HIDDEN, bytes=[])],
    ],
)
def test_log_probabilities_that_say_something_else_are_not_passed_on(tokens):
    upstream_reply = read(completion(choice={"logprobs": {"content": tokens}}))
    logprobs = upstream_reply.details.logprobs
    assert upstream_reply.raw is None
    assert logprobs is None or not tokens_spell(logprobs, "Hello.")


@pytest.mark.parametrize(
    "tokens",
    [
        [token("Hello.", id=7)],
        [token("Hello.", words=HIDDEN)],
        [token("Hello.", top_logprobs=[{"token": "a", "logprob": -1.0, "words": HIDDEN}])],
    ],
)
def test_of_log_probabilities_the_known_fields_are_passed_on(tokens):
    upstream_reply = read(completion(choice={"logprobs": {"content": tokens}}))
    logprobs = upstream_reply.details.logprobs
    assert upstream_reply.raw is None
    assert tokens_spell(logprobs, "Hello.")
    assert HIDDEN not in str(logprobs)


@pytest.mark.parametrize("number", [None, -math.inf, math.nan])
def test_a_token_that_cannot_come_has_the_log_probability_that_openai_gives_it(number):
    impossible = {"token": "Bye", "logprob": number, "bytes": None}
    said = [token("Hello.", top_logprobs=[impossible]), token("", top_logprobs=None)]
    finite = [token("Hello.", top_logprobs=[{**impossible, "logprob": -9999.0}])]
    finite += [token("", top_logprobs=())]
    assert msgspec.to_builtins(details_of(*said).logprobs) == tuple(finite)
    choice = {"delta": {"content": "Hello."}, "logprobs": {"content": said}}
    reader, _ = deltas_of(json.dumps({"choices": [choice]}))
    assert msgspec.to_builtins(reader.details.logprobs) == tuple(finite)


def test_a_character_of_several_tokens_is_spelt_by_their_bytes():
    wave = "\N{WATER WAVE}".encode()
    halves = [token("\\xf0\\x9f", bytes=list(wave[:2])), token("\ufffd", bytes=list(wave[2:]))]
    logprobs = details_of(*halves).logprobs
    assert tokens_spell(logprobs, "\N{WATER WAVE}")
    long = token(HIDDEN, bytes=list(wave[:2]))
    assert not tokens_spell(details_of(long, halves[1]).logprobs, "\N{WATER WAVE}")


def test_what_a_stream_says_about_its_reply_is_read():
    chunks = [
        chunk({"role": "assistant"}, created=17, system_fingerprint="fp_1"),
        *[
            json.dumps(
                {"choices": [{"delta": {"content": text}, "logprobs": {"content": [token(text)]}}]}
            )
            for text in ("Hel", "lo.")
        ],
        chunk({}, "stop", created=17),
    ]
    counts = {"prompt_tokens": 3, "completion_tokens": 4}
    usage = {**counts, "completion_tokens_details": {"reasoning_tokens": 2}}
    last = json.dumps({"choices": [], "created": 17, "system_fingerprint": "fp_1", "usage": usage})
    reader, _ = deltas_of(*chunks)
    assert (reader.details.created, reader.details.system_fingerprint) == (17, "fp_1")
    assert list(msgspec.to_builtins(reader.details.logprobs)) == [token("Hel"), token("lo.")]
    reader, _ = deltas_of(*chunks, last, "[DONE]")
    assert reader.details.usage == {"completion_tokens_details": {"reasoning_tokens": 2}}


FULL = completion(
    {
        "refusal": None,
        "reasoning": "",
        "reasoning_content": "",
        "annotations": [],
        "audio": None,
        "tool_calls": [{**CALL, "index": 0, "extra_content": {"google": {"a": "AAA="}}}],
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "AAA=", "index": 0}],
    },
    {
        "logprobs": {"content": [token("Hello.")], "refusal": None},
        "stop_reason": None,
        "matched_stop": None,
    },
    usage={
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
    system_fingerprint="fp_1",
    service_tier="default",
)
"""A reply with every optional field."""
ODD = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    "\ud83d",
    "\0",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"a": None},
)
TEXTS = {"content", "refusal", "reasoning", "reasoning_content"}
"""Fields whose odd values are texts of the reply themselves."""


def places(value, path=()):
    """Yield the path of every value in a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield (*path, key)
        if isinstance(value[key], dict | list):
            yield from places(value[key], (*path, key))


def put(value, path, new):
    """Return a JSON value with another in one place; without it if `new` is a function."""
    copy = list(value) if isinstance(value, list) else dict(value)
    key, *inner = path
    if inner:
        copy[key] = put(copy[key], inner, new)
    elif new is place_removed:
        del copy[key]
    else:
        copy[key] = new
    return copy


def place_removed():
    """Stand for no value."""


def is_optional(path):
    return path not in {("choices",), ("choices", 0), ("choices", 0, "message")}


@pytest.mark.parametrize("path", list(filter(is_optional, places(FULL))), ids=str)
def test_no_odd_value_of_an_optional_field_loses_a_reply(path):
    for new in (*ODD, place_removed):
        answer = put(FULL, path, new)
        try:
            whole = read(answer)
            reader, deltas = deltas_of(as_chunk(answer), "[DONE]")
        except RequestError:
            # A call that is no object cannot be read, and a reply without it would be another.
            assert "tool_calls" in path[-2:]
            assert new not in (None, 0, [], {}, "", place_removed)
            continue
        if not TEXTS & set(path):
            assert whole.reply.text == "Hello."
            assert "".join(delta.text for delta in deltas) == "Hello."
        assert all(call.id for call in whole.reply.calls)
        calls = [call.line for call in whole.reply.calls]
        texts = [whole.reply.text, whole.reply.reasoning, *calls, *(d.text for d in deltas)]
        assert msgspec.json.encode([texts, whole.details, reader.details])  # no half of a pair
