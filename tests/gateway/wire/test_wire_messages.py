"""Anthropic's Messages API: read as a chat."""

import json

import pytest
from msgspec import structs

from support.wire_server import CALL, DETAILS, answer_of
from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import ReplyDetails
from waltzrl.gateway.wire import MESSAGES
from waltzrl.records import ToolCall

USER = {"role": "user", "content": "Hello"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
EMPTY = {"type": "object", "properties": {}}


def read(messages=(USER,), **options):
    body = {"model": "m", "max_tokens": 9, "messages": messages, **options}
    return MESSAGES.read(json.dumps(body).encode(), "42")


def chat(*messages, **options):
    return read(messages, **options).body["messages"]


@pytest.mark.parametrize("empty", [{}, {"thinking": None, "input": None, "content": None}])
def test_what_clients_leave_out_because_it_is_empty_is_empty(empty):
    thinking = {**empty, "type": "thinking", "signature": "x"}
    use = {**empty, "type": "tool_use", "id": "c", "name": "f"}
    result = {**empty, "type": "tool_result", "tool_use_id": "c"}
    _, called, answered = chat(
        USER,
        {"role": "assistant", "content": [thinking, use]},
        {"role": "user", "content": [result]},
    )
    assert "reasoning_content" not in called
    assert called["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert answered == {"role": "tool", "tool_call_id": "c", "content": ""}


def test_a_call_that_a_model_wrote_without_a_name_locks_no_conversation():
    for name in ({}, {"name": ""}):
        use = {"type": "tool_use", "id": "c", "input": {}, **name}
        called = chat(USER, {"role": "assistant", "content": [use]})[1]
        assert called["tool_calls"][0]["function"]["name"] == "unnamed"


def test_a_reply_without_a_word_is_an_empty_text():
    for said in ({}, {"content": None}, {"content": []}):
        turns = chat(USER, {"role": "assistant", **said}, USER)
        assert turns[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": ', '{"unreadable":"{\\"a\\": "}'),
    ],
)
def test_the_input_of_a_call_may_be_a_text(text, written):
    use = {"type": "tool_use", "id": "c", "name": "f", "input": text}
    called = chat(USER, {"role": "assistant", "content": [use]})[1]
    assert called["tool_calls"][0]["function"]["arguments"] == written


def test_the_result_of_no_call_is_the_clients_text():
    result = {"type": "tool_result", "tool_use_id": "gone", "content": "42"}
    assert chat({"role": "user", "content": [result, {"type": "text", "text": "And?"}]}) == [
        {"role": "user", "content": "[tool_result]\n42"},
        {"role": "user", "content": "And?"},
    ]


def test_options_are_respelt_and_unknown_ones_stay():
    exchange = read(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        stop_sequences=["END"],
        temperature=0.5,
        top_k=40,
        metadata={"user_id": "u7"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        tools=[{"name": "f", "description": "d", "input_schema": EMPTY}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        stream=True,
    )
    assert exchange.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "max_tokens": 9,
        "stop": ["END"],
        "temperature": 0.5,
        "top_k": 40,
        "user": "u7",
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "parameters": EMPTY, "description": "d"},
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": {}, "strict": True},
        },
    }
    assert (exchange.api, exchange.stream, exchange.subject) == ("messages", True, "u7")


@pytest.mark.parametrize(
    ("choice", "spelt"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_a_choice_of_tool_is_respelt(choice, spelt):
    assert read(tool_choice=choice, tools=[TOOL]).body["tool_choice"] == spelt


def test_without_tools_a_chat_has_no_choice_of_one():
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    for tools in ({}, {"tools": []}):
        body = read(tool_choice=choice, **tools).body
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


def test_a_tool_without_parameters_says_that_it_has_no_properties():
    tool = read(tools=[TOOL]).body["tools"][0]
    assert tool["function"]["parameters"] == EMPTY


def test_the_format_of_the_output_may_have_its_older_name():
    output_format = {"type": "json_schema", "schema": EMPTY}
    newer = read(output_config={"format": output_format}).body
    assert read(output_format=output_format).body == newer
    with pytest.raises(RequestError, match=r"output_format\.schema"):
        read(output_format={"type": "json_schema"})


def test_no_stop_sequences_are_as_good_as_absent():
    assert "stop" not in read(stop_sequences=[]).body


def test_requests_that_differ_in_their_billing_have_the_same_system_prompt():
    for digest in ("a1b2c", "d3e4f"):
        header = f"x-anthropic-billing-header: cc_version=2.1.177; cch={digest};"
        blocks = [{"type": "text", "text": text} for text in (header, "Be brief.")]
        for system in (blocks, f"{header}\nBe brief."):
            assert chat(USER, system=system)[0] == {"role": "system", "content": "Be brief."}


def test_a_users_long_id_is_sent_as_a_digest():
    long = f"user_{'7' * 64}_account__session_1"
    first, again, other = (read(metadata={"user_id": user}) for user in (long, long, f"{long}2"))
    assert first.body["user"] == again.body["user"] != other.body["user"]
    assert len(first.body["user"]) == 64
    assert first.subject == long


def test_the_results_of_consecutive_turns_come_before_the_users_images():
    calls = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in ("c1", "c2")]
    image = {"type": "image", "source": {"type": "url", "url": "https://a.example/i.png"}}
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [image]},
        {"type": "tool_result", "tool_use_id": "c2", "content": "42", "is_error": True},
    ]
    turns = [{"role": "user", "content": [result]} for result in results]
    *_, first, second, shown = chat(USER, {"role": "assistant", "content": calls}, *turns)
    assert [first["tool_call_id"], second["tool_call_id"]] == ["c1", "c2"]
    assert second["content"] == "[error]\n42"
    assert shown["role"] == "user"
    assert shown["content"][0]["image_url"] == {"url": "https://a.example/i.png"}


