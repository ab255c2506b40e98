"""Anthropic's count of tokens: the upstream's where it counts, else an estimate that says so."""

import pytest

from support.small_gateway import Model, ask, ready_gateway, with_gateway
from support.small_site import http
from waltzrl.gateway.health import OK
from waltzrl.gateway.upstream import FAILURES

PATH = "/v1/messages/count_tokens"
HELLO = {"model": "echo", "messages": [{"role": "user", "content": "x" * 40}]}


class Counting(Model):
    """A server that counts; what it answers depends on the model."""

    def answer(self, body, path):
        if path != "/messages/count_tokens":
            return super().answer(body, path)
        self.bodies.append(body)
        return ANSWERS[body["model"]]


ANSWERS = {
    "echo": http({"input_tokens": 14}),
    "absent": http({"error": {"message": "no such path"}}, 404),
    "post": http({"detail": "Method Not Allowed"}, 405),
    "none": http({"error": {"message": "not implemented"}}, 501),
    "page": http(b"<html>welcome</html>"),
    "other": http({"tokens": 3}),
    "zero": http({"input_tokens": 0}),
    "long": http({"error": {"message": "too many images", "code": "images"}}, 400),
    "down": http({"error": {"message": "unreviewed"}}, 500),
}


def count(body, model=None):
    return with_gateway(lambda app: ask(app, PATH, body), model=model or Counting())


def test_the_upstream_counts_what_the_client_sent():
    upstream = Counting()
    response = count({**HELLO, "system": "Be brief."}, upstream)
    assert (response.status, response.json) == (200, {"input_tokens": 14})
    assert response.headers["x-waltzrl-tokens"] == "counted"
    assert upstream.bodies == [{**HELLO, "system": "Be brief."}]


@pytest.mark.promise("Endpoints and upstreams", "An estimated count of tokens says that it is one")
@pytest.mark.parametrize("model", ["absent", "post", "none", "page", "other", "zero"])
def test_an_upstream_that_does_not_count_leaves_an_estimate_that_says_so(model):
    response = count({**HELLO, "model": model})
    assert (response.status, response.json) == (200, {"input_tokens": 10})  # 40 characters / 4
    assert response.headers["x-waltzrl-tokens"] == "estimated"


def test_an_upstream_that_does_not_count_is_not_down():
    async def work(app):
        await ready_gateway(app)
        for _ in range(FAILURES):
            await ask(app, PATH, {**HELLO, "model": "none"})
        return app.checks["upstream"]()

    assert with_gateway(work, model=Counting()) == OK


def test_the_estimate_counts_system_tools_and_every_turn():
    tool = {"name": "f", "input_schema": {"type": "object"}}
    schema = '{"type":"object","properties":{}}'
    as_chat = f'[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]'
    body = {**HELLO, "model": "absent", "system": "y" * 8, "tools": [tool]}
    expected = -(-(8 + 40 + len(as_chat)) // 4)
    assert count(body).json == {"input_tokens": expected}


@pytest.mark.parametrize(
    ("body", "status", "kind", "message"),
    [
        ({**HELLO, "model": "long"}, 400, "invalid_request_error", "too many images"),
        ({**HELLO, "model": "down"}, 502, "api_error", "the upstream answered 500"),
        ({**HELLO, "messages": []}, 400, "invalid_request_error", "messages: "),
        ({"messages": HELLO["messages"]}, 400, "invalid_request_error", "model: "),
        (b"rubbish", 400, "invalid_request_error", "JSON"),
    ],
)
def test_what_cannot_be_counted_is_told_in_anthropics_shape(body, status, kind, message):
    response = count(body)
    assert (response.status, response.json["error"]["type"]) == (status, kind)
    assert message in response.error
