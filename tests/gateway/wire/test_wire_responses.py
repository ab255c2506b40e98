"""The Responses API: read as a chat."""

import json

import pytest

from support.wire_server import CALL, answer_of
from waltzrl.errors import RequestError
from waltzrl.gateway.wire import RESPONSES
from waltzrl.records import ToolCall

CUSTOM = {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "+a"}


def read(given="Hello", **options):
    body = {"model": "m", "input": given, **options}
    return RESPONSES.read(json.dumps(body).encode(), "42")


def chat(*items, **options):
    return read(list(items), **options).body["messages"]


def test_instructions_and_a_text_become_two_messages():
    assert read("Hello", instructions="Be brief.").body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


def test_options_are_respelt_and_unknown_ones_stay():
    exchange = read(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "json_schema", "name": "s", "schema": {}}},
        tools=[{"type": "function", "name": "f", "parameters": {}, "strict": True}],
        tool_choice={"type": "function", "name": "f"},
        metadata={"a": "b"},
        safety_identifier="u7",
        store=True,
        include=["reasoning.encrypted_content"],
        truncation="auto",
        background=False,
        previous_response_id=None,
        stream=True,
        seed=3,
    )
    assert exchange.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "low",
        "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "metadata": {"a": "b"},
        "safety_identifier": "u7",
        "seed": 3,
    }
    assert (exchange.api, exchange.stream, exchange.subject) == ("responses", True, "u7")


def test_the_answer_repeats_the_options_as_the_client_wrote_them():
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": True}
    form = {"type": "json_schema", "name": "s", "schema": {}}
    choice = {"type": "function", "name": "f"}
    exchange = read(tools=[tool], tool_choice=choice, text={"format": form}, max_output_tokens=9)
    begun = RESPONSES.writer(exchange).open().split(b"\n")[1].removeprefix(b"data: ")
    echo = json.loads(begun)["response"]
    assert echo["tools"] == [tool]
    assert echo["tool_choice"] == choice
    assert echo["text"] == {"format": form}
    assert echo["max_output_tokens"] == 9
    assert echo["store"] is False


def test_items_become_turns_and_calls_of_a_turn_one_message():
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    assert chat(
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
        },
        {**call, "call_id": "1"},
        {**call, "call_id": "2"},
        {"type": "function_call_output", "call_id": "1", "output": "a"},
        {"type": "function_call_output", "call_id": "2", "output": "b"},
    ) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "2", "content": "b"},
    ]


def test_a_call_without_words_is_a_turn_of_its_own():
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    assert chat({"role": "user", "content": "Hi"}, call)[1]["content"] is None


@pytest.mark.parametrize("empty", [{}, {"arguments": None, "output": None}])
def test_arguments_and_results_that_clients_leave_out_are_empty(empty):
    _, called, result = chat(
        {"role": "user", "content": "Hi"},
        {**empty, "type": "function_call", "call_id": "1", "name": "f"},
        {**empty, "type": "function_call_output", "call_id": "1"},
    )
    assert called["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert result["content"] == ""


def test_a_call_that_a_model_wrote_without_a_name_locks_no_conversation():
    for name in ({}, {"name": ""}):
        call = {"type": "function_call", "call_id": "1", "arguments": "{}", **name}
        called = chat({"role": "user", "content": "Hi"}, call)[1]
        assert called["tool_calls"][0]["function"]["name"] == "unnamed"


def test_a_reply_without_a_word_is_an_empty_text():
    user = {"type": None, "role": "user", "content": "Hi"}
    for said in ({}, {"content": None}, {"content": []}):
        assert chat(user, {"role": "assistant", **said}, user)[1]["content"] == ""


def test_state_that_is_not_asked_for_is_not_refused():
    body = read("Hi", previous_response_id="", conversation={}, prompt=None, background=False).body
    assert body == read("Hi").body


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({"a": 1}, '{"a":1}'),
        ('{"a": ', '{"unreadable":"{\\"a\\": "}'),
    ],
)
def test_a_call_that_was_written_wrongly_ends_no_conversation(arguments, written):
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
    called = chat({"role": "user", "content": "Hi"}, call)[1]
    assert called["tool_calls"][0]["function"]["arguments"] == written


def test_pictures_and_files_are_respelt():
    parts = [
        {"type": "input_text", "text": "What?"},
        {"type": "input_image", "image_url": "https://a.b/c.png", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"},
    ]
    exchange = read([{"role": "user", "content": parts}])
    assert exchange.body["messages"][0]["content"] == [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "https://a.b/c.png", "detail": "low"}},
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"},
        },
    ]
    assert exchange.prompt.messages[0].content == "What?\n[image]\n[file]"


