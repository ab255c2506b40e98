"""The middleware for vLLM, in a Starlette application, as vLLM adds it."""

import asyncio
import json

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from support.bad_model import BAD, BAD_CALL, CALL, REVISED, UNSAFE, BadModel
from support.small_gateway import BODIES, CHAT, ask
from waltzrl.errors import RequestError
from waltzrl.gateway.guard_opening import open_guard
from waltzrl.gateway.wire.fields import turn_of
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.policies.chat_completion import calls_fields
from waltzrl_integrations.chats import read_chat, review_answer
from waltzrl_integrations.vllm import ReviewMiddleware

VLLM = pytest.mark.promise(
    "Adapters for frameworks",
    "The middleware for vLLM's server revises chats with the server's own model, streams included, "
    "and refuses other routes with replies",
)

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS}}]
USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}


class Server:
    """A server with the bad model; it records the bodies and keys of requests."""

    def __init__(self):
        self.bodies, self.keys = [], []
        routes = [Route(path, self.chat, methods=["POST"]) for path in (*BODIES, "/v1/score")]
        self.app = Starlette(routes=routes)
        self.app.add_middleware(ReviewMiddleware)

    async def chat(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        if body["model"] != "bad":
            missing = {"error": {"message": "no such model"}}
            return JSONResponse(missing, 404, {"x-request-id": "7"})
        turns = [turn_of(message, "messages") for message in body["messages"]]
        reply = await BadModel().reply(turns, Sampling(tools=body.get("tools", ())))
        message = {"role": "assistant", "content": reply.text} | calls_fields(reply.calls)
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [1]}
        return JSONResponse({"id": "1", "model": "bad", "choices": [choice], "usage": USAGE})


def send(text, path=CHAT, **fields):
    server = Server()
    body = {"model": "bad", "messages": [{"role": "user", "content": text}], **fields}
    return server, asyncio.run(ask(server.app, path, body, authorization="Bearer k"))


@VLLM
def test_an_unsafe_reply_is_revised_by_the_model_behind_the_server():
    server, response = send(BAD, temperature=0.5)
    message = {"role": "assistant", "content": REVISED}
    assert response.json == {
        "id": "1",
        "model": "bad",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 22, "completion_tokens": 10, "total_tokens": 32},
    }
    assert server.keys == ["Bearer k"] * 2
    assert server.bodies[0] == {
        "model": "bad",
        "messages": [{"role": "user", "content": BAD}],
        "temperature": 0.5,
    }


def test_a_good_reply_comes_back_with_all_its_fields():
    server, response = send("How do I bake bread?")
    assert response.json["choices"][0]["token_ids"] == [1]
    assert response.json["usage"] == USAGE
    assert len(server.bodies) == 1


@VLLM
@pytest.mark.parametrize(("asked", "text"), [(BAD, REVISED), ("Hello.", "You said: Hello.")])
def test_a_stream_has_the_words_that_were_reviewed(asked, text):
    server, response = send(asked, stream=True, stream_options={"include_usage": True})
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == text
    assert len(deltas) > 3
    assert chunks[-1]["usage"]["total_tokens"] == 16 * len(server.bodies)
    assert UNSAFE not in response.text


@pytest.mark.parametrize("stream", [False, True])
def test_an_unsafe_tool_call_becomes_a_text_and_a_safe_one_stays(stream):
    _server, response = send(BAD_CALL, tools=TOOLS, stream=stream)
    assert ("tool_calls" in response.text, UNSAFE in response.text) == (False, False)
    _server, response = send(f"{CALL}bread", tools=TOOLS, stream=stream)
    assert '"look_up"' in response.text


def review(message, *, stream=False, beside=None):
    """Return the answer to a chat whose reply was this message, with other fields beside it."""
    beside = {"index": 0, "finish_reason": "stop"} if beside is None else beside

    async def run():
        asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
        completion = {"choices": [{"message": message} | beside]}
        async with open_guard(upstream=ScriptedPolicy(lambda _messages: REVISED)) as guard:
            chat = read_chat(json.dumps(asked).encode())
            return (await review_answer(guard, chat, json.dumps(completion).encode()))[1].decode()

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("beside", [{}, {"index": 0}, {"finish_reason": None}])
def test_a_reply_is_not_lost_over_an_index_or_an_end(beside, stream):
    assert "Hello." in review({"content": "Hello."}, stream=stream, beside=beside)
    assert REVISED.split()[0] in review({"content": UNSAFE}, stream=stream, beside=beside)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", ["Hello.", UNSAFE])
def test_counts_that_the_server_does_not_tell_stay_unknown(text, stream):
    assert "usage" not in review({"content": text}, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_is_not_lost_over_half_an_emoji(stream):
    answer = review({"content": "Hello \ud83d"}, stream=stream)
    assert "Hello" in answer
    assert "\ufffd" in answer


SHELL = {"name": "shell", "arguments": '{"command": "rm -rf / --no-preserve-root"}'}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "refusal": UNSAFE},
        {"content": [{"type": "text", "text": UNSAFE}]},
        {"content": None, "function_call": SHELL},
        {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": SHELL}]},
        {"content": None, "reasoning": "Hm.", "reasoning_content": UNSAFE},
    ],
)
def test_a_reply_is_reviewed_in_whatever_field_it_comes(message, stream):
    answer = review(message, stream=stream)
    assert (UNSAFE in answer, "preserve-root" in answer) == (False, False)
    assert REVISED.split()[0] in answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_good_refusal_and_parts_stay(stream):
    assert '"refusal":"No."' in review({"content": None, "refusal": "No."}, stream=stream)
    assert "Good." in review({"content": [{"type": "text", "text": "Good."}]}, stream=stream)


