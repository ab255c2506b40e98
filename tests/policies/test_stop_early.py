import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.openai_server import serving
from support.tiny_models import tiny_model
from waltzrl.errors import PolicyError
from waltzrl.policies import RemotePolicy, Sampling, ScriptedPolicy
from waltzrl.policies.chat_completion import read_streamed_completion
from waltzrl.policies.local import LocalPolicy
from waltzrl.records import Message, Usage

CONVERSATION = [Message(role="user", content="How do I bake bread?")]
REPLY = '{"unsafe": false, "overrefuse": false, "reasoning": "long and longer", "feedback": ""}'
EVENTS = {"Content-Type": "text/event-stream"}


def has_word(text):
    return "overrefuse" in text


def eight_long(text):
    return len(text) >= 8


def reply(policy, **sampling):
    return asyncio.run(policy.reply(CONVERSATION, Sampling(**sampling)))


def ask(server, enough=has_word, **options):
    async def reply_from_server():
        async with RemotePolicy(server.base_url, "judge", **options) as policy:
            return await policy.reply(CONVERSATION, Sampling(max_new_tokens=64, enough=enough))

    return asyncio.run(reply_from_server())


@pytest.fixture
def server():
    with serving({"judge": ScriptedPolicy(lambda _: REPLY)}) as it:
        yield it


@given(st.text(), st.integers(0, 12))
def test_a_text_is_cut_at_its_shortest_beginning_that_is_enough(text, length):
    sampling = Sampling(enough=lambda so_far: len(so_far) >= length)
    assert sampling.cut(text) == text[:length]
    assert Sampling().cut(text) == text


def test_a_scripted_reply_ends_where_it_is_enough():
    assert reply(ScriptedPolicy([REPLY]), enough=has_word).text == '{"unsafe": false, "overrefuse'
    assert reply(ScriptedPolicy([REPLY])).text == REPLY


def test_a_remote_reply_ends_where_it_is_enough(server):
    remote_reply = ask(server)
    assert (remote_reply.text, remote_reply.finish) == ('{"unsafe": false, "overrefuse', "stop")
    assert server.requests[0][1]["stream"] is True


def test_the_server_is_told_to_stop_by_closing_the_connection():
    with serving({"judge": ScriptedPolicy(lambda _: REPLY * 20)}) as server:
        ask(server)
    assert server.pieces[0] < 40  # of 570; a write or two may still fit into the buffers


def test_a_remote_reply_that_is_never_enough_is_read_to_its_end(server):
    assert ask(server, enough=lambda _: False).text == REPLY
    assert server.pieces == [32]  # 29 of text, the finish, the count of tokens, [DONE]


def test_a_server_that_does_not_stream_is_understood(server):
    server.first.append((200, {}, '{"choices": [{"message": {"content": "to overrefuse is"}}]}'))
    assert ask(server).text == "to overrefuse"


def test_a_stream_that_breaks_off_is_tried_again(server):
    chunk = 'data: {"choices": [{"delta": {"content": "half"}}]}\n\n'
    server.first.append((200, EVENTS, chunk))
    assert ask(server).text.endswith("overrefuse")
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("data: {nonsense\n\n", "not a chat completion"),
        ('data: {"error": {"message": "out of memory"}}\n\n', r"out of memory \(attempt 1\)"),
        ("", r"ended before the reply did \(attempt 1\)"),
    ],
)
def test_a_stream_that_is_none_is_reported(server, body, complaint):
    server.first.append((200, EVENTS, body))
    with pytest.raises(PolicyError, match=complaint):
        ask(server, retries=0)


def test_a_call_that_says_nothing_of_enough_does_not_stream(server):
    assert ask(server, enough=None).text == REPLY
    assert "stream" not in server.requests[0][1]


@given(st.lists(st.integers(1, 200), max_size=8))
def test_a_stream_reads_the_same_however_it_is_cut(cuts):
    stream = (
        ': hello\r\n\r\ndata: {"choices": [{"delta": {"role": "assistant"}}]}\r\n\r\n'
        'data:{"choices": [{"delta": {"content": "é"}}]}\n\n'
        'data: {"choices": [{"delta": {"content": "t\\u00e9"}, "finish_reason": "length"}]}\n\n'
        'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n'
        "data: [DONE]\n\n"
    ).encode()

    async def parts():
        start = 0
        for cut in cuts:
            yield stream[start : start + cut]
            start += cut
        yield stream[start:]

    whole = asyncio.run(read_streamed_completion(parts(), lambda _: False))
    choice = whole.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("été", "length")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 2)


def test_a_stream_is_read_in_whichever_form():
    stream = (
        b"data:\n\ndata: null\n\ndata: : keepalive\n\n"
        b'data: {"choices": [{"delta": {"content": "a\\ud83d"}, "logprobs": 1}], "usage": null}\n\n'
        b'data: {"choices": [{"delta": {"content": "\\ude00"}}], "error": {}, "model": null}\n\n'
        b'data: {"choices": [{"delta": null, "finish_reason": "stop"}]}\n\n'
        b'data: {"choices": null, "usage": {"prompt_tokens": 3.0, "completion_tokens": 2.0}}\n\n'
    )

    async def parts():
        yield stream

    whole = asyncio.run(read_streamed_completion(parts(), lambda _: False))
    assert whole.choices[0].message.content == "a\N{GRINNING FACE}"
    assert whole.usage.as_usage("m") == Usage(input_tokens=3, output_tokens=2, model="m")


def test_a_local_reply_ends_where_it_is_enough():
    weights = tiny_model()
    policy = LocalPolicy(weights.model, weights.tokenizer)
    free = reply(policy, max_new_tokens=24)
    stopped = reply(policy, max_new_tokens=24, enough=eight_long)
    assert len(free.text) > 8
    assert stopped.text == free.text[:8]
    assert stopped.finish == "stop"
    count = stopped.usage.output_tokens
    assert count < free.usage.output_tokens
    assert stopped.tokens.ids == free.tokens.ids[:count]
    assert stopped.tokens.logprobs == pytest.approx(free.tokens.logprobs[:count], abs=1e-5)


def test_rows_of_one_batch_end_each_in_its_own_time():
    weights = tiny_model()
    policy = LocalPolicy(weights.model, weights.tokenizer)
    rows = []
    weights.model.model.embed_tokens.register_forward_hook(
        lambda _module, given, _embedded: rows.append(len(given[0]))
    )
    free = Sampling(max_new_tokens=24)
    brief = Sampling(max_new_tokens=24, enough=eight_long)

    async def both():
        calls = [policy.reply(CONVERSATION, free), policy.reply(CONVERSATION, brief)]
        return await asyncio.gather(*calls)

    long, short = asyncio.run(both())
    assert short.text == long.text[:8]
    assert rows[1:] == [2] * (short.usage.output_tokens - 1) + [1] * (
        long.usage.output_tokens - short.usage.output_tokens
    )


def test_sampling_is_the_same_to_the_bit_when_nothing_is_ever_enough():
    weights = tiny_model()
    never_enough, plain = (
        reply(
            LocalPolicy(weights.model, weights.tokenizer, seed=5),
            max_new_tokens=16,
            temperature=1.0,
            enough=enough,
        )
        for enough in (lambda _: False, None)
    )
    assert never_enough.tokens == plain.tokens
    assert never_enough.finish == plain.finish
