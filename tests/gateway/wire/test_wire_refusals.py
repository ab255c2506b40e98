"""A refusal under a strict schema stands where OpenAI's clients look for it, who parse the rest."""

import asyncio
import json
from contextlib import asynccontextmanager

import openai
import pytest
from pydantic import BaseModel

from support.small_gateway import CHAT, MESSAGES, UNSAFE, Model, ask, gateway, listening
from support.small_site import events, http
from waltzrl.records import CANNED_REFUSAL

HELLO = [{"role": "user", "content": "How is tea made?"}]
DECLINED = "I'm sorry, I can't assist with that."
PROSE = "Let us talk about safety instead."


class Steps(BaseModel):
    steps: list[str]


SCHEMA = {"name": "steps", "strict": True, "schema": {"type": "object"}}
STRICT = {"type": "json_schema", "json_schema": SCHEMA}
TEA = [f"Step {i} is to wait until the tea has the right colour." for i in range(60)]


def written(*steps):
    return json.dumps({"steps": steps})


DRAFTS = {
    "good": ({"content": written("Boil water.")}, {}),
    "refusing": ({"content": None, "refusal": DECLINED}, {}),
    "stubborn": ({"content": written(UNSAFE)}, {"content": written(UNSAFE)}),
    "mending": ({"content": written(UNSAFE)}, {"content": written("Boil water.")}),
    "telling": ({"content": written(UNSAFE)}, {"content": PROSE}),
    "declining": ({"content": written(UNSAFE)}, {"content": None, "refusal": DECLINED}),
    "late": ({"content": written(*TEA, UNSAFE)}, {"content": PROSE}),
}
"""Model -> the message of its draft, and of its revision."""
REFUSALS = {
    "good": None,
    "refusing": DECLINED,
    "stubborn": CANNED_REFUSAL,
    "mending": None,
    "telling": PROSE,
    "declining": DECLINED,
    "late": PROSE,
}
each_model = pytest.mark.parametrize(("model", "refusal"), REFUSALS.items())


class Structured(Model):
    """Drafts and revises objects of the schema, or not."""

    def answer(self, body, path):
        if body is None:
            return super().answer(body, path)
        revises = "A reviewer read your last reply" in str(body["messages"][-1]["content"])
        message = DRAFTS[body["model"]][revises]
        if not body.get("stream"):
            return http({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        key, text = next((key, text) for key, text in message.items() if text)
        deltas = [{key: text[start : start + 20]} for start in range(0, len(text), 20)]
        chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        return events(*[json.dumps(chunk) for chunk in [*chunks, end]], "[DONE]")


def asked(work):
    """Run `work(client)` with the real client of a gateway."""

    @asynccontextmanager
    async def connected():
        async with gateway(model=Structured()) as app, listening(app) as (host, port):
            url = f"http://{host}:{port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
                yield client

    async def run():
        async with connected() as client:
            return await work(client)

    return asyncio.run(run())


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Under a strict schema OpenAI's client parses every reply, or finds a refusal",
)
@each_model
def test_a_parsed_chat_has_an_object_or_a_refusal(model, refusal):
    async def work(client):
        return await client.chat.completions.parse(
            model=model, messages=HELLO, response_format=Steps
        )

    choice = asked(work).choices[0]
    assert choice.message.refusal == refusal
    assert choice.message.parsed == (Steps(steps=["Boil water."]) if refusal is None else None)
    assert (choice.message.content is None) == (refusal is not None)
    assert choice.finish_reason == "stop"


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Under a strict schema OpenAI's client parses every reply, or finds a refusal",
)
@each_model
def test_a_streamed_chat_has_an_object_or_a_refusal(model, refusal):
    async def work(client):
        streamed = client.chat.completions.stream(
            model=model, messages=HELLO, response_format=Steps
        )
        async with streamed as stream:
            kinds = {event.type async for event in stream}
            return kinds, await stream.get_final_completion()

    kinds, completion = asked(work)
    choice = completion.choices[0]
    assert choice.message.refusal == refusal
    assert ("refusal.delta" in kinds) == (refusal is not None)
    assert choice.message.parsed == (Steps(steps=["Boil water."]) if refusal is None else None)
    # What was sent of a draft cannot be taken back.
    assert (choice.message.content is None) == (refusal is not None and model != "late")
    assert choice.finish_reason == "stop"


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Under a strict schema OpenAI's client parses every reply, or finds a refusal",
)
@pytest.mark.parametrize("streamed", [False, True])
@each_model
def test_a_parsed_response_has_an_object_or_a_refusal(model, refusal, streamed):
    async def work(client):
        request = {"model": model, "input": HELLO, "text_format": Steps}
        if not streamed:
            return await client.responses.parse(**request)
        async with client.responses.stream(**request) as stream:
            kinds = [event.type async for event in stream]
            assert kinds.count("response.refusal.done") == (refusal is not None)
            return await stream.get_final_response()

    response = asked(work)
    (part,) = response.output[0].content
    assert response.status == "completed"
    if refusal is None:
        assert response.output_parsed == Steps(steps=["Boil water."])
    else:
        assert (part.type, part.refusal, response.output_parsed) == ("refusal", refusal, None)


def answer_of(path, **body):
    async def work():
        async with gateway(model=Structured()) as app:
            return await ask(app, path, {"model": "stubborn", "messages": HELLO, **body})

    return asyncio.run(work())


@pytest.mark.parametrize(
    "response_format", [None, {"type": "json_object"}, {"type": "json_schema", "json_schema": {}}]
)
def test_without_a_strict_schema_a_refusal_is_content(response_format):
    choice = answer_of(CHAT, response_format=response_format).json["choices"][0]
    assert choice["message"]["content"] == CANNED_REFUSAL
    assert choice["message"]["refusal"] is None
    assert choice["finish_reason"] == "content_filter"


def test_a_refusal_still_says_what_was_decided():
    assert answer_of(CHAT, response_format=STRICT).headers["x-waltzrl-decision"] == "refused"


def test_in_a_message_the_stop_reason_says_that_the_text_is_a_refusal():
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    message = answer_of(MESSAGES, max_tokens=99, output_config={"format": schema}).json
    assert (message["content"][0]["text"], message["stop_reason"]) == (CANNED_REFUSAL, "refusal")


def test_a_retraction_precedes_a_refusal_where_the_client_takes_retractions():
    async def work():
        async with gateway("stream=speculative", model=Structured()) as app:
            body = {
                "model": "late",
                "messages": HELLO,
                "stream": True,
                "response_format": STRICT,
            }
            return await ask(app, CHAT, body, x_waltzrl_retract="yes")

    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in asyncio.run(work()).text.splitlines()
        if line.startswith("data: {")
    ]
    places = [
        name
        for chunk in chunks
        for name in (
            ["retract"] if "waltz.retract" in chunk else list(chunk["choices"][0]["delta"])
        )
    ]
    assert places[-2:] == ["retract", "refusal"]
    retraction = next(chunk for chunk in chunks if "waltz.retract" in chunk)["waltz.retract"]
    assert (retraction["start"], retraction["replacement"]) == (0, "")
