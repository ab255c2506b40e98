"""Chat completions: what is read, and what is written to the byte."""

import gzip
import json
import re

import pytest
from msgspec import structs

from support.wire_server import CALL, DETAILS, answer_of, stream_of
from waltzrl.errors import RequestError
from waltzrl.gateway.moderation import read_moderation
from waltzrl.gateway.wire import CHAT
from waltzrl.gateway.wire.fields import ROLES, turns_of
from waltzrl.gateway.wire.format import DONE
from waltzrl.policies.sse import EventDecoder
from waltzrl.records import Message

USER = {"role": "user", "content": "Hello"}


def read(messages=(USER,), **options):
    body = {"model": "m", "messages": messages, **options}
    return CHAT.read(json.dumps(body).encode(), "42")


def shown(*messages):
    return [(m.role, m.full_text) for m in read(messages).prompt.messages]


def refusal(raw):
    with pytest.raises(RequestError) as error:
        CHAT.read(raw, "42")
    assert (error.value.status, error.value.kind) == (400, "invalid_request")
    return str(error.value)


def test_the_body_goes_on_with_what_is_unknown_and_without_what_the_gateway_does():
    exchange = read(
        n=2, stream=True, stream_options={"include_usage": True}, user="u7", seed=3, top_k=40
    )
    assert exchange.body == {
        "model": "m",
        "messages": [USER],
        "user": "u7",
        "seed": 3,
        "top_k": 40,
    }
    assert (exchange.n, exchange.stream, exchange.stream_usage) == (2, True, True)
    assert (exchange.api, exchange.model, exchange.subject) == ("chat", "m", "u7")
    assert exchange.prompt.id == "42"


def test_the_prompt_has_the_turns():
    assert read(
        [
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": "c"},
            USER,
        ]
    ).prompt.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="a\nb"),
        Message(role="assistant", content="c"),
        Message(role="user", content="Hello"),
    )


def test_what_is_not_text_is_a_word_in_brackets_and_stays_in_the_body():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [image, {"type": "text", "text": "What?"}, {"type": "smell", "smell": "rose"}]
    exchange = read([{"role": "user", "content": parts}])
    assert exchange.prompt.messages[0].content == "[image]\nWhat?\n[smell]"
    assert exchange.body["messages"][0]["content"] == parts


def test_words_in_a_part_of_an_unknown_kind_are_shown():
    assert shown({"role": "user", "content": [{"type": "note", "text": "x"}]}) == [("user", "x")]


def test_calls_and_their_results_are_shown():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert shown(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "It rains."},
    ) == [
        ("user", "Hello"),
        ("assistant", '{"call": "f", "arguments": "{\\"a\\":1}"}'),
        ("tool", "It rains."),
    ]


@pytest.mark.parametrize("role", ["assistant", "system"])
def test_what_the_client_says_after_the_user_is_shown_with_it(role):
    begun = {"role": role, "content": "Sure, "}
    exchange = read([USER, begun])
    assert [m.content for m in exchange.prompt.messages] == ["Hello\nSure, "]
    assert exchange.body["messages"] == [USER, begun]


def test_without_a_user_the_last_turn_is_the_users():
    assert shown({"role": "system", "content": "Say hi."}) == [("user", "Say hi.")]
    assert shown({"role": "system", "content": "a"}, {"role": "assistant", "content": "b"}) == [
        ("system", "a"),
        ("user", "b"),
    ]


