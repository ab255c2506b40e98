"""Reasoning goes out with a reply and comes back with the next request, as a model needs it."""

import json

import openai
import pytest

from support.small_gateway import MESSAGES as MESSAGES_PATH
from support.small_gateway import Model, ask, with_gateway
from support.small_site import http
from support.wire_server import CALL, answer_of, wire_server
from waltzrl.gateway.wire import CHAT, MESSAGES, RESPONSES

HELLO = [{"role": "user", "content": "Weather?"}]
USER = HELLO[0]
THOUGHT = "I should look it up."
CHAT_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
}
CALLED = {
    "role": "assistant",
    "content": None,
    "reasoning_content": THOUGHT,
    "tool_calls": [CHAT_CALL],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


@pytest.fixture
def scene():
    with wire_server() as (url, scene):
        scene.url = url
        scene.answers = [answer_of("", CALL, reasoning=THOUGHT)]
        yield scene


def prompt_texts(exchange):
    return [turn.content for turn in exchange.prompt.context]


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Reasoning that was handed out comes back to the model with the turn it belongs to, and "
    "reviewers read it",
)
@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_reasoning_of_a_response_comes_back_as_that_of_the_turn(scene, streamed, include):
    client = openai.OpenAI(base_url=f"{scene.url}/v1", api_key="any", max_retries=0)
    asked = {"model": "m", "include": include}
    if streamed:
        with client.responses.stream(input=HELLO, **asked) as stream:
            output = stream.get_final_response().output
    else:
        output = client.responses.create(input=HELLO, **asked).output
    items = [item.model_dump(exclude_none=True) for item in output]
    if include:  # some clients send only what they hold to be encrypted
        del items[0]["content"]
    result = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    client.responses.create(input=[*HELLO, *items, result], **asked)
    exchange = scene.exchanges[-1]
    assert exchange.body["messages"] == [USER, CALLED, RESULT]
    assert prompt_texts(exchange) == [f"reasoning_content:\n{THOUGHT}"]


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Reasoning that was handed out comes back to the model with the turn it belongs to, and "
    "reviewers read it",
)
@pytest.mark.xdist_group("gateway")  # with all that imports anthropic
@pytest.mark.parametrize("streamed", [False, True])
def test_the_reasoning_of_a_message_comes_back_as_that_of_the_turn(scene, streamed):
    import anthropic  # takes seconds, which every worker would spend

    client = anthropic.Anthropic(base_url=scene.url, api_key="any", max_retries=0)
    asked = {
        "model": "m",
        "max_tokens": 4096,
        "thinking": {"type": "enabled", "budget_tokens": 2048},
    }
    if streamed:
        with client.messages.stream(messages=HELLO, **asked) as stream:
            content = stream.get_final_message().content
    else:
        content = client.messages.create(messages=HELLO, **asked).content
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"}
    turns = [
        *HELLO,
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result]},
    ]
    client.messages.create(messages=turns, **asked)
    exchange = scene.exchanges[-1]
    assert exchange.body["messages"] == [USER, {**CALLED, "content": ""}, RESULT]
    assert prompt_texts(exchange) == [f"reasoning_content:\n{THOUGHT}"]


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Reasoning that was handed out comes back to the model with the turn it belongs to, and "
    "reviewers read it",
)
def test_the_reasoning_of_a_chat_comes_back_as_it_is(scene):
    client = openai.OpenAI(base_url=f"{scene.url}/v1", api_key="any", max_retries=0)
    message = client.chat.completions.create(model="m", messages=HELLO).choices[0].message
    said = message.model_dump(exclude_none=True)
    client.chat.completions.create(model="m", messages=[*HELLO, said, RESULT])
    sent = scene.exchanges[-1].body["messages"][1]
    assert (sent["reasoning_content"], sent["reasoning"]) == (THOUGHT, THOUGHT)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_a_chats_own_reasoning_goes_on_and_is_shown(key):
    said = {"role": "assistant", "content": "Hi.", key: THOUGHT}
    raw = json.dumps({"model": "m", "messages": [USER, said, USER]}).encode()
    exchange = CHAT.read(raw, "42")
    assert exchange.body["messages"][1] == said
    assert prompt_texts(exchange) == [f"{key}:\n{THOUGHT}"]


def message_turn(*blocks):
    turns = [USER, {"role": "assistant", "content": blocks}, USER]
    body = {"model": "m", "max_tokens": 9, "messages": turns}
    return MESSAGES.read(json.dumps(body).encode(), "42").body["messages"][1]


def thinking(text, **more):
    return {"type": "thinking", "thinking": text, "signature": "s", **more}


def test_several_blocks_of_thinking_are_the_reasoning_of_one_turn():
    text = {"type": "text", "text": "Hi."}
    assert message_turn(thinking("a"), text, thinking("b")) == {
        "role": "assistant",
        "content": "Hi.",
        "reasoning_content": "a\nb",
    }


@pytest.mark.parametrize("block", [thinking(""), {"type": "redacted_thinking", "data": "AAA"}])
def test_thinking_without_words_is_left_out(block):
    text = {"type": "text", "text": "Hi."}
    assert message_turn(block, text) == {"role": "assistant", "content": "Hi."}


