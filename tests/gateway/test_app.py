"""The gateway as an application: its routes, its door, and what leaves when something is wrong."""

import asyncio

import pytest

from support.small_gateway import (
    BODIES,
    CHAT,
    GUARDRAIL,
    REVIEW,
    REVISED,
    UNSAFE,
    Model,
    ask,
    chat,
    gateway,
    ready_gateway,
    with_gateway,
)
from waltzrl.gateway.keys import add_key


@pytest.mark.parametrize("path", BODIES)
def test_each_api_is_answered_with_an_id_and_the_decision(path):
    async def work(app):
        return [await ask(app, path, BODIES[path]) for _ in range(2)]

    first, second = with_gateway(work)
    assert (first.status, first.headers["content-type"]) == (200, "application/json")
    assert "You said hello." in first.text
    assert first.headers["x-waltzrl-decision"] == "draft"
    assert int(first.headers["content-length"]) == len(first.text.encode())
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_the_header_tells_the_decision_of_every_choice():
    response = with_gateway(lambda app: chat(app, "unsafe", n=2))
    assert response.headers["x-waltzrl-decision"] == "revised,revised"
    assert [choice["message"]["content"] for choice in response.json["choices"]] == [REVISED] * 2


def test_models_are_the_upstreams():
    response = with_gateway(lambda app: ask(app, "/v1/models", method="GET"))
    assert [model["id"] for model in response.json["data"]] == ["echo", "maker/echo"]


def test_a_path_that_is_not_there_is_told_which_are():
    response = with_gateway(lambda app: ask(app, "/v1/images", {}))
    assert (response.status, CHAT in response.error, "/healthz" in response.error) == (
        404,
        True,
        True,
    )
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", CHAT), ("POST", "/v1/models"), ("PUT", REVIEW), ("POST", "/readyz")],
)
def test_a_method_that_a_path_does_not_take_is_refused(method, path):
    response = with_gateway(lambda app: ask(app, path, {}, method=method))
    assert (response.status, response.error) == (405, f"{path} does not support {method}")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/models"])
def test_head_is_answered_as_get_is(path):
    async def work(app):
        return [await ask(app, path, method=method) for method in ("GET", "HEAD")]

    whole, head = with_gateway(work)
    assert (head.status, head.headers.keys()) == (whole.status, whole.headers.keys())


@pytest.fixture
def keys(tmp_path):
    """Make a key file, and say how to make keys in it."""
    path = tmp_path / "keys.toml"
    return lambda **policy: (f"keys={path}", add_key(path, {"name": "ada", **policy}))


@pytest.mark.parametrize("path", [*BODIES, REVIEW, GUARDRAIL, "/v1/models"])
def test_with_a_key_file_nothing_is_answered_without_a_key(keys, path):
    override, key = keys()
    method = "GET" if path == "/v1/models" else "POST"

    async def work(app):
        refused = [
            await ask(app, path, BODIES.get(path), method=method, **headers)
            for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Basic {key}"})
        ]
        credentials = [("authorization", f"Bearer {key}"), ("x-api-key", key)]
        return refused, [
            await ask(app, path, BODIES.get(path), method=method, **{name: value})
            for name, value in credentials
        ]

    refused, let_in = with_gateway(work, override)
    assert [response.status for response in refused] == [401] * 3
    assert "missing API key" in refused[0].error
    assert "invalid API key" in refused[1].error
    assert {response.status for response in let_in} <= {200, 400}


def test_probes_and_metrics_need_no_key_and_ours_never_reach_the_upstream(keys):
    override, key = keys()
    model = Model()

    async def work(app):
        assert (await chat(app, key=key)).status == 200
        paths = ("/healthz", "/readyz", "/metrics")
        await ready_gateway(app)
        return [(await ask(app, path, method="GET")).status for path in paths]

    assert with_gateway(work, override, model=model) == [200] * 3
    assert len(model.heads) == 1
    assert key not in model.heads[0]


def test_a_caller_that_is_too_fast_is_told_when_to_come_back(keys):
    override, key = keys(requests_per_minute=6, burst=1)

    async def work(app):
        assert (await chat(app, key=key)).status == 200
        return await chat(app, key=key)

    response = with_gateway(work, override)
    assert (response.status, response.headers["retry-after"]) == (429, "10")


def test_a_stream_leaves_as_its_client_asks_if_the_key_may(keys):
    override, key = keys(stream_modes=["buffer", "audit", "speculative"])

    async def work(app):
        async def mode(**headers):
            response = await chat(app, stream=True, key=key, **headers)
            return response.headers["x-waltzrl-mode"] if response.status == 200 else response.status

        return [
            await mode(),
            await mode(x_waltzrl_mode="buffer"),
            await mode(x_waltzrl_mode="audit"),
            await mode(x_waltzrl_mode="speculative"),
            await mode(x_waltzrl_mode="speculative", x_waltzrl_retract="yes"),
            await mode(x_waltzrl_mode="window"),
            await mode(x_waltzrl_mode="whole"),
        ]

    modes = with_gateway(work, override)
    assert modes == ["window", "buffer", "audit", "window", "speculative", "window", 403]


