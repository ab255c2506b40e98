"""A policy of this process in the upstream's place."""

import asyncio
import json
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_models import CHAT_TEMPLATE, tiny_model, tiny_tokenizer
from waltzrl.errors import CONTEXT_EXCEEDED, PolicyError, RequestError
from waltzrl.gateway.exchange import ModelCard
from waltzrl.gateway.policy_upstream import PolicyUpstream
from waltzrl.policies import ScriptedPolicy
from waltzrl.policies.json_schema import JsonSchema
from waltzrl.policies.local import Decoding, LocalPolicy
from waltzrl.records import Message, Reply, ToolCall, Usage

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Sampled:
    """A policy that repeats how it was told to choose its words."""

    async def reply(self, messages, sampling):
        return Reply(
            text=f"{sampling.max_new_tokens} {sampling.temperature}",
            usage=Usage(input_tokens=0, output_tokens=3),
        )


class Full:
    """A policy whose context is too short."""

    async def reply(self, messages, sampling):
        raise PolicyError("the conversation is too long", reason=CONTEXT_EXCEEDED)


def complete(policy, most=48, **more):
    return asyncio.run(PolicyUpstream("m", policy, most).complete({**HELLO, **more}, None))


def test_it_is_shown_the_turns_calls_and_their_results_included():
    policy = ScriptedPolicy(["Sunny."])
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
    ]
    assert complete(policy, messages=messages).reply.text == "Sunny."
    assert policy.conversations == [
        (
            Message(role="system", content="Be short."),
            Message(role="user", content="And now?"),
            Message(
                role="assistant",
                content="",
                calls=(ToolCall(id="1", name="weather", arguments="{}"),),
            ),
            Message(role="tool", content="sun", call_id="1"),
        )
    ]


def test_a_request_chooses_its_sampling_within_the_longest_reply():
    assert complete(Sampled()).reply.text == "48 0.0"
    assert complete(Sampled(), max_tokens=5, temperature=1).reply.text == "5 1.0"
    assert complete(Sampled(), max_completion_tokens=500).reply.text == "48 0.0"


class Growing:
    """A policy that writes a text in pieces, and keeps what it was asked for and wrote."""

    def __init__(self, *pieces):
        self.pieces = pieces
        self.sampling = None
        self.written = ""

    async def reply(self, messages, sampling):
        self.sampling, self.written = sampling, ""
        for piece in self.pieces:
            self.written += piece
            if sampling.enough(self.written):
                break
            await asyncio.sleep(0)
        usage = Usage(input_tokens=2, output_tokens=1)
        return Reply(text=sampling.cut(self.written), usage=usage)


async def deltas_of(policy, most=48, **more):
    upstream = PolicyUpstream("m", policy, most)
    async with aclosing(upstream.stream({**HELLO, **more}, None)) as deltas:
        return [delta async for delta in deltas]


def test_a_stream_comes_as_it_is_written_but_for_its_last_characters():
    deltas = asyncio.run(deltas_of(Growing("The quick ", "brown fox ", "jumps.")))
    assert [delta.text for delta in deltas] == ["The qu", "ick brown ", "fox ju", "mps."]
    assert (deltas[-1].finish, deltas[-1].usage.output_tokens) == ("stop", 1)


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process streams token by token, and a client that leaves frees its place",
)
def test_a_stream_that_nobody_reads_ends_at_the_next_token():
    async def work():
        policy = Growing(*["word "] * 1000)
        async with aclosing(PolicyUpstream("m", policy, 48).stream(HELLO, None)) as deltas:
            async for _delta in deltas:
                break
        return policy

    policy = asyncio.run(work())
    assert policy.sampling.enough("any text")
    assert len(policy.written) < 1000


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process honours `stop`, `tools`, `seed` and `top_p`, and refuses what it "
    "cannot honour by its name",
)
@pytest.mark.parametrize("stop", ["fox", ["dog", "fox"], ["brown fox jumps", "fox ju"]])
def test_a_stop_ends_a_reply_and_is_no_part_of_it(stop):
    policy = Growing("The quick ", "brown f", "ox ju", "mps.", " The end.")
    text = "The quick brown "
    assert complete(policy, stop=stop).reply.text == text
    assert policy.written.endswith(("fox ju", "fox jumps."))
    deltas = asyncio.run(deltas_of(policy, stop=stop))
    assert "".join(delta.text for delta in deltas) == text
    assert deltas[-1].finish == "stop"