def reasoning(*texts, **more):
    parts = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": parts, **more}


def call(call_id):
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id):
    return {"type": "function_call_output", "call_id": call_id, "output": "5"}


def turns(*items):
    raw = json.dumps({"model": "m", "input": [USER, *items]}).encode()
    return RESPONSES.read(raw, "42").body["messages"][1:]


SAID = {"role": "assistant", "content": "Hi."}


def test_reasoning_belongs_to_what_follows_it():
    assert turns(SAID, USER, reasoning("a", "b"), SAID) == [
        SAID,
        USER,
        {**SAID, "reasoning_content": "a\nb"},
    ]


def test_reasoning_between_the_calls_of_a_turn_is_of_that_turn():
    results = output("1"), output("2")
    first, *told = turns(reasoning("a"), call("1"), reasoning("b"), call("2"), *results)
    assert (first["reasoning_content"], len(first["tool_calls"])) == ("a\nb", 2)
    assert [turn["role"] for turn in told] == ["tool", "tool"]


def test_reasoning_of_each_round_of_tools_stays_with_its_calls():
    rounds = turns(reasoning("a"), call("1"), output("1"), reasoning("b"), call("2"), output("2"))
    assert [turn.get("reasoning_content") for turn in rounds] == ["a", None, "b", None]


def test_reasoning_that_led_to_nothing_is_left_out():
    assert turns(reasoning("a"), USER, reasoning("b")) == [USER]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (reasoning(summary=[{"type": "summary_text", "text": "s"}]), "s"),
        (reasoning("a", summary=[{"type": "summary_text", "text": "s"}]), "a"),
        (reasoning("a", encrypted_content="gAAAA"), "a"),
        (reasoning(content=None, encrypted_content="waltzrl-base64:aGk="), "hi"),
        (reasoning(content=None, encrypted_content="waltzrl-base64:not so"), None),
        (reasoning(content=None, encrypted_content="gAAAA"), None),
        (reasoning(content=[7], summary=None), None),
    ],
)
def test_reasoning_is_read_from_whatever_the_client_kept(item, text):
    assert turns(item, SAID)[0].get("reasoning_content") == text


class Particular(Model):
    """Refuses reasoning of earlier turns, or demands it, in the words of a server."""

    def __init__(self, message, *, demands=False):
        super().__init__()
        self.message, self.demands = message, demands

    def answer(self, body, path):
        if body is not None:
            turns = [turn for turn in body["messages"] if turn["role"] == "assistant"]
            if any(("reasoning_content" in turn) != self.demands for turn in turns):
                self.bodies.append(body)
                return http({"error": {"message": self.message}}, 400)
        return super().answer(body, path)


TEXT = {"type": "text", "text": "Hi."}
THOUGHT_TURNS = {
    "model": "echo",
    "max_tokens": 9,
    "messages": [USER, {"role": "assistant", "content": [thinking("a")]}, USER],
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        "'messages.1' : property 'reasoning_content' is unsupported",
        '[{"type":"extra_forbidden","loc":["body","reasoning_content"],"msg":"Extra inputs"}]',
        "Additional properties are not allowed ('reasoning_content' was unexpected)",
        "The reasoning_content is for display. Please remove the reasoning_content.",
    ],
)
def test_an_upstream_that_refuses_earlier_reasoning_is_asked_without_it(message, streamed):
    model = Particular(message)
    body = {**THOUGHT_TURNS, "stream": streamed}
    answer = with_gateway(lambda app: ask(app, MESSAGES_PATH, body), model=model)
    assert "You said hello." in answer.text
    first, second = model.bodies
    assert first["messages"][1] == {"role": "assistant", "content": "", "reasoning_content": "a"}
    assert second["messages"][1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    "message",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at 2",
        "the reasoning content from the previous turn must be passed back in thinking mode",
    ],
)
def test_an_upstream_that_misses_earlier_reasoning_is_asked_with_the_shortest(message):
    model = Particular(message, demands=True)
    said = [{"role": "assistant", "content": [block]} for block in (thinking("a"), TEXT)]
    body = {**THOUGHT_TURNS, "messages": [USER, said[0], USER, said[1], USER]}
    answer = with_gateway(lambda app: ask(app, MESSAGES_PATH, body), model=model)
    assert "You said hello." in answer.text
    sent = [m.get("reasoning_content") for m in model.bodies[1]["messages"]]
    assert sent == [None, "a", None, " ", None]


@pytest.mark.parametrize(
    ("message", "turns"),
    [
        ("unsupported value: temperature", [thinking("a")]),
        ("property 'reasoning_content' is unsupported", [{"type": "text", "text": "Hi."}]),
    ],
)
def test_any_other_refusal_is_the_clients(message, turns):
    model = Particular(message, demands=turns[0]["type"] == "text")
    body = {**THOUGHT_TURNS, "messages": [USER, {"role": "assistant", "content": turns}, USER]}
    answer = with_gateway(lambda app: ask(app, MESSAGES_PATH, body), model=model)
    assert (answer.status, len(model.bodies)) == (400, 1)
    assert message in answer.error
