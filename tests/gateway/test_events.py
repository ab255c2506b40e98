"""What the gateway logs: its events, with the request's id, and never a word of content."""

import asyncio
import io
import json
import logging
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.small_gateway import BODIES, CHAT, UNSAFE, Model, ask, chat, gateway
from support.small_site import HANG_UP, events, http, read_request, site, words
from support.timing import FakeClock
from waltzrl.agents.breaker import Breaker
from waltzrl.foundation.logs import JsonLines, TextLines
from waltzrl.gateway.upstream import FAILURES, Contact


@contextmanager
def logged():
    """Yield a list that gets every line of ours, as decoded JSON, at the lowest level."""
    stream, text = io.StringIO(), io.StringIO()
    ours = logging.getLogger("waltzrl")
    handlers = [logging.StreamHandler(stream), logging.StreamHandler(text)]
    for handler, formatter in zip(handlers, (JsonLines(), TextLines()), strict=True):
        handler.setFormatter(formatter)
        ours.addHandler(handler)
    level = ours.level
    ours.setLevel(logging.DEBUG)
    found = []
    try:
        yield found
    finally:
        ours.setLevel(level)
        for handler in handlers:
            ours.removeHandler(handler)
        found += [json.loads(line) for line in stream.getvalue().splitlines()]
        found.append(text.getvalue())


def lines_of(work, *overrides, model=None):
    """Return the lines that `work(app)` leads to, without the text format's."""

    async def run():
        async with gateway(*overrides, model=model) as app:
            await work(app)

    with logged() as found:
        asyncio.run(run())
    return found[:-1]


def messages(found, start):
    return [line for line in found if line["message"].startswith(start)]


@pytest.mark.promise(
    "Logs", "Failures of the upstream, breaker states, revised and refused replies are logged"
)
@pytest.mark.parametrize(("model", "decision"), [("unsafe", "revised"), ("stubborn", "refused")])
def test_a_reply_that_was_changed_is_logged_with_its_reason_and_request(model, decision):
    found = lines_of(lambda app: chat(app, model, x_request_id="shop-17"))
    (line,) = messages(found, "the reply was")
    assert line["message"] == f"the reply was {decision}"
    assert (line["level"], line["request_id"], line["reason"]) == ("info", "shop-17", "unsafe")
    assert line["rules"]
    assert line["milliseconds"] > 0


def test_a_draft_that_is_returned_leaves_no_line():
    assert messages(lines_of(chat), "the reply") == []


@pytest.mark.promise(
    "Logs", "Failures of the upstream, breaker states, revised and refused replies are logged"
)
@pytest.mark.parametrize(("model", "status"), [("busy", 429), ("broken", 500)])
def test_a_failure_of_the_upstream_has_status_kind_and_time(model, status):
    class Broken(Model):
        def answer(self, body, path):
            if path != "/models" and body["model"] == "broken":
                return http({"error": {"message": "no"}}, 500)
            return super().answer(body, path)

    found = lines_of(lambda app: chat(app, model, x_request_id="shop-17"), model=Broken())
    (upstream,) = messages(found, "a request to the upstream failed")
    (request,) = messages(found, "the request failed")
    assert (upstream["status"], upstream["request_id"]) == (status, "shop-17")
    assert upstream["milliseconds"] > 0
    assert request["reason"] == ("rate_limit" if status == 429 else "upstream")


def test_an_upstream_that_goes_and_comes_back_is_logged_once_each():
    with logged() as found:
        contact = Contact(clock=FakeClock())
        contact.succeeded()
        for _ in range(2 * FAILURES):
            contact.failed("unreachable")
        contact.succeeded()
        contact.succeeded()
    said = [(line["message"], line.get("cause")) for line in found[:-1]]
    assert said == [
        ("the upstream answers", None),
        ("the upstream is down", "unreachable"),
        ("the upstream answers", None),
    ]


@pytest.mark.promise(
    "Logs", "Failures of the upstream, breaker states, revised and refused replies are logged"
)
def test_a_breaker_logs_each_change_of_its_state():
    with logged() as found:
        breaker = Breaker("feedback", failures=1, clock=FakeClock())
        with breaker.attempt() as attempt:
            attempt.succeeded = False
        breaker.close()
    assert [(line["breaker"], line["state"]) for line in found[:-1]] == [
        ("feedback", "open"),
        ("feedback", "closed"),
    ]


class Quoting:
    """A server of which every answer, error or not, quotes the secret and the request."""

    def __init__(self, secret):
        self.secret = secret

    async def __call__(self, reader, writer):
        while raw := await read_request(reader):
            path = raw.split()[1].decode()
            body = json.loads(raw.partition(b"\r\n\r\n")[2] or b"{}")
            if path.endswith("/models"):
                writer.write(http({"data": []}))
                continue
            answer = self.answer(str(body.get("model")), stream=bool(body.get("stream")))
            if answer == HANG_UP:
                return
            writer.write(answer)

    def answer(self, model, *, stream):
        said = f"{self.secret} {UNSAFE if model == 'unsafe' else ''}"
        if model.startswith("status-"):
            return http({"error": {"message": said, "code": said}}, int(model[7:]))
        if model == "garbage":
            return http(said.encode())
        if model == "away":
            return HANG_UP
        if stream:
            return events(words(said), words("", "stop"), "[DONE]", whole=model != "cut")
        message = {"role": "assistant", "content": said}
        return http({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


MODELS = ("fine", "unsafe", "status-400", "status-500", "status-503", "garbage", "away", "cut")


@pytest.mark.promise("Logs", "No log line holds a word of a prompt or a reply")
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    secret=st.text("abcdefghijklmnopqrstuvwxyzäöü", min_size=12, max_size=20).map("zq{}".format),
    model=st.sampled_from(MODELS),
    path=st.sampled_from(sorted(BODIES)),
    stream=st.booleans(),
    stage=st.sampled_from([1, 2]),
)
def test_no_word_of_prompt_or_reply_is_in_any_line(secret, model, path, stream, stage):
    body = BODIES[path] | {"model": model, "user": secret, "metadata": {"note": secret}}
    body |= {"stream": True} if stream else {}
    asked = {"role": "user", "content": f"{secret} and {UNSAFE}"}
    body |= {"input": asked["content"]} if "input" in body else {"messages": [asked]}

    async def work():
        server = Quoting(secret)
        async with site(server) as reviewer:
            feedback = ("feedback.model=judge", f"feedback.server={reviewer.url}")
            overrides = (f"stage={stage}", *feedback, "upstream.timeout_seconds=0.5")
            async with gateway(*overrides, model=server) as app:
                await ask(app, path, body)

    with logged() as found:
        asyncio.run(work())
    text = found.pop()
    assert secret not in text
    assert secret not in json.dumps(found, ensure_ascii=False)


def test_a_body_that_cannot_be_read_is_not_quoted():
    secret = "plugh-plugh-plugh"
    with logged() as found:
        asyncio.run(_ask_raw(f'{{"model": "{secret}", "messages": [{{"role": "{secret}"'.encode()))
    assert secret not in json.dumps(found)


async def _ask_raw(raw):
    async with gateway() as app:
        assert (await ask(app, CHAT, raw)).status == 400
