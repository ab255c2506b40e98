"""A policy of this process in the upstream's place."""

import asyncio

import pytest

from waltzrl.errors import PolicyError, RequestError
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Message, Reply, ToolCall, Usage
from waltzrl.serving.exchange import ModelCard
from waltzrl.serving.upstream import PolicyUpstream

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
        raise PolicyError("the conversation is too long")


def complete(policy, **more):
    return asyncio.run(PolicyUpstream("m", policy, 48).complete({**HELLO, **more}, None))


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


def test_a_stream_is_one_piece():
    async def streamed():
        return [delta async for delta in PolicyUpstream("m", Sampled(), 48).stream(HELLO, None)]

    (delta,) = asyncio.run(streamed())
    assert (delta.text, delta.finish, delta.usage.output_tokens) == ("48 0.0", "stop", 3)


def test_another_model_and_a_policy_that_cannot_reply_are_errors_of_the_request():
    with pytest.raises(RequestError, match="there is no model 'other'; use 'm'") as raised:
        complete(Sampled(), model="other")
    assert raised.value.status == 404
    with pytest.raises(RequestError, match="too long") as raised:
        complete(Full())
    assert raised.value.status == 400


def test_its_only_model_is_listed():
    assert asyncio.run(PolicyUpstream("m", Sampled(), 48).models(None)) == [ModelCard(id="m")]
