"""The external processor, asked as Envoy asks it, by the stub of the protocol."""

import asyncio
import json

import pytest
from drivers import of_framework

from support.bad_model import BAD, REVISED, UNSAFE, BadModel
from support.openai_server import serving
from waltzrl import RemotePolicy, open_guard

ENVOY = pytest.mark.promise(
    "Adapters for frameworks",
    "Envoy's external processor revises chats, streams included, and ends what it cannot review",
)

pytestmark = of_framework("envoy")
CHATS = "/v1/chat/completions"
GOOD = "Mix the flour."


def exchange(reply, *, path=CHATS, status="200", **fields):
    """Send a request and the answer to it through the processor, in what Envoy sends of both.

    Return the processor's answers, as the names of their kinds and their messages.
    """
    from waltzrl_integrations.envoy import grpc, messages, open_processor, service

    chat = {"model": "bad", "messages": [{"role": "user", "content": BAD}], **fields}
    choice = {"index": 0, "message": {"content": reply}, "finish_reason": "stop"}
    raw = reply if isinstance(reply, bytes) else json.dumps({"choices": [choice]}).encode()
    asked = [
        messages.ProcessingRequest(request_headers=headers(messages, {":path": path})),
        messages.ProcessingRequest(request_body={"body": json.dumps(chat).encode()}),
        messages.ProcessingRequest(response_headers=headers(messages, {":status": status})),
        messages.ProcessingRequest(response_body={"body": raw}),
        messages.ProcessingRequest(response_trailers={}),
    ]

    async def run(server):
        async with open_guard(upstream=RemotePolicy(server.base_url, "bad")) as guard:
            processor, port = await open_processor(guard, "127.0.0.1:0")
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = service.ExternalProcessorStub(channel).Process()
                answers = []
                for one in asked:
                    await call.write(one)
                    answer = await call.read()
                    answers.append((answer.WhichOneof("response"), answer))
                    if answer.HasField("immediate_response"):
                        break
            await processor.stop(0)
            return answers

    with serving({"bad": BadModel()}) as server:
        return asyncio.run(run(server))


def headers(messages, values):
    sent = messages.HttpHeaders()
    for name, value in values.items():
        sent.headers.headers.add(key=name, raw_value=value.encode())
    return sent


def mutated(answers, kind):
    """Return the body and the headers that an answer sets."""
    common = getattr(dict(answers)[kind], kind).response
    named = {h.header.key: h.header.raw_value for h in common.header_mutation.set_headers}
    assert int(named["content-length"]) == len(common.body_mutation.body)
    return common.body_mutation.body, named["content-type"].decode()


@ENVOY
def test_envoy_is_given_the_revised_reply():
    answers = exchange(f"Certainly. {UNSAFE}")
    assert [kind for kind, _answer in answers] == [
        "request_headers",
        "request_body",
        "response_headers",
        "response_body",
        "response_trailers",
    ]
    body, kind = mutated(answers, "response_body")
    message = {"role": "assistant", "content": REVISED}
    assert json.loads(body)["choices"] == [
        {"index": 0, "message": message, "finish_reason": "stop"}
    ]
    assert kind == "application/json"


def test_a_stream_is_asked_whole_and_sent_as_events():
    answers = exchange(GOOD, stream=True)
    assert "stream" not in json.loads(mutated(answers, "request_body")[0])
    body, kind = mutated(answers, "response_body")
    chunks = [json.loads(line[6:]) for line in body.decode().split("\n\n")[:-2]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == GOOD
    assert (kind, body[-14:]) == ("text/event-stream", b"data: [DONE]\n\n")


@ENVOY
@pytest.mark.parametrize(
    ("reply", "options", "status"),
    [
        (GOOD, {"path": "/v1/completions"}, 403),
        (GOOD, {"path": "/v1/%63hat/%63ompletions?x=1"}, 403),
        (GOOD, {"messages": 17}, 400),
        (b"\x1f\x8b", {}, 502),
        (b'{"choices": [{}]}', {}, 502),
    ],
)
def test_what_cannot_be_reviewed_ends(reply, options, status):
    last, answer = exchange(reply, **options)[-1]
    assert (last, answer.immediate_response.status.code) == ("immediate_response", status)


@pytest.mark.parametrize("options", [{"path": "/v1/models"}, {"status": "404"}])
def test_other_routes_and_errors_pass(options):
    answer = dict(exchange(b"whatever", **options))["response_body"]
    assert not answer.response_body.response.HasField("body_mutation")