def test_a_mode_that_the_key_may_not_ask_for_is_refused_counted_and_not_asked_upstream():
    model = Model()

    async def work(app):
        response = await chat(app, stream=True, x_waltzrl_mode="audit")
        return response, (await ask(app, "/metrics", method="GET")).text

    response, metrics = with_gateway(work, model=model)
    assert (
        response.error == "this key may not use X-Waltzrl-Mode 'audit'; it may use buffer, window"
    )
    assert 'waltzrl_errors_total{api="chat",kind="permission"} 1.0' in metrics
    assert model.heads == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_that_is_not_enabled_reviews_nothing(stream):
    async def work(app):
        await chat(app, "unsafe", stream=stream)
        return (await ask(app, "/metrics", method="GET")).text

    assert 'decision="draft",draft_verdict="unreviewed"' in with_gateway(work, "enabled=false")


@pytest.mark.parametrize("headers", [{}, {"x_waltzrl_mode": "buffer"}])
@pytest.mark.parametrize("stream", [False, True])
def test_who_only_observes_sends_every_draft_as_it_is(stream, headers):
    async def work(app):
        return await chat(app, "unsafe", stream=stream, **headers)

    response = with_gateway(work, "observe_only=true").text
    assert ("And that is all." in response, REVISED in response) == (True, False)


def test_nobody_opens_a_stream_further_than_the_operator_unless_the_key_may(keys):
    async def work(app):
        response = await chat(app, stream=True, key=key, x_waltzrl_mode="window")
        return response.status

    for modes, status in (({}, 403), ({"stream_modes": ["window"]}, 200)):
        override, key = keys(**modes)
        assert with_gateway(work, override, "stream=buffer") == status


def test_a_stream_is_sent_as_one():
    response = with_gateway(lambda app: chat(app, "unsafe", stream=True))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.text.endswith("data: [DONE]\n\n")
    assert response.whole
    assert UNSAFE not in response.text


@pytest.mark.parametrize("length", [{"content_length": 2001}, {}])
def test_a_request_that_is_too_long_is_refused_before_it_is_read(length):
    parts = [b" " * 600] * 5
    response = with_gateway(
        lambda app: ask(app, CHAT, parts=parts, **length), "limits.max_request_bytes=2000"
    )
    assert (response.status, "more than 2000 bytes" in response.error) == (413, True)


def test_a_request_may_come_in_parts():
    raw = b'{"model": "echo", "messages": [{"role": "user", "content": "hello"}]}'
    parts = [raw[:10], b"", raw[10:]]
    assert with_gateway(lambda app: ask(app, CHAT, parts=parts)).status == 200


def test_drafts_are_shown_only_to_keys_that_may_see_them(keys):
    override, may = keys(may_see_drafts=True)
    _, may_not = keys(name="bob")

    async def work(app):
        include = {"x_waltzrl_include": "collaboration"}
        return [
            await chat(app, "unsafe", key=may, **include),
            await chat(app, "unsafe", key=may),
            await chat(app, "unsafe", key=may_not, **include),
        ]

    shown, *hidden = with_gateway(work, override)
    (response,) = shown.json["waltzrl"]["collaborations"]
    assert UNSAFE in response["draft"]["text"]
    assert response["rounds"][0]["feedback"]["unsafe"] is True
    for answer in hidden:
        assert "waltzrl" not in answer.json
        assert UNSAFE not in answer.text


def test_a_gateway_that_stops_is_not_ready_and_lets_nothing_in():
    async def work(app):
        ready = (await ready_gateway(app)).status
        await app.access.admission.drain(1)
        paths = ("/readyz", "/healthz")
        return ready, [await ask(app, path, method="GET") for path in paths], await chat(app)

    ready, (not_ready, alive), refused = with_gateway(work)
    assert (ready, not_ready.status, alive.status) == (200, 503, 200)
    assert not_ready.json["checks"]["gateway"] == {"status": "down", "detail": "shutting down"}
    assert (refused.status, "shutting down" in refused.error) == (503, True)
    assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize("n", [1, 3])
def test_what_the_upstream_refuses_is_told_in_its_words(n):
    response = with_gateway(lambda app: chat(app, "busy", n=n))
    assert (response.status, response.headers["retry-after"]) == (429, "7")
    assert response.error == "the upstream answered 429: slow down"


async def lifespan_is_not_ours():
    async with gateway() as app:
        return await app({"type": "lifespan"}, None, None)


def test_what_is_not_http_is_left_alone():
    assert asyncio.run(lifespan_is_not_ours()) is None