def test_results_follow_their_calls_whoever_spoke_between_them():
    turns = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": i, "name": "f", "input": {}}]}
        for i in ("c1", "c2")
    ]
    note = {"role": "system", "content": "Be brief."}
    results = [{"type": "tool_result", "tool_use_id": i, "content": i} for i in ("c1", "c2")]
    messages = chat(USER, *turns, note, {"role": "user", "content": results})
    assert [message["content"] for message in messages] == [
        *("Hello", "", "c1"),
        *("", "c2", "Be brief."),
    ]


def test_tool_results_come_before_the_users_words():
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    }
    exchange = read(
        [
            USER,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "And?"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "1",
                        "content": [{"type": "text", "text": "It rains."}, image],
                    },
                ],
            },
        ]
    )
    assert exchange.body["messages"][1:] == [
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "It rains."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        },
    ]
    assert [m.content for m in exchange.prompt.messages[2:]] == [
        "It rains.",
        "And?\n[image]",
    ]


def test_documents_are_respelt():
    text = {"type": "document", "source": {"type": "text", "data": "A poem."}}
    assert chat({"role": "user", "content": [text]}) == [{"role": "user", "content": "A poem."}]
    source = {"type": "base64", "media_type": "application/pdf", "data": "AA"}
    pdf = {"type": "document", "title": "a.pdf", "source": source}
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}
    assert chat({"role": "user", "content": [pdf]}) == [
        {"role": "user", "content": [{"type": "file", "file": file}]}
    ]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("max_tokens", {"max_tokens": None}),
        ("max_tokens", {"max_tokens": 0}),
        ("messages", {"messages": []}),
        ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": ["x"]}]}),
        ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{}]}]}),
        (
            "messages[0].content[0].input",
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": 1}]}]},
        ),
        (
            "messages[0].content[0].source",
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        ),
        (
            "messages[0].content[0].tool_use_id",
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        ),
        ("system", {"system": 7}),
        ("stop_sequences", {"stop_sequences": "END"}),
        ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("tools[0].input_schema", {"tools": [{"name": "f"}]}),
        ("tool_choice.type", {"tool_choice": {"type": "some"}}),
        ("metadata.user_id", {"metadata": {"user_id": 7}}),
        ("mcp_servers", {"mcp_servers": [{"url": "x"}]}),
        ("model", {"model": None}),
    ],
)
def test_a_wrong_field_is_named(field, options):
    with pytest.raises(RequestError) as error:
        read(**options)
    assert (error.value.status, error.value.param) == (400, field)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("", {}),
        (" ", {}),
        ("null", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": ', {"unreadable": '{"a": '}),
        ("[1]", {"unreadable": "[1]"}),
        ("[" * 2000, {"unreadable": "[" * 2000}),
    ],
)
def test_arguments_become_an_object_whatever_the_model_wrote(arguments, given):
    answer = answer_of("", ToolCall(id="1", name="f", arguments=arguments))
    assert json.loads(MESSAGES.write(read(), [answer]))["content"][0]["input"] == given


