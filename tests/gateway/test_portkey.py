"""Portkey's webhook guardrail, by the requests that Portkey's gateway sends."""

import json

import pytest

from support.malformed import ODD
from support.small_gateway import HELLO, PORTKEY, REVISED, UNSAFE, Model, ask, with_gateway

DRAFT = f"Certainly. {UNSAFE} And that is all."
BENIGN = "Paris is the capital of France."


def hook(answer, model="unsafe", **fields):
    """Call the webhook with what a provider answered to a request for a model."""
    body = {
        "request": {"json": {"model": model, "messages": HELLO}, "text": "hello"},
        "response": {"json": answer, "text": "", "statusCode": 200},
        "provider": "openai",
        "requestType": "chatComplete",
        "eventType": "afterRequestHook",
    }
    return with_gateway(lambda app: ask(app, PORTKEY, body | fields), model=Model())


def chat(*texts):
    """Return a chat completion with a choice for each text."""
    return {"id": "x", "choices": [choice(text) for text in texts], "usage": {"total_tokens": 7}}


def choice(text, **fields):
    message = {"role": "assistant", "content": text, **fields}
    return {"message": message, "finish_reason": "tool_calls", "logprobs": {"content": []}}


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Portkey's webhook guardrail is answered with a verdict, and with the revised answer",
)
def test_portkey_gets_the_revised_answer_and_what_is_beside_it_stays():
    revised = {"message": {"role": "assistant", "content": REVISED}, "finish_reason": "stop"}
    assert hook(chat(BENIGN, DRAFT)).json == {
        "verdict": True,
        "transformedData": {
            "response": {"json": chat() | {"choices": [choice(BENIGN), revised]}},
        },
    }


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Portkey's webhook guardrail is answered with a verdict, and with the revised answer",
)
def test_portkey_is_told_no_of_a_reply_that_was_refused_and_has_no_word_of_it():
    response = hook(chat(DRAFT), "stubborn")
    answer = response.json
    assert answer["verdict"] is False
    assert answer["data"]["reasons"][0].startswith("waltzrl labelled the reply unsafe: ")
    assert len(answer["transformedData"]["response"]["json"]["choices"]) == 1
    assert UNSAFE not in response.text


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (chat(BENIGN), {}),
        (chat(DRAFT), {"eventType": "beforeRequestHook"}),
        ({}, {"eventType": "beforeRequestHook"}),
    ],
)
def test_requests_and_good_replies_pass(answer, fields):
    assert hook(answer, **fields).json == {"verdict": True}


def test_portkeys_other_apis_are_revised_in_their_own_form():
    completion = hook({"choices": [{"text": DRAFT, "index": 0}]}, requestType="complete").json
    assert completion["transformedData"]["response"]["json"] == {
        "choices": [{"text": REVISED, "index": 0, "finish_reason": "stop"}]
    }
    blocks = [{"type": "text", "text": DRAFT}]
    message = hook({"id": "m", "content": blocks}, requestType="messages").json
    assert message["transformedData"]["response"]["json"] == {
        "id": "m",
        "content": [{"type": "text", "text": REVISED}],
        "stop_reason": "end_turn",
    }


def test_a_tool_call_is_reviewed_with_the_text():
    command = {"command": "rm -rf /"}
    function = {"name": "shell", "arguments": json.dumps(command)}
    calls = [{"id": "1", "type": "function", "function": function}]
    answer = hook({"choices": [choice(None, tool_calls=calls)]}).json
    (revised,) = answer["transformedData"]["response"]["json"]["choices"]
    assert revised["message"] == {"role": "assistant", "content": REVISED}
    use = {"type": "tool_use", "id": "1", "name": "shell", "input": command}
    answer = hook({"content": [use]}, requestType="messages").json
    assert answer["transformedData"]["response"]["json"]["content"][0]["text"] == REVISED


@pytest.mark.parametrize(
    ("answer", "fields", "message"),
    [
        ({}, {}, "response.json.choices"),
        ({"choices": []}, {}, "response.json.choices"),
        ({"choices": [{}]}, {}, "response.json.choices[0].text"),
        ({"choices": [choice(DRAFT)] * 17}, {}, "1 to 16 choices"),
        ({"content": 1}, {"requestType": "messages"}, "response.json.content"),
        (chat(BENIGN), {"eventType": "other"}, "eventType"),
        (chat(BENIGN), {"request": {}}, "request.json"),
    ],
)
def test_what_cannot_be_reviewed_is_an_error_and_no_verdict(answer, fields, message):
    refused = hook(answer, **fields)
    assert (refused.status, message in refused.error) == (400, True), refused.text


@pytest.mark.parametrize("field", ["request", "response", "requestType"])
def test_no_odd_value_is_a_mistake_of_ours(field):
    async def work(app):
        body = {
            "request": {"json": {"model": "m", "messages": HELLO}},
            "response": {"json": chat(BENIGN)},
            "eventType": "afterRequestHook",
        }
        return [(await ask(app, PORTKEY, body | {field: odd})).status for odd in ODD]

    assert {200, 400} >= set(with_gateway(work))
