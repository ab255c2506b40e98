"""What a client is told when the upstream refuses: its words and labels, and never our key."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small_gateway import (
    BODIES,
    CHAT,
    MESSAGES,
    RESPONSES,
    TOO_LONG,
    UNSAFE,
    Model,
    ask,
    gateway,
    with_gateway,
)
from support.small_site import answering, events, http, read_request, site, words
from waltzrl.errors import RequestError
from waltzrl.gateway.limits import Limits
from waltzrl.gateway.stream_modes import StreamMode
from waltzrl.gateway.upstream import HttpUpstream
from waltzrl.gateway.upstream_errors import PASSED_ON, UpstreamError, status_error
from waltzrl.records import CANNED_REFUSAL

KEY = "sk-proj-" + "4f9a" * 8 + "WXYZ"


def error_of(body, status=400, key=None):
    """Return the error of a response with this body."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return status_error(SimpleNamespace(status=status, headers={}), raw, key)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'{"error": {"message": "no room"}}', "no room"),
        (b'{"error": "no room"}', "no room"),
        (b'{"error": {"code": 5}}', "no message"),
        (b'{"object": "error", "message": "no room"}', "no room"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc":["body"]}]'),
        (b"<html>busy</html>", "<html>busy</html>"),
        (b"\xff" * 3, "\ufffd" * 3),
        (b'"just text"', "just text"),
        (b" \n", "no message"),
        (b"[" * 100_000, "[" * 300),
        (b"x" * 1000, "x" * 300),
        (json.dumps({"error": {"message": "x" * 1000}}).encode(), "x" * 300),
    ],
)
def test_the_servers_message_is_found_and_shortened(answer, message):
    assert str(error_of(answer)) == f"the upstream answered 400: {message}"


@pytest.mark.parametrize("status", sorted(PASSED_ON))
def test_code_param_and_type_are_kept(status):
    error = error_of({"error": TOO_LONG}, status)
    assert (error.status, error.code, error.param, error.error_type) == (
        status,
        "context_length_exceeded",
        "messages",
        "invalid_request_error",
    )


def test_a_number_as_code_is_text_and_labels_are_short():
    error = error_of({"type": "NotFoundError", "code": 404, "param": None, "message": "m"}, 404)
    assert (error.code, error.error_type, error.param) == ("404", "NotFoundError", None)
    assert error_of({"error": {"code": "x" * 1000}}).code == "x" * 100


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529, 302])
def test_of_a_failure_of_the_server_only_the_status_is_told(status):
    error = error_of({"error": {"message": "unreviewed words", "code": "c", "type": "t"}}, status)
    assert str(error) == f"the upstream answered {status}"
    assert (error.status, error.kind) == (503 if status == 503 else 502, "upstream")
    assert (error.code, error.error_type, error.param) == (None, None, None)


@pytest.mark.promise(
    "Endpoints and upstreams", "No error shows the gateway's key for the upstream, whole or masked"
)
@pytest.mark.parametrize(
    "shown",
    [
        KEY,
        f'"{KEY}",',
        "sk-proj-************************WXYZ.",
        "sk-p...",
        "...WXYZ",
        "sk-p\u2026WXYZ",
    ],
)
def test_the_gateways_key_is_never_shown_even_with_a_masked_middle(shown):
    message = f"Incorrect API key provided: {shown} Find yours in your account."
    error = error_of({"error": {"message": message, "code": shown, "param": shown}}, 401, KEY)
    for text in (str(error), error.code, error.param):
        assert "sk-p" not in text
        assert "WXYZ" not in text
    assert "Incorrect API key provided: " in str(error)
    assert str(error).endswith(" Find yours in your account.")


@given(st.text(max_size=400), st.text(max_size=400))
def test_the_key_is_not_in_any_message_wherever_it_stands(before, after):
    error = error_of({"error": {"message": f"{before}{KEY}{after}"}}, 401, KEY)
    assert KEY[:9] not in str(error)


def test_words_that_only_look_like_the_key_stay():
    message = "sk-proj keys need a plan... see WXYZ"
    assert str(error_of({"error": message}, 403, KEY)).endswith(f": {message}")


def test_the_upstream_object_passes_its_own_key_to_the_check():
    async def work():
        answer = [http({"error": {"message": f"bad key {KEY}"}}, 401)]
        async with site(answering(answer)) as server:
            upstream = HttpUpstream(server.url, Limits(), api_key=KEY, timeout_seconds=5)
            with pytest.raises(RequestError) as raised:
                await upstream.complete({"model": "m"}, None)
            return str(raised.value)

    assert asyncio.run(work()) == "the upstream answered 401: bad key [key]"


MODES = [False, *StreamMode]
"""How an answer is sent: whole, or as a stream."""
each_way = pytest.mark.parametrize("mode", MODES)
each_path = pytest.mark.parametrize("path", BODIES)


