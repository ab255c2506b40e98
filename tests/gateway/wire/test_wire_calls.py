"""Calls of custom tools, and those in the older `function_call`, are reviewed and returned."""

import json

import openai
import pytest

from support.small_gateway import CHAT, MESSAGES, RESPONSES, UNSAFE, Model, ask, with_gateway
from support.small_site import events, http
from support.wire_server import CALL, answer_of, wire_server
from waltzrl.gateway import wire
from waltzrl.policies.chat_completion import chat_message
from waltzrl.records import Message, ToolCall

HELLO = [{"role": "user", "content": "Add a file."}]
PATCH = '*** Begin Patch\n*** Add File: a.txt\n+say "hello"\n*** End Patch'
CUSTOM = ToolCall(id="call_1", name="apply_patch", arguments=PATCH, kind="custom")
OLDER = ToolCall(id="call_9", name="weather", arguments='{"city":"Oslo"}', kind="function_call")
CUSTOM_CALL = {"id": "call_1", "type": "custom", "custom": {"name": "apply_patch", "input": PATCH}}
OLDER_CALL = {"name": "weather", "arguments": '{"city":"Oslo"}'}
GRAMMAR = {"syntax": "lark", "definition": "start: /.+/s"}
TOOL = {"name": "apply_patch", "description": "Edits files."}
CHAT_TOOL = {
    "type": "custom",
    "custom": {**TOOL, "format": {"type": "grammar", "grammar": GRAMMAR}},
}
RESPONSES_TOOL = {"type": "custom", **TOOL, "format": {"type": "grammar", **GRAMMAR}}


@pytest.fixture
def served():
    with wire_server() as (url, scene):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0), scene


def test_a_chat_asks_for_a_custom_tool(served):
    client, scene = served
    scene.answers = [answer_of("", CUSTOM, CALL)]
    answer = client.chat.completions.create(model="m", messages=HELLO, tools=[CHAT_TOOL])
    custom, function = answer.choices[0].message.tool_calls
    assert (custom.id, custom.custom.name, custom.custom.input) == ("call_1", "apply_patch", PATCH)
    assert function.function.name == "weather"
    assert answer.choices[0].finish_reason == "tool_calls"
    assert scene.exchanges[0].body["tools"] == [CHAT_TOOL]


def deltas_of(stream):
    """Return what the chunks of a stream hold beside the role, and why it ended."""
    choices = [choice for chunk in stream for choice in chunk.choices]
    deltas = [choice.delta.model_dump(exclude_unset=True) for choice in choices[1:]]
    return deltas, choices[-1].finish_reason


def test_a_chat_streams_calls_of_both_kinds(served):
    client, scene = served
    scene.answers = [answer_of("", CUSTOM, CALL)]
    (custom, function, _), finish = deltas_of(
        client.chat.completions.create(model="m", messages=HELLO, stream=True)
    )
    assert custom == {"tool_calls": [{"index": 0, **CUSTOM_CALL}]}
    assert function["tool_calls"][0]["index"] == 1
    assert finish == "tool_calls"


def test_a_chat_asks_for_a_function_in_the_older_field(served):
    client, scene = served
    scene.answers = [answer_of("", OLDER)]
    choice = client.chat.completions.create(model="m", messages=HELLO).choices[0]
    assert choice.message.function_call.model_dump() == OLDER_CALL
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "function_call"


def test_a_chat_streams_a_function_in_the_older_field(served):
    client, scene = served
    scene.answers = [answer_of("", OLDER)]
    (delta, _), finish = deltas_of(
        client.chat.completions.create(model="m", messages=HELLO, stream=True)
    )
    assert (delta, finish) == ({"function_call": OLDER_CALL}, "function_call")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_asks_for_a_custom_tool(served, streamed):
    client, scene = served
    scene.answers = [answer_of("", CUSTOM, CALL)]
    asked = {"model": "m", "input": "Add a file.", "tools": [RESPONSES_TOOL]}
    if streamed:
        with client.responses.stream(**asked) as stream:
            seen = list(stream)
            answer = stream.get_final_response()
        inputs = [e for e in seen if e.type.startswith("response.custom_tool_call_input")]
        assert [getattr(e, "delta", None) or e.input for e in inputs] == [PATCH, PATCH]
        assert {e.item_id for e in inputs} == {answer.output[0].id}
    else:
        answer = client.responses.create(**asked)
    custom, function = answer.output
    assert (custom.type, custom.call_id, custom.input) == ("custom_tool_call", "call_1", PATCH)
    assert (function.type, function.call_id) == ("function_call", "call_1")
    assert answer.tools[0].model_dump(exclude_unset=True) == RESPONSES_TOOL


