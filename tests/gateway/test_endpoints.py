"""What the gateway serves beside chats: models, embeddings."""

import asyncio

import pytest

from support.small_gateway import EMBEDDINGS, Model, ask, with_gateway
from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import UpstreamRequest
from waltzrl.gateway.keys import add_key
from waltzrl.gateway.policy_upstream import PolicyUpstream
from waltzrl.policies import ScriptedPolicy

pytestmark = pytest.mark.promise(
    "Endpoints and upstreams", "`/v1/embeddings` and `/v1/models/{id}` work as in OpenAI's API"
)

EMBED = "/v1/embeddings"
WORDS = {"model": "echo", "input": ["a", "b"], "dimensions": 2}


def get(path, *overrides, **headers):
    return with_gateway(lambda app: ask(app, path, method="GET", **headers), *overrides)


def embed(body, *overrides, model=None, **headers):
    return with_gateway(lambda app: ask(app, EMBED, body, **headers), *overrides, model=model)


def test_models_say_when_they_were_made():
    assert get("/v1/models").json["data"] == [
        {"id": "echo", "created": 17, "object": "model", "owned_by": "upstream"},
        {"id": "maker/echo", "created": 0, "object": "model", "owned_by": "upstream"},
    ]


@pytest.mark.parametrize(("name", "created"), [("echo", 17), ("maker/echo", 0)])
def test_one_model_is_described_slashes_in_its_name_included(name, created):
    response = get(f"/v1/models/{name}")
    assert (response.status, response.json["id"], response.json["created"]) == (200, name, created)


@pytest.mark.parametrize("name", ["", "other", "echo/", "x" * 5000])
def test_a_model_that_is_not_there_is_not_found(name):
    response = get(f"/v1/models/{name}")
    assert response.status == 404
    assert response.json["error"]["param"] == "model"
    assert len(response.error) < 200


def test_embeddings_are_the_upstreams_bytes():
    model = Model()
    response = embed(WORDS, model=model)
    assert (response.status, response.json) == (200, EMBEDDINGS)
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert model.bodies == [WORDS]
    assert model.heads[0].startswith("POST /base/embeddings ")


def test_embeddings_are_counted_apart_from_reviewed_replies():
    async def work(app):
        await ask(app, EMBED, WORDS)
        await ask(app, EMBED, {})
        return (await ask(app, "/metrics", method="GET")).text

    metrics = with_gateway(work)
    assert 'waltzrl_forwarded_total{api="embeddings"} 1.0' in metrics
    assert 'waltzrl_errors_total{api="embeddings",kind="invalid_request"} 1.0' in metrics
    assert "waltzrl_requests_total{" not in metrics


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"rubbish", 400, "JSON"),
        ({"input": "a"}, 400, "model: got nothing"),
        ({"model": 1, "input": "a"}, 400, "model: got 1"),
        ({"model": "long", "input": "a"}, 400, "reads at most 8 tokens"),
        ({"model": "broken", "input": "a"}, 502, "the upstream answered 500"),
        ({"model": "busy", "input": "a"}, 429, "slow down"),
    ],
)
def test_embeddings_that_cannot_be_made_say_why(body, status, message):
    response = embed(body)
    assert (response.status, message in response.error) == (status, True), response.error


def test_embeddings_need_a_key_and_are_limited(tmp_path):
    path = tmp_path / "keys.toml"
    key = add_key(path, {"name": "ada", "requests_per_minute": 6, "burst": 1})

    async def work(app):
        headers = {"authorization": f"Bearer {key}"}
        answers = [await ask(app, EMBED, WORDS), await ask(app, EMBED, WORDS, **headers)]
        return [*answers, await ask(app, EMBED, WORDS, **headers)]

    assert [answer.status for answer in with_gateway(work, f"keys={path}")] == [401, 200, 429]


def test_a_request_for_embeddings_that_is_too_long_is_refused():
    response = embed(WORDS, "limits.max_request_bytes=20", content_length=21)
    assert (response.status, "more than 20 bytes" in response.error) == (413, True)


def test_a_model_of_this_process_has_no_embeddings():
    upstream = PolicyUpstream("m", ScriptedPolicy([]), 8)
    with pytest.raises(RequestError) as raised:
        asyncio.run(upstream.forward(UpstreamRequest(path="/embeddings")))
    assert (raised.value.status, "only chats" in str(raised.value)) == (404, True)
