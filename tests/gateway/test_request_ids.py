"""A client's request id and trace context are kept, on the way to the models and in records."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small_gateway import BODIES, CHAT, HELLO, Model, ask, chat, gateway
from support.small_site import header, http, site
from waltzrl.gateway.access import RequestHeaders
from waltzrl.store.audit.reading import find

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
IDS = {"x_request_id": "shop-17", "traceparent": TRACEPARENT, "tracestate": "vendor=1"}
LABELS = '{"reasoning": "r", "unsafe": false, "overrefuse": false, "feedback": ""}'


def run(work, *overrides, model=None):
    async def opened():
        async with gateway(*overrides, model=model) as app:
            return await work(app)

    return asyncio.run(opened())


@pytest.mark.promise(
    "Logs",
    "A client's `x-request-id` and W3C trace context reach the upstream and come back, through "
    "every API",
)
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_ids_reach_the_upstream_and_come_back(path, stream):
    model = Model()
    body = BODIES[path] | ({"stream": True} if stream else {})
    response = run(lambda app: ask(app, path, body, **IDS), model=model)
    assert response.headers["x-request-id"] == "shop-17"
    is_messages = path == "/v1/messages"  # Anthropic's clients read it from another header
    assert response.headers.get("request-id") == ("shop-17" if is_messages else None)
    (head,) = model.heads
    assert header(head, "x-request-id") == ["shop-17"]
    assert header(head, "traceparent") == [TRACEPARENT]
    assert header(head, "tracestate") == ["vendor=1"]


def test_without_an_id_of_its_own_a_request_has_ours_everywhere():
    model = Model()
    response = run(chat, model=model)
    (head,) = model.heads
    assert header(head, "x-request-id") == [response.headers["x-request-id"]]
    assert header(head, "traceparent") == []


class Reviewer(Model):
    """A feedback model that finds nothing wrong."""

    def answer(self, body, path):
        if body is None:
            return super().answer(body, path)
        choice = {"message": {"role": "assistant", "content": LABELS}, "finish_reason": "stop"}
        return http({"choices": [choice]})


@pytest.mark.promise("Logs", "The feedback model's server gets the client's ids too")
def test_the_feedback_models_server_gets_the_ids_too():
    async def work():
        reviewer = Reviewer()
        async with site(reviewer) as server:
            stage2 = ("stage=2", "feedback.model=judge", f"feedback.server={server.url}")
            async with gateway(*stage2) as app:
                assert (await chat(app, x_request_id="shop-17")).status == 200
                assert (await ask(app, CHAT, {"model": "echo", "messages": HELLO}, **IDS)).status
        return reviewer.heads

    first, second = asyncio.run(work())[-2:]
    assert (header(first, "x-request-id"), header(first, "traceparent")) == (["shop-17"], [])
    assert header(second, "traceparent") == [TRACEPARENT]


@pytest.mark.promise("Logs", "An error's body names the request")
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_names_the_request(path, stream):
    body = BODIES[path] | {"model": "busy"} | ({"stream": True} if stream else {})
    response = run(lambda app: ask(app, path, body, **IDS))
    assert '"request_id":"shop-17"' in response.text
    assert response.headers["x-request-id"] == "shop-17"


@pytest.mark.promise("Logs", "The audit log is searched by the client's id or ours")
def test_the_audit_log_holds_the_clients_ids_and_is_searched_by_them(tmp_path):
    async def work(app):
        first = await chat(app, x_request_id="shop-17")
        await ask(app, CHAT, {"model": "echo", "messages": HELLO}, **IDS)
        return [first, await chat(app)]

    _, last = run(work, f"audit.folder={tmp_path / 'audit'}")
    first, second = find(tmp_path / "audit", "shop-17")
    assert first.decision.id != second.decision.id  # the log's own ids stay unique
    assert [entry.decision.client_request_id for entry in (first, second)] == ["shop-17"] * 2
    assert [entry.decision.trace_id for entry in (first, second)] == ["", TRACEPARENT[3:35]]
    (third,) = find(tmp_path / "audit", last.headers["x-request-id"])
    assert third.decision.client_request_id == ""


def read(**headers):
    named = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return RequestHeaders.read({"headers": named})


@pytest.mark.parametrize(
    "value", [b"", b"a b", b"a\tb", b"a\x1b[31m", b'"', b"\xe4", b"a" * 129, b"x@example.com"]
)
def test_an_id_that_is_too_long_or_has_other_characters_is_replaced(value):
    headers = read(x_request_id=value)
    assert headers.context.id == headers.id


@pytest.mark.parametrize(
    "value",
    [
        b"",
        TRACEPARENT.upper().encode(),
        TRACEPARENT[:-1].encode(),
        b"ff" + TRACEPARENT[2:].encode(),
        b"00-" + b"0" * 32 + TRACEPARENT[35:].encode(),
        TRACEPARENT[:36].encode() + b"0" * 16 + b"-01",
    ],
)
def test_a_trace_context_that_is_invalid_is_dropped_with_its_state(value):
    headers = read(traceparent=value, tracestate=b"vendor=1")
    assert headers.context == (headers.id, "", {"X-Request-ID": headers.id})


@pytest.mark.promise("Logs", "No id of a client can break a header or a log line")
@given(st.binary(), st.binary(), st.binary())
def test_whatever_a_client_sends_no_id_can_break_a_header_or_a_log_line(
    request_id, traceparent, tracestate
):
    context = read(x_request_id=request_id, traceparent=traceparent, tracestate=tracestate).context
    for value in context.headers.values():
        assert value.isascii()
        assert value.isprintable()
    assert json.dumps(context.id) == f'"{context.id}"'