def answer_to(path, model, mode):
    """Ask `model`, streamed in a mode unless that is False."""
    body = {**BODIES[path], "model": model, "stream": bool(mode)}
    work = lambda app: ask(app, path, body, x_waltzrl_retract="yes")  # noqa: E731
    return with_gateway(work, f"stream={mode or 'window'}")


@pytest.mark.promise(
    "Endpoints and upstreams",
    "An error of the upstream keeps its status, code, parameter, type and Retry-After in every "
    "API, whole and in every streaming mode",
)
@each_path
@each_way
def test_each_api_tells_code_and_param_in_its_own_shape(path, mode):
    response = answer_to(path, "long", mode)
    assert (response.status, response.headers["content-type"]) == (400, "application/json")
    expected = TOO_LONG | {"message": f"the upstream answered 400: {TOO_LONG['message']}"}
    if path == MESSAGES:
        expected["message"] = f"prompt is too long; {expected['message']}"
        assert response.json["type"] == "error"
        assert response.json["request_id"] == response.headers["x-request-id"]
    assert response.json["error"] == expected


@pytest.mark.promise(
    "Endpoints and upstreams",
    "An error of the upstream keeps its status, code, parameter, type and Retry-After in every "
    "API, whole and in every streaming mode",
)
@each_path
@each_way
def test_an_upstream_that_is_busy_says_when_to_come_back(path, mode):
    response = answer_to(path, "busy", mode)
    assert (response.status, response.headers["retry-after"]) == (429, "7")


@each_path
@each_way
def test_a_failure_of_the_upstream_is_ours_with_its_status(path, mode):
    response = answer_to(path, "broken", mode)
    assert (response.status, response.error) == (502, "the upstream answered 500")


class RefusesRevisions(Model):
    """A model server that drafts, and refuses to revise."""

    def __init__(self, status):
        super().__init__()
        self._status = status

    def answer(self, body, path):
        if body and "A reviewer read your last reply" in str(body["messages"]):
            return http({"error": TOO_LONG}, self._status)
        return super().answer(body, path)


@each_path
@pytest.mark.parametrize(
    ("status", "mode"),
    [
        (400, False),
        (413, False),
        (422, False),
        (400, "window"),
        (400, "speculative"),
        (400, "buffer"),
    ],
)
def test_a_reply_that_the_upstream_refuses_to_revise_is_replaced_by_a_refusal(path, status, mode):
    async def work(app):
        body = {**BODIES[path], "model": "unsafe", "stream": bool(mode)}
        answer = await ask(app, path, body, x_waltzrl_retract="yes")
        return answer, await ask(app, "/metrics", method="GET")

    model = RefusesRevisions(status)
    served, metrics = with_gateway(work, f"stream={mode or 'window'}", model=model)
    assert (served.status, UNSAFE in served.text) == (200, False)
    assert CANNED_REFUSAL in served.text
    assert 'decision="refused"' in metrics.text


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_a_reply_that_the_upstream_fails_to_revise_is_an_error(status):
    response = with_gateway(
        lambda app: ask(app, CHAT, {**BODIES[CHAT], "model": "unsafe"}),
        model=RefusesRevisions(status),
    )
    assert response.status == (502 if status == 500 else status)


async def ends_early(text, path, *errors):
    """Ask for a stream that ends early, but not before what may be sent of it was sent."""
    was_sent = asyncio.Event()

    async def server(reader, writer):
        await read_request(reader)
        writer.write(events(words(text), whole=False))
        if len(text) > 500:
            await was_sent.wait()
        writer.write(b"".join([events(error).partition(b"\r\n\r\n")[2] for error in errors]))
        writer.write(b"0\r\n\r\n")

    async with gateway(model=server) as app:

        async def told(scope, receive, send):
            async def tell(event):
                await send(event)
                was_sent.set()

            await app(scope, receive, tell)

        return await ask(told, path, {**BODIES[path], "stream": True})


@pytest.mark.promise(
    "Endpoints and upstreams",
    "What fails before a stream's first text has a status, and the SDKs try again as without a "
    "stream",
)
@each_path
def test_a_stream_that_breaks_before_its_first_words_is_no_stream(path):
    response = asyncio.run(ends_early("All is well.", path))
    assert (response.status, response.error) == (502, "the upstream's stream ended early")


@each_path
def test_a_stream_that_breaks_later_ends_with_an_error_in_its_own_shape(path):
    response = asyncio.run(ends_early("All is well. " * 99, path))
    assert response.status == 200
    assert "All is well." in response.text
    data = [line for line in response.text.splitlines() if line.startswith('data: {"')]
    error = json.loads(data[-1].removeprefix("data: "))
    assert error["error"]["message"] == "the upstream's stream ended early"
    assert (error.get("code") == "upstream") is (path == RESPONSES)