def test_a_custom_tool_of_a_response_is_one_of_the_chat():
    asked = {
        "model": "m",
        "input": [
            *HELLO,
            {
                "type": "custom_tool_call",
                "id": "ctc_1",
                "call_id": "call_1",
                "name": "apply_patch",
                "input": PATCH,
            },
            {"type": "custom_tool_call_output", "call_id": "call_1", "output": "Done."},
        ],
        "tools": [RESPONSES_TOOL, {**RESPONSES_TOOL, "format": {"type": "text"}}],
        "tool_choice": {"type": "custom", "name": "apply_patch"},
    }
    exchange = wire.RESPONSES.read(json.dumps(asked).encode(), "42")
    assert exchange.body["messages"] == [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [CUSTOM_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Done."},
    ]
    assert exchange.body["tools"] == [
        CHAT_TOOL,
        {"type": "custom", "custom": {**TOOL, "format": {"type": "text"}}},
    ]
    assert exchange.body["tool_choice"] == {"type": "custom", "custom": {"name": "apply_patch"}}
    assert exchange.prompt.messages[1].calls == (CUSTOM,)


@pytest.mark.parametrize(
    ("call", "block"),
    [
        (CUSTOM, {"name": "apply_patch", "input": {"input": PATCH}}),
        (OLDER, {"name": "weather", "input": {"city": "Oslo"}}),
    ],
)
def test_a_message_has_every_call_as_a_use_of_a_tool(call, block):
    body = {"model": "m", "max_tokens": 9, "messages": HELLO}
    chat = wire.MESSAGES.read(json.dumps(body).encode(), "42")
    content = json.loads(wire.MESSAGES.write(chat, [answer_of("", call)]))["content"]
    assert content == [{"type": "tool_use", "id": call.id, **block}]


@pytest.mark.parametrize("call", [CUSTOM, OLDER, CALL])
def test_a_call_in_a_history_is_read_as_it_was_written(call):
    turn = chat_message(Message(role="assistant", content="Hi.", calls=(call,)))
    raw = json.dumps({"model": "m", "messages": [*HELLO, turn, *HELLO]}).encode()
    exchange = wire.CHAT.read(raw, "42")
    (read,) = exchange.prompt.messages[1].calls
    assert (read.kind, read.name, read.arguments) == (call.kind, call.name, call.arguments)
    assert read.id == ("" if call.kind == "function_call" else call.id)
    assert exchange.prompt.context == ()


class Caller(Model):
    """Asks for what its name says, and mends it when asked to."""

    def answer(self, body, path):
        if "A reviewer read" in str(body.get("messages", [{}])[-1].get("content")):
            return http(spelt({"content": "Mended."}, "stop"))
        text = UNSAFE if body["model"].startswith("unsafe") else "+a"
        if body["model"].endswith("custom"):
            custom = {"name": "apply_patch", "input": text}
            call = {"index": 0, "id": "1", "type": "custom", "custom": custom}
            message, finish = {"content": None, "tool_calls": [call]}, "tool_calls"
        else:
            call = {"name": "note", "arguments": json.dumps({"text": text})}
            message, finish = {"content": None, "function_call": call}, "function_call"
        if not body.get("stream"):
            return http(spelt(message, finish))
        chunks = [json.dumps(spelt(message, None)), json.dumps(spelt({}, finish)), "[DONE]"]
        return events(*chunks)


def spelt(message, finish):
    """Spell a completion, or a chunk of one."""
    return {"choices": [{"message": message, "delta": message, "finish_reason": finish}]}


BODIES = {
    CHAT: {"messages": HELLO},
    RESPONSES: {"input": HELLO},
    MESSAGES: {"messages": HELLO, "max_tokens": 99},
}


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Calls of custom tools and in the older `function_call` are reviewed and returned, whole and "
    "streamed",
)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("kind", ["custom", "older"])
def test_a_call_of_any_kind_is_returned_if_it_is_safe_and_mended_if_not(kind, path, streamed):
    async def work(app):
        body = {**BODIES[path], "stream": streamed}
        safe = await ask(app, path, {**body, "model": f"safe {kind}"})
        assert (safe.status, "+a" in safe.text) == (200, True)
        unsafe = await ask(app, path, {**body, "model": f"unsafe {kind}"})
        assert UNSAFE not in unsafe.text
        assert "Mended." in unsafe.text

    with_gateway(work, model=Caller())