def test_of_a_key_that_is_there_twice_the_last_counts_for_everyone():
    raw = b'{"model":"m","messages":[{"role":"user","content":"a","content":"b"}]}'
    exchange = CHAT.read(raw, "42")
    assert exchange.prompt.messages[0].content == "b"
    assert exchange.body["messages"] == [{"role": "user", "content": "b"}]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("model", {"model": ""}),
        ("model", {"model": 7}),
        ("messages", {"messages": []}),
        ("messages", {"messages": "Hello"}),
        ("messages[0]", {"messages": ["Hello"]}),
        ("messages[0].role", {"messages": [{"content": "Hello"}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{}]}]}),
        (
            "messages[0].content[0].text",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        ),
        (
            "messages[1].tool_calls[0].function",
            {"messages": [USER, {"role": "assistant", "tool_calls": [{}]}]},
        ),
        ("n", {"n": 0}),
        ("n", {"n": 17}),
        ("n", {"n": True}),
        ("n", {"n": 1.0}),
        ("stream", {"stream": "yes"}),
        ("stream_options", {"stream_options": []}),
        ("stream_options.include_usage", {"stream_options": {"include_usage": 1}}),
        ("temperature", {"temperature": "hot"}),
        ("temperature", {"temperature": -1}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_completion_tokens", {"max_completion_tokens": 10**40}),
        ("tools", {"tools": {}}),
        ("tools[0]", {"tools": ["weather"]}),
        ("user", {"user": 7}),
        ("modalities", {"modalities": ["text", "audio"]}),
    ],
)
def test_a_wrong_field_is_named(field, options):
    with pytest.raises(RequestError) as error:
        read(**options)
    assert (error.value.status, error.value.param) == (400, field)
    assert str(error.value).startswith(f"{field}: ")


def test_fields_that_are_null_are_as_good_as_absent():
    exchange = read(n=None, stream=None, stream_options=None, user=None, temperature=None)
    assert (exchange.n, exchange.stream, exchange.stream_usage, exchange.subject) == (
        1,
        False,
        False,
        "",
    )


def test_keys_that_are_null_and_no_stops_go_no_further():
    unset = dict.fromkeys(("temperature", "seed", "tool_choice", "functions", "max_tokens"))
    assert read(stop=[], **unset).body == {"model": "m", "messages": [USER]}


def test_fields_of_a_message_that_are_null_go_no_further():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "3", "tool_call_id": "c"}
    nulls = {"refusal": None, "annotations": None, "audio": None, "function_call": None}
    sent = [USER, {**called, **nulls}, {**result, "name": None}]
    assert read(sent).body["messages"] == [USER, called, result]


@pytest.mark.parametrize("name", [{}, {"name": None}, {"name": ""}])
def test_a_call_that_a_model_wrote_without_a_name_locks_no_conversation(name):
    call = {"id": "c", "type": "function", "function": {**name, "arguments": "{}"}}
    sent = read([USER, {"role": "assistant", "content": None, "tool_calls": [call]}]).body
    named = {"arguments": "{}", "name": "unnamed"}
    assert sent["messages"][1]["tool_calls"][0]["function"] == named


@pytest.mark.parametrize("said", [{}, {"content": None}, {"content": None, "tool_calls": []}])
def test_a_reply_without_a_word_is_an_empty_text(said):
    sent = read([USER, {"role": "assistant", **said}, USER]).body["messages"]
    assert sent == [USER, {"role": "assistant", "content": ""}, USER]
    refused = {"role": "assistant", "content": None, "refusal": "I can't."}
    assert read([USER, refused, USER]).body["messages"][1] == refused


