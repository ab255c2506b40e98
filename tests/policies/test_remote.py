import asyncio
import json
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from support.openai_server import serving
from waltzrl.errors import InputError, PolicyError
from waltzrl.policies import RemotePolicy, Sampling, ScriptedPolicy
from waltzrl.policies.remote import _choose_retry_seconds
from waltzrl.records import Message, Reply, Usage

BRIEFLY = Sampling(max_new_tokens=7, temperature=0.5)
CONVERSATION = [Message(role="system", content="Be kind."), Message(role="user", content="Hi!")]


class Together:
    """Answers requests, a number of them at a time, and counts tokens."""

    def __init__(self, number):
        self._all = asyncio.Barrier(number)

    async def reply(self, messages, sampling):
        await self._all.wait()
        return Reply(text="both", finish="length", usage=Usage(input_tokens=11, output_tokens=7))


def ask(server, *, model="echo", times=1, **options):
    """Ask `times` at once, in an event loop of their own."""

    async def replies():
        async with RemotePolicy(server.base_url, model, **options) as policy:
            calls = [policy.reply(CONVERSATION, BRIEFLY) for _ in range(times)]
            return await asyncio.gather(*calls)

    return asyncio.run(replies())


@pytest.fixture
def server():
    echo = ScriptedPolicy(lambda said: said[-1].content)
    with serving({"echo": echo, "paired": Together(2), "many": Together(101)}) as it:
        yield it


def test_a_reply_comes_from_the_server(server):
    (reply,) = ask(server)
    assert reply.text == "Hi!"
    assert reply.finish == "stop"
    assert reply.milliseconds > 0
    assert reply.tokens is None


def test_the_server_hears_the_whole_conversation(server):
    ask(server, api_key="secret\n")  # as files and secrets of Kubernetes end
    headers, body = server.requests[0]
    assert headers["Authorization"] == "Bearer secret"
    assert body == {
        "model": "echo",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi!"},
        ],
        "temperature": 0.5,
        "max_tokens": 7,
    }


def test_usage_and_finish_are_read(server):
    reply, _ = ask(server, model="paired", times=2)
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.finish) == (11, 7, "length")


def test_no_more_requests_than_allowed_are_under_way(server):
    ask(server, model="paired", times=6, concurrency=2)
    assert server.most_at_once == 2


def test_as_many_requests_as_allowed_are_under_way(server):
    ask(server, model="many", times=101, concurrency=101, timeout_seconds=10, retries=0)
    assert server.most_at_once == 101


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failure_that_passes_is_retried(server, status):
    server.first.append((status, {"Retry-After": "0"}, "busy"))
    (reply,) = ask(server)
    assert reply.text == "Hi!"
    assert len(server.requests) == 2


def test_the_wait_that_the_server_asks_for_is_honoured(server):
    server.first.append((429, {"Retry-After": "0.4"}, ""))
    started = time.perf_counter()
    ask(server)
    assert time.perf_counter() - started >= 0.4


def test_a_failure_that_stays_names_host_status_and_message(server):
    server.first.extend([(503, {"Retry-After": "0"}, "overloaded")] * 3)
    with pytest.raises(PolicyError, match=r"127\.0\.0\.1:\d+: HTTP 503: overloaded \(attempt 3\)"):
        ask(server, retries=2)


def test_a_refusal_is_not_retried(server):
    with pytest.raises(PolicyError, match=r"HTTP 404: the model 'none' does not exist"):
        ask(server, model="none")
    assert len(server.requests) == 1


def test_what_the_server_does_not_implement_is_not_tried_again(server):
    server.first.append((501, {}, "no log-probabilities"))
    with pytest.raises(PolicyError, match=r"HTTP 501: no log-probabilities \(attempt 1\)"):
        ask(server)
    assert len(server.requests) == 1


def test_a_field_that_the_server_refuses_is_asked_for_by_its_newer_name(server):
    server.rejects.add("max_tokens")
    server.refusal = "use max_completion_tokens"
    ask(server)
    asked = [body for _, body in server.requests]
    assert ["max_tokens" in body for body in asked] == [True, False]
    assert asked[1]["max_completion_tokens"] == BRIEFLY.max_new_tokens


@pytest.mark.parametrize("body", ["<html>", '{"choices": []}', '{"choices": [{}]}'])
def test_what_is_no_completion_is_reported(server, body):
    server.first.append((200, {}, body))
    with pytest.raises(PolicyError, match="the reply"):
        ask(server)


def test_a_filtered_reply_is_empty(server):
    server.first.append((200, {}, '{"choices": [{"message": {"content": null}}]}'))
    assert ask(server)[0].text == ""


@pytest.mark.parametrize("content", [None, ""])
def test_a_refusal_in_a_field_of_its_own_is_the_reply(server, content):
    message = {"role": "assistant", "content": content, "refusal": "I can't help with that."}
    server.first.append((200, {}, json.dumps({"choices": [{"message": message}]})))
    assert ask(server)[0].text == "I can't help with that."