class Signer(Model):
    """Its call and its reasoning have what their servers want back with them."""

    def answer(self, body, path):
        if path == "/models":
            return super().answer(body, path)
        call = {**spelt_call("call_1"), "index": 0, "extra_content": SIGNED}
        message = {"content": None, "tool_calls": [call], "reasoning_details": [*THOUGHTS, SEALED]}
        if not body.get("stream"):
            return http(spelt(message, "tool_calls"))
        chunks = [json.dumps(spelt(message, None)), json.dumps(spelt({}, "tool_calls")), "[DONE]"]
        return events(*chunks)


def spelt_call(id_):
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}}


SIGNED = {"google": {"thought_signature": "CsIBAXLI2n+/_-=="}}
SEALED = {"type": "reasoning.encrypted", "data": "QUJD", "id": "call_1", "format": "a-v1"}
THOUGHTS = [
    {"type": "reasoning.text", "text": UNSAFE},
    {"type": "reasoning.encrypted", "data": UNSAFE},
    {"type": "reasoning.encrypted", "data": "QUJD\n"},
    {"type": "reasoning.encrypted", "data": "QUJD", "id": UNSAFE},
]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_and_its_reasoning_keep_what_their_servers_want_back(streamed):
    async def work(app):
        answer = await ask(app, CHAT, {"model": "m", "messages": HELLO, "stream": streamed})
        if not streamed:
            return answer.json["choices"][0]["message"]
        lines = [line[6:] for line in answer.text.splitlines() if '"choices"' in line]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
        return {key: value for delta in deltas for key, value in delta.items()}

    message = with_gateway(work, model=Signer())
    assert message["reasoning_details"] == [SEALED]
    call = {**spelt_call("call_1"), "extra_content": SIGNED}
    assert message["tool_calls"] == [{**call, "index": 0} if streamed else call]


class KnowsFunctions(Model):
    """Refuses custom tools and long names, and calls the function that it is asked for."""

    def answer(self, body, path):
        tool = body["tools"][0]
        if len(tool[tool["type"]]["name"]) > 64:
            return http({"error": {"message": "tools[0].function.name: string too long"}}, 400)
        if tool["type"] != "function":
            return http({"detail": "tools.0.function: Field required"}, 422)
        called = {"name": tool["function"]["name"], "arguments": json.dumps({"input": PATCH})}
        message = {"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": called}]}
        if not body.get("stream"):
            return http(spelt(message, "tool_calls"))
        return events(json.dumps(spelt(message, "tool_calls")), "[DONE]")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "tool"), [(CHAT, CHAT_TOOL), (RESPONSES, RESPONSES_TOOL)])
def test_a_custom_tool_is_called_by_a_model_that_knows_functions_only(path, tool, streamed):
    async def work(app):
        body = {**BODIES[path], "model": "m", "tools": [tool], "stream": streamed}
        answer = await ask(app, path, body)
        assert f'"input":{json.dumps(PATCH)}' in answer.text.replace('": ', '":')
        assert '"arguments"' not in answer.text

    with_gateway(work, model=KnowsFunctions())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_with_a_long_name_is_called_by_a_model_that_takes_short_ones(streamed):
    name = f"mcp__{'a' * 70}__search"

    async def work(app):
        tool = {"name": name, "input_schema": {"type": "object"}}
        body = {**BODIES[MESSAGES], "model": "m", "tools": [tool], "stream": streamed}
        assert f'"name":"{name}"' in (await ask(app, MESSAGES, body)).text

    with_gateway(work, model=KnowsFunctions())