LIMITED = {"error": {"message": "Too many requests today.", "code": 429}}
BROKEN = {"error": {"message": "The provider has disconnected.", "code": "server_error"}}
NAMELESS = {"error": {"message": "The provider has disconnected."}}
LATE = [
    (LIMITED, "the upstream answered 429: Too many requests today."),
    (BROKEN, "the upstream answered 500: The provider has disconnected."),
    (
        NAMELESS,
        "the upstream failed while generating its reply: The provider has disconnected.",
    ),
]
"""Failures in answers with status 200, and what the client is told of them."""


async def reports(path, error, mode, **headers):
    """Ask a server that reports an error with status 200: whole, or as the first event."""

    async def server(reader, writer):
        while request := await read_request(reader):
            streams = b'"stream":true' in request
            role = json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            answer = (
                events(role, json.dumps(error), "[DONE]") if streams else http(error, **headers)
            )
            writer.write(answer)

    async with gateway(f"stream={mode or 'window'}", model=server) as app:
        body = {**BODIES[path], "stream": bool(mode)}
        return await ask(app, path, body, x_waltzrl_retract="yes")


@pytest.mark.promise(
    "Endpoints and upstreams",
    "An error with status 200 keeps its code and its reason, before the first text as a status "
    "and later as an event, in every API; a reason that fails the review is not told",
)
@each_path
@each_way
def test_a_failure_with_status_200_is_told_with_its_own_status_and_code(path, mode):
    response = asyncio.run(reports(path, LIMITED, mode))
    assert response.headers["content-type"] == "application/json"
    assert (response.status, response.error) == (429, LATE[0][1])
    assert response.json["error"]["code"] == "429"


@each_path
@pytest.mark.parametrize(("error", "message"), LATE[1:])
def test_a_failure_of_the_server_with_status_200_is_told_with_its_reason(path, error, message):
    response = asyncio.run(reports(path, error, "window"))
    assert (response.status, response.error) == (502, message)


@each_way
def test_a_failure_with_status_200_says_when_to_come_back(mode):
    error = {"error": {**LIMITED["error"], "metadata": {"headers": {"Retry-After": "7"}}}}
    response = asyncio.run(reports(CHAT, error, mode))
    assert (response.status, response.headers["retry-after"]) == (429, "7")


def test_the_header_that_says_when_to_come_back_counts_with_status_200_too():
    response = asyncio.run(reports(CHAT, LIMITED, False, Retry_After=7))
    assert (response.status, response.headers["retry-after"]) == (429, "7")


@pytest.mark.promise(
    "Endpoints and upstreams",
    "An error with status 200 keeps its code and its reason, before the first text as a status "
    "and later as an event, in every API; a reason that fails the review is not told",
)
@each_path
@pytest.mark.parametrize(("error", "message"), LATE)
def test_a_failure_in_the_middle_of_a_stream_is_an_event_with_its_reason(path, error, message):
    response = asyncio.run(ends_early("All is well. " * 99, path, json.dumps(error)))
    assert response.status == 200
    assert "All is well." in response.text
    data = [line for line in response.text.splitlines() if line.startswith('data: {"')]
    told = json.loads(data[-1].removeprefix("data: "))
    assert told["error"]["message"] == message


@pytest.mark.promise(
    "Endpoints and upstreams",
    "An error with status 200 keeps its code and its reason, before the first text as a status "
    "and later as an event, in every API; a reason that fails the review is not told",
)
@pytest.mark.parametrize("mode", [False, "window"])
def test_a_reason_that_fails_the_review_is_not_told(mode):
    error = {"error": {"message": f"cannot parse: {UNSAFE}", "code": 500}}
    response = asyncio.run(reports(CHAT, error, mode))
    assert (response.status, response.error) == (502, "the upstream answered 500")


def test_a_failure_with_status_200_that_passes_is_tried_again_and_a_fallback_may_take_it():
    async def work():
        answers = [http({"error": {"message": "m", "code": 503}}), http({"error": "m"})]
        async with site(answering(*[[answer] for answer in answers])) as server:
            upstream = HttpUpstream(server.url, Limits(), api_key=None, timeout_seconds=5)
            found = []
            for _ in answers:
                with pytest.raises(UpstreamError) as raised:
                    await upstream.complete({"model": "m"}, None)
                found.append((raised.value.status, raised.value.is_down))
            return found

    assert asyncio.run(work()) == [(503, True), (502, False)]


def test_the_gateways_key_is_hidden_in_a_failure_with_status_200():
    async def work():
        answer = [http({"error": {"message": f"bad key {KEY}", "code": 401}})]
        async with site(answering(answer)) as server:
            upstream = HttpUpstream(server.url, Limits(), api_key=KEY, timeout_seconds=5)
            with pytest.raises(RequestError) as raised:
                await upstream.complete({"model": "m"}, None)
            return str(raised.value)

    assert asyncio.run(work()) == "the upstream answered 401: bad key [key]"