def test_empty_lists_are_as_good_as_absent():
    said = {"role": "assistant", "content": "Hi."}
    sent = read([USER, {**said, "tool_calls": [], "annotations": []}], tools=[], tool_choice="auto")
    assert sent.body == {"model": "m", "messages": [USER, said]}
    assert read([{"role": "user", "content": []}]).body["messages"] == [
        {"role": "user", "content": []}
    ]


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({}, "{}"),
        ({"arguments": None}, "{}"),
        ({"arguments": ""}, "{}"),
        ({"arguments": "null"}, "{}"),
        ({"arguments": {"a": 1}}, '{"a":1}'),
        ({"arguments": '{"a": 1}'}, '{"a": 1}'),
        ({"arguments": '{"a": '}, '{"unreadable":"{\\"a\\": "}'),
        ({"arguments": "[1]"}, '{"unreadable":"[1]"}'),
    ],
)
@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_arguments_and_results_that_clients_leave_out_are_empty(arguments, written, content):
    call = {"id": "c", "type": "function", "function": {"name": "f", **arguments}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", **content}
    _, called, result = read([USER, called, result]).body["messages"]
    assert called["tool_calls"][0]["function"] == {"name": "f", "arguments": written}
    assert result == {"role": "tool", "tool_call_id": "c", "content": ""}
    older = {"role": "assistant", "content": None, "function_call": {"name": "f", **arguments}}
    assert read([USER, older]).body["messages"][1]["function_call"]["arguments"] == written


@pytest.mark.promise(
    "Bad input",
    "A request to the gateway with half of a UTF-16 surrogate pair: U+FFFD in its place",
)
@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"cut \\ud83d", "cut \ufffd"),
        (b"\\ude00\\uD83D.", "\ufffd\ufffd."),
        (b"\\ud83d\\ude00", "\U0001f600"),
        (b"\\ud83d\\ud83d\\ude00", "\ufffd\U0001f600"),
        (b"\\\\ud83d \\\\\\ud83d", "\\ud83d \\\ufffd"),
        (b"a\\u0000b", "ab"),
        (b"a\\\\u0000", "a\\u0000"),
    ],
)
def test_what_no_tokenizer_takes_refuses_no_request(written, text):
    raw = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % written
    chat = CHAT.read(raw, "42")
    assert chat.prompt.request == chat.body["messages"][0]["content"] == text


@pytest.mark.parametrize(
    ("raw", "need"),
    [
        (b'{"input":"\\ud800"}', "input: has half of a UTF-16 surrogate pair"),
        (b'{"a":{"b":["c","\\ude00\\ud83d"]}}', "a.b[1]: has half of a UTF-16 surrogate pair"),
        (b'{"\\ud800":1}', "a key: has half of a UTF-16 surrogate pair"),
    ],
)
def test_half_a_pair_is_named_where_a_text_is_reviewed_by_itself(raw, need):
    with pytest.raises(RequestError, match=re.escape(need)):
        read_moderation(raw, "42")


@pytest.mark.parametrize(
    ("raw", "need"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (gzip.compress(b"{}", mtime=0), "compressed; send it uncompressed"),
        (b"\x28\xb5\x2f\xfd\x04", "compressed; send it uncompressed"),
        (b'{"model":"m"}x', "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (b'{"a":1e999}', "not JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a":"\\ud800"', "not JSON"),
        (b'{"a":"\\ud8"x"}', "not JSON"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b"[]", "not a JSON object"),
        (b'"model"', "not a JSON object"),
        (b"[" * 1_000_000, "nested more than 100 levels deep"),
        (b'{"a":' * 1_000_000, "nested more than 100 levels deep"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 100 levels deep"),
    ],
)
def test_a_body_that_is_no_request_is_refused(raw, need):
    assert need in refusal(raw)


def test_a_body_may_begin_with_the_mark_of_its_encoding():
    raw = b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
    assert CHAT.read(raw, "42").model == "m"


def test_what_is_nested_a_hundred_deep_is_read():
    nested = b"[" * 98 + b"]" * 98
    raw = b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"usage":[%b]}' % nested
    assert CHAT.read(raw, "42").model == "m"


def test_a_draft_goes_out_as_it_came():
    answer = answer_of("Hi")
    raw = structs.replace(answer, raw=b'{"id": "theirs"}')
    assert CHAT.write(read(), [raw]) == b'{"id": "theirs"}'
    assert json.loads(CHAT.write(read(n=2), [raw, raw]))["id"] == "chatcmpl-42"


def test_a_reply_is_written():
    written = json.loads(CHAT.write(read(), [answer_of("Hi", CALL)]))
    created = written.pop("created")
    assert isinstance(created, int)
    assert written == {
        "id": "chatcmpl-42",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi",
                    "refusal": None,
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                        }
                    ],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def test_a_stream_is_written():
    stream = b"".join(stream_of(CHAT.writer(read()), [answer_of("Hi", CALL)]))
    assert stream.endswith(DONE)
    *events, done = EventDecoder().feed(stream)
    assert done.data == "[DONE]"
    assert {event.name for event in events} == {""}
    chunks = [json.loads(event.data) for event in events]
    assert {(c["id"], c["object"], c["model"]) for c in chunks} == {
        ("chatcmpl-42", "chat.completion.chunk", "m")
    }
    assert [(c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in chunks] == [
        ({"role": "assistant", "content": "", "refusal": None}, None),
        ({"content": "Hi"}, None),
        (
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                    }
                ]
            },
            None,
        ),
        ({}, "tool_calls"),
    ]