def items_of(answer):
    """Return the calls of a response, whole and in a stream."""
    whole = json.loads(RESPONSES.write(read(), [answer]))
    writer = RESPONSES.writer(read())
    stream = (writer.open() + writer.finish(0, answer) + writer.close([answer])).decode()
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"] == events[-1]["response"]["output"]
    written = [event["arguments"] for event in events if event["type"].endswith("arguments.done")]
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert written == deltas == [item["arguments"] for item in done]
    return whole["status"], [(item["status"], item["arguments"]) for item in done]


@pytest.mark.parametrize("arguments", ["", " ", "null"])
def test_a_call_without_arguments_has_an_empty_object(arguments):
    call = ToolCall(id="1", name="f", arguments=arguments)
    assert items_of(answer_of("", call)) == ("completed", [("completed", "{}")])


@pytest.mark.parametrize("arguments", ["", '{"a": '])
def test_a_call_that_was_cut_off_is_incomplete_and_those_before_it_are_not(arguments):
    cut = ToolCall(id="2", name="f", arguments=arguments)
    status, items = items_of(answer_of("", CALL, cut, finish="length"))
    assert status == "incomplete"
    assert items == [("completed", CALL.arguments), ("incomplete", arguments)]


def test_no_words_open_no_message():
    writer = RESPONSES.writer(read())
    assert writer.text(0, "") == b""
    assert b'"output_index":0' in writer.finish(0, answer_of("", CALL))


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("input", {"given": None}),
        ("input", {"given": []}),
        ("input", {"given": [{"type": "reasoning"}]}),
        ("input[0]", {"given": ["Hello"]}),
        ("input[0].type", {"given": [{"type": ["message"]}]}),
        ("input[0].role", {"given": [{"role": "tool", "content": "x"}]}),
        ("input[0].content", {"given": [{"role": "user", "content": 7}]}),
        ("input[0].content[0].type", {"given": [{"role": "user", "content": [{}]}]}),
        ("input[0].input", {"given": [{**CUSTOM, "input": None}]}),
        ("background", {"background": True}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("conversation", {"conversation": "conv_1"}),
        ("prompt", {"prompt": {"id": "p"}}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].name", {"tools": [{"type": "function"}]}),
        ("tools[0].name", {"tools": [{"type": "custom"}]}),
        ("tool_choice", {"tool_choice": {"type": "web_search"}}),
        ("reasoning.effort", {"reasoning": {"effort": 3}}),
        ("text.format.type", {"text": {"format": {}}}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("model", {"model": None}),
    ],
)
def test_a_wrong_field_is_named(field, options):
    with pytest.raises(RequestError) as error:
        read(**options)
    assert (error.value.status, error.value.param) == (400, field)


@pytest.mark.promise(
    "Bad input",
    "A tool that runs on the server, in a request of Responses: the tool, with status 400, and "
    "the types that are taken",
)
def test_a_hosted_tool_is_refused_in_words():
    with pytest.raises(RequestError, match="need 'function' or 'custom'; the gateway"):
        read(tools=[{"type": "web_search"}])


@pytest.mark.parametrize("tools", [None, [], [{"type": "function", "name": "f"}]])
def test_tools_that_an_item_brings_are_tools_of_the_chat(tools):
    named = {"type": "namespace", "name": "ns", "tools": [{"type": "custom", "name": "exec"}]}
    brought = {"type": "additional_tools", "role": "developer", "tools": [named]}
    found = {"type": "function", "name": "f", "defer_loading": True}
    search = {"type": "tool_search_output", "call_id": "1", "tools": [found]}
    exchange = read([brought, USER, brought, search], tools=tools)
    assert sorted(map(str, exchange.body["tools"])) == sorted(
        map(str, [{"type": "custom", "custom": {"name": "ns__exec"}}, FUNCTION_F])
    )
    assert exchange.tool_names["ns__exec"] == {"name": "exec", "namespace": "ns"}
    assert exchange.body["messages"][0] == USER


SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}