def test_the_stop_that_ended_a_reply_is_named():
    policy = Growing("The quick ", "brown fox")
    assert complete(policy, stop=["dog", "fox"]).details.stop_sequence == "fox"
    assert complete(policy, stop=["dog"]).details.stop_sequence is None
    deltas = asyncio.run(deltas_of(policy, stop=["dog", "fox"]))
    assert deltas[-1].details.stop_sequence == "fox"


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALLING = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process honours `stop`, `tools`, `seed` and `top_p`, and refuses what it "
    "cannot honour by its name",
)
def test_tools_are_passed_on_and_calls_are_read():
    policy = Growing("Let me ", "look.\n", *CALLING)
    upstream_reply = complete(policy, tools=TOOLS)
    assert policy.sampling.tools == tuple(TOOLS)
    (call,) = upstream_reply.reply.calls
    assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
    assert (upstream_reply.reply.text, upstream_reply.finish) == ("Let me look.", "tool_calls")
    *_, last = deltas = asyncio.run(deltas_of(policy, tools=TOOLS))
    assert "".join(delta.text for delta in deltas) == "Let me look."
    assert ([call.name for call in last.calls], last.finish) == (["weather"], "tool_calls")


def test_a_client_may_forbid_calls_or_more_than_one_of_them():
    twice = Growing(CALLING, CALLING)
    assert len(complete(twice, tools=TOOLS).reply.calls) == 2
    assert len(complete(twice, tools=TOOLS, parallel_tool_calls=False).reply.calls) == 1
    none = complete(twice, tools=TOOLS, tool_choice="none")
    assert (none.reply.calls, twice.sampling.tools) == ((), ())


parts = st.lists(
    st.sampled_from(
        ["Hi ", " and", "\n", "<tool_call>", "</tool_call>", '{"name": "weather"}', "{", "END"]
    ),
    max_size=8,
)


@given(parts, st.integers(1, 5), st.booleans(), st.sampled_from([None, "END", ["and", "Hi E"]]))
def test_a_stream_adds_up_to_the_whole_reply(texts, size, tools, stop):
    text = "".join(texts)
    policy = Growing(*[text[at : at + size] for at in range(0, len(text), size)])
    more = {"tools": TOOLS if tools else None, "stop": stop}
    whole = complete(policy, **more)
    deltas = asyncio.run(deltas_of(policy, **more))
    assert "".join(delta.text for delta in deltas) == whole.reply.text
    assert [call.name for call in deltas[-1].calls] == [call.name for call in whole.reply.calls]
    assert deltas[-1].finish == whole.finish


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process honours `stop`, `tools`, `seed` and `top_p`, and refuses what it "
    "cannot honour by its name",
)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"7": 1}),
        ("logprobs", True),
        ("top_k", 40),
        ("reasoning_effort", "high"),
        ("response_format.type", {"type": "grammar"}),
        ("response_format.json_schema", {"type": "json_schema", "json_schema": {"schema": []}}),
        ("response_format.json_schema", {"type": "json_schema"}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "launch"}}),
        ("top_p", 0),
        ("top_p", 1.5),
        ("seed", "x"),
        ("temperature", -1),
        ("stop", 7),
        ("stop[1]", ["a", ""]),
        ("tools", {}),
        ("tools[0].function", [{"type": "custom"}]),
    ],
)
def test_what_the_model_cannot_honour_is_refused_by_its_name(field, value):
    with pytest.raises(RequestError) as raised:
        complete(Sampled(), **{field.partition("[")[0].partition(".")[0]: value})
    assert (raised.value.status, raised.value.param) == (400, field)


@pytest.mark.promise(
    "Bad input", "A custom tool for a model in this process: the tool, with status 400"
)
def test_custom_tools_are_refused_in_words():
    with pytest.raises(RequestError, match="calls no custom tools; remove it") as raised:
        complete(Sampled(), tools=[{"type": "custom", "custom": {"name": "apply_patch"}}])
    assert (raised.value.status, raised.value.param) == (400, "tools[0].function")


def test_the_older_functions_are_refused_by_their_name():
    with pytest.raises(RequestError) as raised:
        complete(Sampled(), functions=[{"name": "f", "parameters": {}}])
    assert (raised.value.status, raised.value.param) == (400, "functions")


def test_neutral_values_and_names_are_no_wishes():
    neutral = {
        "presence_penalty": 0,
        "logprobs": False,
        "logit_bias": {},
        "top_k": None,
        "user": "u7",
        "metadata": {"a": "b"},
        "response_format": {"type": "text"},
        "tool_choice": "auto",
    }
    assert complete(Sampled(), **neutral).reply.text == "48 0.0"


def test_chance_is_the_requests_own():
    policy = Growing("Hello.")
    complete(policy, temperature=0.5, top_p=0.9, seed=-3)
    sampling = policy.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.5, 0.9, 2**63 - 3)