def test_an_answer_that_cannot_be_read_does_not_pass():
    with pytest.raises(RequestError, match=r"cannot be read: message\.tool_calls") as caught:
        review({"content": UNSAFE, "tool_calls": 3})
    assert caught.value.status == 502


DISGUISED = ("/v1/%63%68at/%63ompletions", "/v1/%2563hat", "/generate", f"{CHAT}/", f"{CHAT}?x")


@pytest.mark.parametrize("path", [*DISGUISED, *(path for path in BODIES if path != CHAT)])
def test_other_routes_with_replies_are_refused(path):
    server, response = send(BAD, path)
    assert (response.status, server.bodies) == (403, [])
    assert CHAT in response.error


def test_routes_without_replies_and_errors_of_the_server_pass():
    assert send(BAD, "/v1/score")[1].status == 200
    _server, response = send(BAD, model="other")
    assert (response.status, response.error) == (404, "no such model")


class WatchingServer(Server):
    """A server that stops decoding when the client leaves, as vLLM does on each chat."""

    def __init__(self):
        super().__init__()
        self.left = 0

    async def chat(self, request):
        decoding = asyncio.create_task(self.decode(request))
        leaving = asyncio.create_task(self.wait_for_leaving(request))
        await asyncio.wait((decoding, leaving), return_when=asyncio.FIRST_COMPLETED)
        self.left += leaving.done()
        (decoding if leaving.done() else leaving).cancel()
        return JSONResponse(None) if leaving.done() else decoding.result()

    async def decode(self, request):
        if (await request.json()).get("user") == "slow":
            await asyncio.Event().wait()
        return await super().chat(request)

    async def wait_for_leaving(self, request):
        for _ in range(100):  # more events than there are
            if (await request.receive())["type"] == "http.disconnect":
                break


def test_a_server_that_waits_for_the_client_to_leave_answers_and_stops_when_it_leaves():
    chat = {"model": "bad", "messages": [{"role": "user", "content": BAD}]}

    async def visit():
        server, gone = WatchingServer(), asyncio.Event()
        answer = await ask(server.app, CHAT, chat)
        asyncio.get_running_loop().call_later(0.01, gone.set)
        await ask(server.app, CHAT, chat | {"user": "slow"}, gone=gone)
        return answer, len(server.bodies), server.left

    answer, answered, left = asyncio.run(visit())
    assert answer.json["choices"][0]["message"]["content"] == REVISED
    assert (answered, left) == (2, 1)


@pytest.mark.parametrize(
    ("fields", "status"), [({"messages": 17}, 400), ({"messages": [{"role": "x"}]}, 400)]
)
def test_a_chat_that_cannot_be_read_is_refused(fields, status):
    server, response = send(BAD, **fields)
    assert (response.status, server.bodies) == (status, [])


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_the_reviewed_text(stream):
    def answered(word):
        token = {"token": word, "logprob": -0.5, "bytes": None, "top_logprobs": [], "id": 7}
        beside = {"index": 0, "finish_reason": "stop", "logprobs": {"content": [token]}}
        return review({"content": "Hello."}, stream=stream, beside=beside)

    assert '"logprob":-0.5' in answered("Hello.")
    assert "SECRET" not in answered("SECRET")


@pytest.mark.parametrize("wanted", [{}, {"stream_options": {"include_usage": True}}])
def test_a_stream_ends_with_token_counts_only_where_they_are_wanted(wanted):
    _server, response = send("Hello.", stream=True, **wanted)
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if "{" in line]
    assert [chunk for chunk in chunks if not chunk["choices"]] == chunks[
        len(chunks) - len(wanted) :
    ]
    assert "usage" not in chunks[0]


def test_what_is_no_chat_goes_to_the_server_and_its_headers_come_back():
    server = Server()
    seen = asyncio.run(_headers_of(server.app, "OPTIONS", {}))
    assert seen[0] == 405
    assert (b"allow", b"POST") in seen[1]
    body = {"model": "none", "messages": [{"role": "user", "content": "Hi."}]}
    status, headers = asyncio.run(_headers_of(server.app, "POST", body))
    assert status == 404
    assert dict(headers)[b"x-request-id"] == b"7"
    assert [name for name, _ in headers].count(b"content-length") == 1


async def _headers_of(app, method, body):
    """Return the status and the headers of an answer."""
    events = []

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send_event(event):
        events.append(event)

    scope = {"type": "http", "method": method, "path": CHAT, "headers": [], "query_string": b""}
    await app(scope, receive, send_event)
    return events[0]["status"], list(events[0]["headers"])