def test_a_function_that_says_who_runs_it_is_no_search_of_tools():
    function = {"type": "function", "name": "f", "execution": "client"}
    exchange = read([USER], tools=[function])
    answer = answer_of("", ToolCall(id="2", name="f", arguments='{"a": 1}'))
    (item,) = json.loads(RESPONSES.write(exchange, [answer]))["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "f", '{"a": 1}')


def test_a_search_of_tools_that_the_client_runs_is_a_function_of_the_chat():
    called = {"call_id": "1", "execution": "client", "status": "completed"}
    found = {"type": "function", "name": "f"}
    exchange = read(
        [
            USER,
            {**called, "type": "tool_search_call", "arguments": {"query": "mail"}},
            {**called, "type": "tool_search_output", "tools": [found]},
        ],
        tools=[SEARCH],
    )
    assert exchange.body["tools"] == [
        {"type": "function", "function": {"name": "tool_search", "parameters": {"type": "object"}}},
        FUNCTION_F,
    ]
    _, call, result = exchange.body["messages"]
    assert call["tool_calls"][0]["function"] == {
        "name": "tool_search",
        "arguments": '{"query":"mail"}',
    }
    assert (result["tool_call_id"], "name: f" in result["content"]) == ("1", True)
    answer = answer_of("", ToolCall(id="2", name="tool_search", arguments='{"query": "x"}'))
    (item,) = json.loads(RESPONSES.write(exchange, [answer]))["output"]
    assert (item["type"], item["execution"], item["call_id"], item["arguments"]) == (
        "tool_search_call",
        "client",
        "2",
        {"query": "x"},
    )
    streamed = RESPONSES.writer(exchange).finish(0, answer).decode()
    assert "function_call" not in streamed
    assert streamed.count('"arguments":{"query":"x"}') == 1
    with pytest.raises(RequestError, match="the gateway runs no tools"):
        read(tools=[{**SEARCH, "execution": "server"}])


USER = {"role": "user", "content": "And?"}
FUNCTION_F = {"type": "function", "function": {"name": "f"}}
CALL_OF_A_TOOL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}


def test_a_message_between_a_call_and_its_result_joins_the_call():
    _, assistant, result = chat(
        {"role": "user", "content": "Hi"},
        CALL_OF_A_TOOL,
        {"role": "assistant", "content": [{"type": "output_text", "text": "Looking it up."}]},
        {"type": "function_call_output", "call_id": "1", "output": "a"},
    )
    assert assistant["content"] == "Looking it up."
    assert [call["id"] for call in assistant["tool_calls"]] == ["1"]
    assert result == {"role": "tool", "tool_call_id": "1", "content": "a"}


@pytest.mark.parametrize("role", ["user", "developer", "assistant"])
def test_results_follow_their_calls_whoever_spoke_between_them(role):
    calls = [{**CALL_OF_A_TOOL, "call_id": name} for name in ("1", "2")]
    results = [
        {"type": "function_call_output", "call_id": name, "output": name} for name in ("1", "2")
    ]
    between = {"role": role, "content": "Wait."}
    messages = chat({"role": "user", "content": "Hi"}, *calls, results[0], between, results[1])
    assert [message["content"] for message in messages] == ["Hi", None, "1", "2", "Wait."]


def test_a_result_follows_the_last_call_of_its_id():
    result = {"type": "function_call_output", "call_id": "1", "output": "a"}
    turn = [{"role": "user", "content": "Hi"}, CALL_OF_A_TOOL, result]
    roles = [message["role"] for message in chat(*turn, *turn)]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "tool"]


@pytest.mark.parametrize("named", [{}, {"call_id": "9"}, {"call_id": ["9"]}])
def test_a_result_of_no_call_is_the_clients_text(named):
    """Codex tells so what it was started for."""
    output = {"type": "function_call_output", "name": "automation", **named, "output": "At 9."}
    (told,) = chat(output)
    assert (told["role"], told["content"].splitlines()[0]) == ("user", "[function_call_output]")
    assert told["content"].endswith("At 9.")