@pytest.mark.parametrize(
    "more",
    [
        {"usage": {"prompt_tokens": None, "completion_tokens": 4}},
        {"usage": {}},
        {"usage": None, "model": None, "system_fingerprint": None},
        {"usage": "free", "model": 7},
        {"choices": {"message": {"content": "Hi!"}, "finish_reason": None}},
        {"choices": [{"message": {"content": [{"type": "text", "text": "Hi!"}]}, "index": None}]},
        {"choices": [{"message": {"content": "Hi!"}, "logprobs": "none"}]},
    ],
)
def test_a_reply_is_not_lost_over_its_form(server, more):
    body = {"choices": [{"message": {"content": "Hi!"}}], **more}
    server.first.append((200, {}, json.dumps(body)))
    (reply,) = ask(server, retries=0)
    assert (reply.text, reply.usage) == ("Hi!", None)


def test_counts_that_are_floats_are_read(server):
    usage = {"prompt_tokens": 3.0, "completion_tokens": 4.0}
    body = {"choices": [{"message": {"content": "half \ud83d"}}], "model": "m", "usage": usage}
    server.first.append((200, {}, json.dumps(body)))
    (reply,) = ask(server, retries=0)
    assert reply.text == "half \ufffd"
    assert reply.usage == Usage(input_tokens=3, output_tokens=4, model="m")


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        ({"input_tokens": 3, "output_tokens": 4}, Usage(input_tokens=3, output_tokens=4)),
        ({"prompt_tokens": 3, "completion_tokens": 0}, Usage(input_tokens=3, output_tokens=0)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
    ],
)
def test_counts_have_newer_names_and_are_unknown_if_all_are_zero(server, counts, usage):
    body = {"choices": [{"message": {"content": "Hi!"}}], "model": "m", "usage": counts}
    server.first.append((200, {}, json.dumps(body)))
    (reply,) = ask(server, retries=0)
    assert reply.usage == (usage and replace(usage, model="m"))


@pytest.mark.parametrize("code", [429, 503, "rate_limit_exceeded"])
def test_an_error_in_an_answer_of_200_is_retried_as_one_of_its_own_status(server, code):
    error = {"message": "busy", "code": code, "retry_after": 0}
    for more in ({}, {"choices": [{"message": {"content": "Hm"}}]}):
        server.first.append((200, {}, json.dumps({"error": error, **more})))
    assert ask(server)[0].text == "Hi!"
    assert len(server.requests) == 3


def test_an_error_in_an_answer_of_200_that_stays_is_told(server):
    server.first.append((200, {}, '{"error": {"message": "too long", "code": 400}}'))
    with pytest.raises(PolicyError, match=r"HTTP 400: too long \(attempt 1\)") as raised:
        ask(server)
    assert raised.value.reason == "HTTP 400"


def test_a_server_that_is_slow_is_reported(server):
    with pytest.raises(PolicyError, match=r"no reply within 0\.01 s"):
        ask(server, model="paired", timeout_seconds=0.01, retries=0)


def test_a_server_that_is_down_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def reply():
        async with RemotePolicy(f"http://127.0.0.1:{port}/v1", "echo", retries=1) as policy:
            await policy.reply(CONVERSATION, BRIEFLY)

    with pytest.raises(PolicyError, match=rf"127\.0\.0\.1:{port}: the connection failed.*2\)"):
        asyncio.run(reply())


def test_a_policy_that_was_closed_opens_again(server):
    policy = RemotePolicy(server.base_url, "echo")

    async def once():
        async with policy:
            return await policy.reply(CONVERSATION, BRIEFLY)

    assert [asyncio.run(once()).text for _ in range(2)] == ["Hi!", "Hi!"]


def test_waiting_doubles_with_jitter_up_to_a_bound():
    for attempt, longest in [(0, 0.25), (1, 0.5), (2, 1.0), (20, 30.0)]:
        assert longest / 2 <= _choose_retry_seconds(attempt, None) <= longest
    assert _choose_retry_seconds(5, 1.5) == 1.5
    assert _choose_retry_seconds(5, 9999) == 30.0


def test_remote_policies_do_not_load_torch():
    code = "import sys, waltzrl.policies; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.promise(
    "Bad input",
    "In the library: settings as a dict, a reply that is None, a policy that is a class, a URL "
    "without `http://`: the argument, what came, what is needed",
)
@pytest.mark.parametrize(
    "address", ["localhost:8000/v1", "guard", "http://", "ftp://a/v1", "", None]
)
def test_an_invalid_url_is_refused_in_one_line_before_anything_is_sent(address):
    with pytest.raises(InputError) as refused:
        RemotePolicy(address, "echo")
    need = "is not a server URL; use one such as http://localhost:8000/v1"
    assert str(refused.value) == f"{address!r} {need}"


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("model", None, "got None; need the model's name on the server, a string"),
        ("api_key", b"secret", "got bytes; need a string, or None for a server without keys"),
        (
            "api_key",
            "secret\r\nx: y",
            "got characters that an HTTP header cannot carry; need the key alone",
        ),
        ("concurrency", 0, "got 0; need a whole number, 1 or more"),
        ("timeout_seconds", "3", "got '3'; need seconds, above 0"),
        ("retries", True, "got True; need a whole number, 0 or more"),
    ],
)
def test_an_argument_of_another_type_is_refused_in_one_line(argument, value, message):
    arguments = {"base_url": "http://localhost:8000/v1", "model": "echo"} | {argument: value}
    with pytest.raises(InputError) as refused:
        RemotePolicy(**arguments)
    assert str(refused.value) == f"RemotePolicy: {argument}: {message}"