@pytest.mark.parametrize(
    ("kind", "spelt"),
    [
        ("invalid_request", "invalid_request_error"),
        ("too_large", "request_too_large"),
        ("overloaded", "overloaded_error"),
        ("upstream_timeout", "timeout_error"),
        ("upstream", "api_error"),
    ],
)
def test_an_error_is_spelt_as_the_api_spells_it(kind, spelt):
    assert json.loads(MESSAGES.error(RequestError(400, kind, "why"), "req_1")) == {
        "type": "error",
        "error": {"type": spelt, "message": "why"},
        "request_id": "req_1",
    }
    # By the type agents know that they may try again.
    written = json.loads(MESSAGES.error(RequestError(503, "upstream", "busy")))
    assert written["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize(
    ("told", "spelt"),
    [
        (
            "This model's maximum context length is 8192 tokens. However, your messages resulted "
            "in 9001 tokens.",
            "prompt is too long; ",
        ),
        (
            "request (24071 tokens) exceeds the available context size (8192 tokens)",
            "prompt is too long; ",
        ),
        (
            "You passed 2049 input tokens and requested 0 output tokens. However, the model's "
            "context length is only 2048 tokens",
            "prompt is too long; ",
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum "
            "context length is 32768 tokens and your request has 17459 input tokens (32000 > 32768",
            "input length and `max_tokens` exceed context limit: 17459 + 32000 > 32768, ",
        ),
        (
            "This model's maximum context length is 4097 tokens. However, you requested 4100 "
            "tokens (100 in the messages, 4000 in the completion).",
            "input length and `max_tokens` exceed context limit: 100 + 4000 > 4097, ",
        ),
        (
            "Requested token count exceeds the model's maximum context length of 32768 tokens. You "
            "requested a total of 40000 tokens: 8000 tokens from the input messages and 32000 "
            "tokens for the completion.",
            "input length and `max_tokens` exceed context limit: 8000 + 32000 > 32768, ",
        ),
        ("Unknown tool", ""),
        ("context_window: a model in this process cannot honour it; remove it", ""),
        ("Unrecognized request argument supplied: context_length", ""),
    ],
)
def test_a_context_that_is_too_small_is_told_in_the_words_that_clients_know(told, spelt):
    error = RequestError(400, "invalid_request", told)
    message = json.loads(MESSAGES.error(error, ""))["error"]["message"]
    assert message.startswith(spelt or told)
    assert message.endswith(told)


def ending_of(answer, **options):
    """Return why a message ended, whole and in a stream."""
    exchange = read(**options)
    whole = json.loads(MESSAGES.write(exchange, [answer]))
    delta = MESSAGES.writer(exchange).finish(0, answer).decode()
    streamed = json.loads(delta.rpartition("data: ")[2])["delta"]
    assert streamed == {key: whole[key] for key in ("stop_reason", "stop_sequence")}
    return whole["stop_reason"], whole["stop_sequence"]


def test_a_stop_sequence_is_told_if_it_is_one_of_the_requests():
    stopped = answer_of("Hi.", details=ReplyDetails(stop_sequence="END"))
    assert ending_of(stopped, stop_sequences=["x", "END"]) == ("stop_sequence", "END")
    assert ending_of(stopped, stop_sequences=["x"]) == ("end_turn", None)
    assert ending_of(stopped) == ("end_turn", None)
    assert ending_of(answer_of("Hi."), stop_sequences=["END"]) == ("end_turn", None)
    cut = answer_of("Hi.", finish="length", details=ReplyDetails(stop_sequence="END"))
    assert ending_of(cut, stop_sequences=["END"]) == ("max_tokens", None)


def test_a_block_of_text_has_a_type_and_a_text_only():
    """Clients that check types take no `citations` that are null."""
    content = json.loads(MESSAGES.write(read(), [answer_of("Hi.")]))["content"]
    assert content == [{"type": "text", "text": "Hi."}]


def test_a_message_with_calls_ends_to_use_tools_whatever_the_upstream_calls_it():
    assert ending_of(answer_of("", CALL, finish="stop")) == ("tool_use", None)
    assert ending_of(answer_of("", CALL, finish="length")) == ("max_tokens", None)


def test_no_words_open_no_block():
    writer = MESSAGES.writer(read())
    assert writer.text(0, "") == b""
    assert b'"index":0' in writer.finish(0, answer_of("", CALL))


def test_silence_is_kept_alive_by_pings():
    assert MESSAGES.writer(read()).keepalive() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_tokens_from_a_cache_are_counted_apart():
    answer = answer_of("Hi.", details=DETAILS)  # 11 tokens read, 4 of them from a cache
    usage = json.loads(MESSAGES.write(read(), [answer]))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (7, 4)
    details = structs.replace(DETAILS, usage={"prompt_tokens_details": {"cache_write_tokens": 5}})
    usage = json.loads(MESSAGES.write(read(), [answer_of("Hi.", details=details)]))["usage"]
    assert (usage["input_tokens"], usage["cache_creation_input_tokens"]) == (6, 5)


@pytest.mark.promise(
    "Endpoints and upstreams", "Anthropic's `thinking` asks the upstream for an effort"
)
@pytest.mark.parametrize(
    ("thinking", "effort", "shows"),
    [
        ({"type": "enabled", "budget_tokens": 4095}, "low", True),
        ({"type": "enabled", "budget_tokens": 4096}, "medium", True),
        ({"type": "enabled", "budget_tokens": 16384}, "high", True),
        ({"type": "enabled", "budget_tokens": 4095, "display": "omitted"}, "low", False),
        ({"type": "adaptive"}, None, True),
        ({"type": "disabled"}, None, False),
        (None, None, False),
    ],
)
def test_a_budget_of_thinking_is_an_effort(thinking, effort, shows):
    exchange = read(thinking=thinking)
    assert exchange.body.get("reasoning_effort") == effort
    assert "thinking" not in exchange.body
    assert exchange.shows_reasoning == shows


def test_an_effort_precedes_a_budget():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = read(thinking=thinking, output_config={"effort": "high"}).body
    assert body["reasoning_effort"] == "high"