def test_every_chunk_before_the_counts_says_that_they_are_to_come():
    exchange = read(stream=True, stream_options={"include_usage": True})
    *events, _ = EventDecoder().feed(b"".join(stream_of(CHAT.writer(exchange), [answer_of("Hi")])))
    *before, last = [json.loads(event.data)["usage"] for event in events]
    assert set(before) == {None}
    assert last == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@pytest.mark.parametrize(
    ("kind", "spelt"),
    [
        ("invalid_request", ("invalid_request_error", None)),
        ("authentication", ("invalid_request_error", "invalid_api_key")),
        ("rate_limit", ("requests", "rate_limit_exceeded")),
        ("audit", ("server_error", "audit")),
    ],
)
def test_an_error_is_spelt_as_the_api_spells_it(kind, spelt):
    problem = RequestError(400, kind, "why", param="n")
    assert json.loads(CHAT.error(problem)) == {
        "error": {"message": "why", "type": spelt[0], "param": "n", "code": spelt[1]}
    }


LOGPROBS = {
    "content": [
        {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []},
        {
            "token": ".",
            "logprob": -0.25,
            "bytes": None,
            "top_logprobs": [{"token": "!", "logprob": -2.0, "bytes": None}],
        },
    ],
    "refusal": None,
}
USAGE = {
    "prompt_tokens": 22,
    "completion_tokens": 14,
    "total_tokens": 36,
    "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens_details": {"reasoning_tokens": 6},
}


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A draft that passes keeps its log-probabilities, token details, fingerprint, tier and time, "
    "also with `n` > 1, streamed, and in Responses",
)
def test_choices_keep_what_the_upstream_says_about_them():
    answers = [answer_of("Hi.", details=DETAILS)] * 2
    written = json.loads(CHAT.write(read(n=2), answers))
    assert [choice["logprobs"] for choice in written["choices"]] == [LOGPROBS] * 2
    assert written["usage"] == USAGE
    about = (written["created"], written["system_fingerprint"], written["service_tier"])
    assert about == (17, "fp_1", "default")


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A draft that passes keeps its log-probabilities, token details, fingerprint, tier and time, "
    "also with `n` > 1, streamed, and in Responses",
)
@pytest.mark.promise("Endpoints and upstreams", "All chunks of a stream have the same `created`")
def test_a_stream_ends_with_what_the_upstream_says_about_its_choices():
    exchange = read(n=2, stream=True, stream_options={"include_usage": True})
    answers = [answer_of("Hi.", details=DETAILS)] * 2
    *events, _ = EventDecoder().feed(b"".join(stream_of(CHAT.writer(exchange), answers)))
    chunks = [json.loads(event.data) for event in events]
    assert {chunk["created"] for chunk in chunks} == {int(exchange.created)}
    ends = [c for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
    assert [end["choices"][0]["logprobs"] for end in ends] == [LOGPROBS] * 2
    assert [end["system_fingerprint"] for end in ends] == ["fp_1"] * 2
    assert (chunks[-1]["usage"], chunks[-1]["service_tier"]) == (USAGE, "default")


@pytest.mark.parametrize("role", ROLES)
def test_a_turn_of_a_role_and_a_text_is_read_as_any_other(role):
    plain = {"role": role, "content": "Hello."}
    named = plain | {"name": "a"}  # one key more, so it is read the long way
    assert turns_of([plain]) == turns_of([named])