class Id(str):
    """Counts how often one is compared with another."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Id.compared += 1
        return str.__eq__(self, other)


def test_results_find_their_calls_without_looking_through_all_of_them():
    names = [(Id(number), Id(number)) for number in range(100)]
    calls = [{**CALL_OF_A_TOOL, "call_id": name} for name, _ in names]
    results = [
        {"type": "function_call_output", "call_id": name, "output": "a"} for _, name in names
    ]
    assert len(chat(*calls, *results)) == 101
    assert Id.compared < 1000


def test_a_call_that_was_interrupted_has_a_result_that_says_so():
    calls = [{**CALL_OF_A_TOOL, "call_id": name} for name in ("1", "2")]
    result = {"type": "function_call_output", "call_id": "2", "output": "b"}
    messages = chat({"role": "user", "content": "Hi"}, *calls, result, USER)
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "2", "content": "b"},
        {"role": "tool", "tool_call_id": "1", "content": "[no result]"},
        USER,
    ]


def test_a_results_image_follows_all_results_as_the_users():
    image = {"type": "input_image", "image_url": "https://a.example/i.png"}
    words = {"type": "input_text", "text": "The screen."}
    items = (
        {"role": "user", "content": "Hi"},
        CALL_OF_A_TOOL,
        {**CALL_OF_A_TOOL, "call_id": "2"},
        {"type": "function_call_output", "call_id": "1", "output": [words, image]},
        {"type": "function_call_output", "call_id": "2", "output": "b"},
    )
    shown = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "https://a.example/i.png"}}],
    }
    results = [
        {"role": "tool", "tool_call_id": "1", "content": "The screen."},
        {"role": "tool", "tool_call_id": "2", "content": "b"},
    ]
    assert chat(*items)[2:] == [*results, shown]
    answer = {"role": "assistant", "content": "I see."}
    assert chat(*items, answer)[2:] == [*results, shown, answer]


def test_without_tools_a_chat_has_no_choice_of_one():
    for tools in ({}, {"tools": []}):
        body = read(tool_choice="auto", parallel_tool_calls=True, **tools).body
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


def test_texts_of_a_result_or_of_the_assistant_are_one_string():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    refusal = [{"type": "output_text", "text": "No."}, {"type": "refusal", "refusal": "Never."}]
    user, assistant, result, empty = chat(
        {"role": "user", "content": parts},
        {"role": "assistant", "content": refusal},
        CALL_OF_A_TOOL,
        {**CALL_OF_A_TOOL, "call_id": "2"},
        {"type": "function_call_output", "call_id": "1", "output": parts},
        {"type": "function_call_output", "call_id": "2", "output": []},
    )
    assert [part["text"] for part in user["content"]] == ["a", "b"]
    assert assistant["content"] == "No.\nNever."
    assert (result["content"], empty["content"]) == ("a\nb", "")


def test_a_choice_of_allowed_tools_is_nested_and_echoed():
    tools = [{"type": "function", "name": name, "parameters": {}} for name in ("f", "g")]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    request = read("Hello", tools=tools, tool_choice=choice, client_metadata={"id": "5b6d"})
    assert request.body["tool_choice"] == {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    }
    assert "client_metadata" not in request.body
    assert json.loads(RESPONSES.write(request, [answer_of("Hi.")]))["tool_choice"] == choice
    with pytest.raises(RequestError, match=r"tool_choice\.tools"):
        read("Hello", tools=tools, tool_choice=choice | {"tools": "f"})


def test_a_namespace_is_in_the_names_of_its_tools_and_comes_back_apart():
    tool = {"type": "function", "name": "search", "parameters": {}}
    named = {"name": "search", "namespace": "mcp__graph"}
    request = read(
        [{"role": "user", "content": "Hi"}, {**CALL_OF_A_TOOL, **named}],
        tools=[
            tool | {"namespace": None},
            {"type": "namespace", "name": "mcp__graph", "tools": [tool]},
        ],
        tool_choice={"type": "function", **named},
    )
    flat = "mcp__graph__search"
    assert [tool["function"]["name"] for tool in request.body["tools"]] == ["search", flat]
    assert request.body["messages"][1]["tool_calls"][0]["function"]["name"] == flat
    assert request.body["tool_choice"]["function"]["name"] == flat
    calls = [ToolCall(id=name, name=name, arguments="{}") for name in ("search", flat)]
    own, of_namespace = json.loads(RESPONSES.write(request, [answer_of("", *calls)]))["output"]
    assert (own["name"], "namespace" in own) == ("search", False)
    assert (of_namespace["name"], of_namespace["namespace"]) == ("search", "mcp__graph")


@pytest.mark.parametrize("other", [("", "a__b__c"), ("a__b", "c"), ("a", "b__c")])
def test_tools_that_would_have_the_same_name_in_a_chat_are_refused(other):
    def tool_of(namespace, name):
        tool = {"type": "function", "name": name}
        return {"type": "namespace", "name": namespace, "tools": [tool]} if namespace else tool

    first = tool_of("a", "b__c")
    if other == ("a", "b__c"):  # a tool that is sent twice is the server's to judge
        assert len(read("Hi", tools=[first, tool_of(*other)]).body["tools"]) == 2
        return
    with pytest.raises(RequestError, match=r"tools\[1\].*name: got 'a__b__c'; need a name that"):
        read("Hi", tools=[first, tool_of(*other)])


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"type": "namespace", "tools": []}, "name"),
        ({"type": "namespace", "name": "n"}, "tools"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}, "tools[0].type"),
    ],
)
def test_what_is_wrong_in_a_namespace_is_named(tool, field):
    with pytest.raises(RequestError) as caught:
        read(tools=[tool])
    assert caught.value.param == f"tools[0].{field}"


def test_a_reference_to_an_item_is_refused_unless_it_is_to_reasoning():
    hello, more = {"role": "user", "content": "Hi"}, {"role": "user", "content": "And?"}
    reasoning, message = ({"type": "item_reference", "id": name} for name in ("rs_1", "msg_1"))
    assert chat(hello, reasoning, more) == [hello, more]
    with pytest.raises(RequestError, match=r"input\[1\]: .* send the whole .* store=false"):
        chat(hello, message, more)