def test_another_model_and_a_policy_that_cannot_reply_are_errors_of_the_request():
    with pytest.raises(RequestError, match="there is no model 'other'; use 'm'") as raised:
        complete(Sampled(), model="other")
    assert raised.value.status == 404
    with pytest.raises(RequestError, match="too long") as raised:
        complete(Full())
    assert (raised.value.status, raised.value.code) == (400, "context_length_exceeded")


def test_its_only_model_is_listed():
    assert asyncio.run(PolicyUpstream("m", Sampled(), 48).models(None)) == [ModelCard(id="m")]


@pytest.mark.slow
@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process streams token by token, and a client that leaves frees its place",
)
def test_a_real_model_streams_its_tokens_and_breaks_no_character():
    causal_lm = tiny_model()
    decoding = Decoding(in_thread=True)
    policy = LocalPolicy(causal_lm.model, causal_lm.tokenizer, decoding=decoding)
    chance = {"temperature": 1.5, "max_tokens": 40}
    for seed in range(8):
        whole = complete(policy, seed=seed, **chance).reply
        deltas = asyncio.run(deltas_of(policy, seed=seed, **chance))
        assert "".join(delta.text for delta in deltas) == whole.text
        assert len(deltas) > 1 + whole.usage.output_tokens / 4
        assert deltas[-1].usage == whole.usage


def test_a_real_model_without_a_place_for_tools_refuses_them():
    causal_lm = tiny_model()
    with pytest.raises(RequestError, match="tools: the model's chat template has no place"):
        complete(LocalPolicy(causal_lm.model, causal_lm.tokenizer), tools=TOOLS)


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["bread", "cake"]},
        "grams": {"type": "integer"},
        "sweet": {"type": "boolean"},
    },
    "required": ["kind", "grams", "sweet"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "dough", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def real():
    causal_lm = tiny_model()
    return LocalPolicy(causal_lm.model, causal_lm.tokenizer, decoding=Decoding(in_thread=True))


@pytest.mark.slow
@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process keeps to `response_format`, and to a call where `tool_choice` "
    "demands one, token by token",
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_real_model_keeps_to_a_schema(real, temperature):
    chance = {"temperature": temperature, "most": 100}
    for seed in range(2):
        whole = complete(real, response_format=FORMAT, seed=seed, **chance)
        dough = json.loads(whole.reply.text)
        assert whole.finish == "stop"
        assert sorted(dough) == ["grams", "kind", "sweet"]
        assert (dough["kind"] in ("bread", "cake"), type(dough["grams"])) == (True, int)
        deltas = asyncio.run(deltas_of(real, response_format=FORMAT, seed=seed, **chance))
        assert "".join(delta.text for delta in deltas) == whole.reply.text


def test_a_real_model_writes_the_beginning_of_an_object(real):
    for seed in range(2):
        more = {"temperature": 1.0, "seed": seed, "max_tokens": 30}
        whole = complete(real, response_format={"type": "json_object"}, **more)
        state = JsonSchema({}).state(whole.reply.text.rstrip("\ufffd"))
        assert state == {"stop": "complete", "length": "possible"}[whole.finish]


class CallingModel(LocalPolicy):
    """A real model whose template has a place for tools."""

    def __init__(self):
        template = f"{{{{ tools and '' }}}}{CHAT_TEMPLATE}"
        super().__init__(tiny_model().model, tiny_tokenizer(template))


@pytest.mark.slow
@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process keeps to `response_format`, and to a call where `tool_choice` "
    "demands one, token by token",
)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "bake"}}])
def test_a_real_model_calls_when_it_must(choice):
    function = {"name": "bake", "parameters": SCHEMA}
    asked = {"tools": [*TOOLS, {"type": "function", "function": function}], "most": 100}
    if choice == "required":
        asked["tools"] = asked["tools"][1:]
    upstream_reply = complete(CallingModel(), tool_choice=choice, **asked)
    (call,) = upstream_reply.reply.calls
    assert (call.name, upstream_reply.finish) == ("bake", "tool_calls")
    assert sorted(json.loads(call.arguments)) == ["grams", "kind", "sweet"]
    assert upstream_reply.reply.text == ""


def test_what_excludes_each_other_is_refused():
    for more, param in (
        ({"response_format": FORMAT, "tools": TOOLS}, "response_format"),
        ({"response_format": FORMAT, "top_p": 0.5}, "top_p"),
    ):
        with pytest.raises(RequestError) as raised:
            complete(Sampled(), **more)
        assert raised.value.param == param


def test_a_policy_that_writes_no_json_fails():
    with pytest.raises(RequestError, match="no JSON that fits") as raised:
        complete(Growing("Hello."), response_format=FORMAT)
    assert raised.value.status == 502
