"""What clients are told when the reviewer has no time for a reply: 503, and never a refusal."""

import asyncio
import importlib
import sys

import aiohttp
import openai
import pytest

from support.reviewer_package import NAME, install_reviewer
from support.small_gateway import (
    BODIES,
    CHAT,
    COMPLETIONS,
    GUARDRAIL,
    HELLO,
    MESSAGES,
    RESPONSES,
    REVIEW,
    Model,
    ask,
    chat,
    gateway,
    listening,
    with_gateway,
)
from support.timing import until
from waltzrl.agents.classifier import MOST_AT_ONCE
from waltzrl.records import CANNED_REFUSAL

HELD_BACK = """
import threading

from waltzrl.agents.classifier import ThresholdPoint, ExchangeProbabilities

may_go_on = threading.Event()
batches = []


class HeldBack:
    name = "words@0"
    curve = (ThresholdPoint(false_alarms=0.05, threshold=0.5, recall=0.9, serves=True),)
    languages = ("en",)

    def classify(self, exchanges):
        batches.append([request for request, _ in exchanges])
        may_go_on.wait(60)
        return [ExchangeProbabilities(harmful=0.1, unsafe=0.1, refuses=0.1) for _ in exchanges]


def open_classifier():
    return HeldBack()
"""
"""A classifier that waits until a test lets it go on, and calls everything safe."""
STAGE_2 = ("stage=2", f"feedback.model=reviewer:{NAME}", "feedback.self_test=false")
SHORT, LONG = "review_timeout_ms=50", "review_timeout_ms=60000"
TOLD = "the reviewer had no time for the reply ({}); try again in {} s"
LONG_DRAFT = "Knead the dough for ten minutes, and let it rest. " * 100


@pytest.fixture
def reviewer(tmp_path, monkeypatch):
    """The installed classifier's module; its first batch is held back."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install_reviewer(tmp_path, HELD_BACK)
    module = importlib.import_module("waltzrl_words")
    yield module
    module.may_go_on.set()
    sys.modules.pop("waltzrl_words", None)


class Baker(Model):
    """Drafts at length."""

    def draft(self, body):
        return LONG_DRAFT


async def metrics(app):
    return (await ask(app, "/metrics", method="GET")).text


@pytest.mark.promise(
    "Do no harm",
    "A reply for which the reviewer had no time is 503 with Retry-After in every API and in "
    "streams, never a refusal",
)
def test_a_reply_that_nobody_reviewed_in_time_is_503_in_every_api(reviewer):
    async def work(app):
        return {path: await ask(app, path, body) for path, body in BODIES.items()}, await metrics(
            app
        )

    responses, counted = with_gateway(work, *STAGE_2, SHORT)
    assert [response.status for response in responses.values()] == [503] * 4
    assert [response.headers["retry-after"] for response in responses.values()] == ["1"] * 4
    errors = {path: response.json["error"] for path, response in responses.items()}
    assert {error["message"] for error in errors.values()} == {TOLD.format("timeout", 1)}
    for path in (CHAT, COMPLETIONS, RESPONSES):
        assert (errors[path]["type"], errors[path]["code"]) == ("server_error", "unreviewed")
    assert responses[MESSAGES].json["type"] == "error"
    assert errors[MESSAGES]["type"] == "overloaded_error"
    assert 'waltzrl_errors_total{api="chat",kind="unreviewed"} 1.0' in counted
    assert 'waltzrl_review_failures_total{cause="timeout"} 4.0' in counted
    assert 'decision="refused"' not in counted


def test_what_was_asked_to_be_reviewed_is_503_too(reviewer):
    asked = {
        REVIEW: {"prompt": "hello", "reply": "Hi."},
        GUARDRAIL: {"texts": ["Hi."], "input_type": "response", "request_data": {}},
        "/v1/moderations": {"input": "hello"},
    }

    async def work(app):
        return [await ask(app, path, body) for path, body in asked.items()]

    responses = with_gateway(work, *STAGE_2, SHORT)
    assert [response.status for response in responses] == [503] * 3
    assert [response.headers["retry-after"] for response in responses] == ["1"] * 3
    assert {response.json["error"]["code"] for response in responses} == {"unreviewed"}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_stream_of_which_nothing_was_sent_is_503(reviewer, path):
    async def work(app):
        return await ask(app, path, BODIES[path] | {"stream": True})

    response = with_gateway(work, *STAGE_2, SHORT)
    assert (response.status, response.headers["retry-after"]) == (503, "1")


@pytest.mark.promise(
    "Do no harm",
    "A reply for which the reviewer had no time is 503 with Retry-After in every API and in "
    "streams, never a refusal",
)
@pytest.mark.parametrize(
    ("path", "told"),
    [
        (CHAT, '"code":"unreviewed"'),
        (RESPONSES, '"code":"unreviewed"'),
        (MESSAGES, '"type":"overloaded_error"'),
    ],
)
def test_a_stream_that_has_begun_ends_with_an_error_event(reviewer, path, told):
    async def work(app):
        return await ask(app, path, BODIES[path] | {"stream": True})

    response = with_gateway(work, *STAGE_2, SHORT, "stream=window", model=Baker())
    assert response.status == 200
    assert "Knead the dough" in response.text
    assert told in response.text
    assert TOLD.format("timeout", 1) in response.text
    assert CANNED_REFUSAL not in response.text


@pytest.mark.promise(
    "Do no harm",
    "The operator may choose that the rules decide, or that it is sent and recorded as unreviewed",
)
@pytest.mark.parametrize(
    ("setting", "verdict"),
    [
        ("review.on_overload=rules", "safe"),
        ("review.on_overload=pass", "unreviewed"),
        ("on_failure=rules", "safe"),
        ("on_failure=serve", "unreviewed"),
        ("observe_only=true", "unreviewed"),
    ],
)
def test_the_operator_may_choose_that_the_reply_is_sent_and_recorded(reviewer, setting, verdict):
    async def work(app):
        return await chat(app), await metrics(app)

    response, counted = with_gateway(work, *STAGE_2, SHORT, setting)
    assert response.status == 200
    assert response.json["choices"][0]["message"]["content"] == "You said hello."
    labels = f'decision="draft",draft_verdict="{verdict}",final_verdict="{verdict}",stage="2"'
    assert f"{labels}}} 1.0" in counted
    assert 'waltzrl_review_failures_total{cause="timeout"} 1.0' in counted


def test_the_audit_log_tells_an_overload_from_a_refusal(reviewer, tmp_path):
    async def work(app):
        return await chat(app)

    with_gateway(work, *STAGE_2, SHORT, f"audit.folder={tmp_path / 'log'}")
    (record,) = [
        line
        for path in (tmp_path / "log").glob("*.jsonl")
        for line in path.read_text().splitlines()
        if '"event":"decision"' in line
    ]
    assert '"decision":"error","reason":"unreviewed"' in record


def test_a_stream_that_is_sent_before_its_review_is_whole_and_recorded_as_unreviewed(reviewer):
    async def work(app):
        return await chat(app, stream=True), await metrics(app)

    response, counted = with_gateway(work, *STAGE_2, SHORT, "stream=audit")
    assert response.status == 200
    assert "error" not in response.text
    assert 'draft_verdict="unreviewed"' in counted


@pytest.mark.promise("Do no harm", "A draft whose review would come too late is not paid for")
def test_while_time_outs_have_opened_the_breaker_no_draft_is_paid_for(reviewer):
    model = Model()

    async def work(app):
        statuses = [(await chat(app)).status for _ in range(5)]
        return statuses, await chat(app)

    statuses, last = with_gateway(work, *STAGE_2, SHORT, model=model)
    assert statuses == [503] * 5
    assert last.status == 503
    assert "(breaker: timeout)" in last.error
    assert 1 < int(last.headers["retry-after"]) <= 60
    assert len(model.bodies) == 5


@pytest.mark.promise(
    "Do no harm",
    "A review whose client left is not computed; those that wait are computed in batches",
)
def test_the_review_of_a_client_that_left_is_not_computed(reviewer):
    model = Model()

    async def work(app):
        async def asks(text, gone=None):
            body = {"model": "echo", "messages": [{"role": "user", "content": text}]}
            return await ask(app, CHAT, body, gone=gone)

        gone = asyncio.Event()
        first = asyncio.create_task(asks("first"))
        await until(lambda: reviewer.batches)
        left = asyncio.create_task(asks("left", gone))
        await until(lambda: len(model.bodies) == 2)
        stays = asyncio.create_task(asks("stays"))
        await until(lambda: len(model.bodies) == 3)
        gone.set()
        await left
        reviewer.may_go_on.set()
        return [(await task).status for task in (first, stays)]

    assert with_gateway(work, *STAGE_2, LONG, model=model) == [200, 200]
    assert reviewer.batches == [["first"], ["stays"]]


@pytest.mark.promise(
    "Do no harm",
    "A review whose client left is not computed; those that wait are computed in batches",
)
def test_sixty_four_clients_are_all_answered_in_batches(reviewer):
    async def asks(session, url):
        async with session.post(url, json=BODIES[CHAT]) as response:
            return response.status, response.headers["x-waltzrl-decision"]

    async def run():
        async with gateway(*STAGE_2, LONG) as app, listening(app) as (host, port):
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:
                url = f"http://{host}:{port}{CHAT}"
                tasks = [asyncio.create_task(asks(session, url)) for _ in range(64)]
                await until(lambda: app.access.admission.active == 64)
                reviewer.may_go_on.set()
                return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == [(200, "draft")] * 64
    sizes = [len(batch) for batch in reviewer.batches]
    assert sum(sizes) == 64
    assert max(sizes) == MOST_AT_ONCE


@pytest.mark.promise(
    "Do no harm",
    "A reply for which the reviewer had no time is 503 with Retry-After in every API and in "
    "streams, never a refusal",
)
def test_the_official_client_gets_an_error_that_it_may_retry(reviewer):
    async def run():
        async with gateway(*STAGE_2, SHORT) as app, listening(app) as (host, port):
            client = openai.AsyncOpenAI(
                base_url=f"http://{host}:{port}/v1", api_key="k", max_retries=0
            )
            async with client:
                with pytest.raises(openai.InternalServerError) as raised:
                    await client.chat.completions.create(model="echo", messages=HELLO)
                return raised.value

    error = asyncio.run(run())
    assert (error.status_code, error.code) == (503, "unreviewed")
    assert error.response.headers["retry-after"] == "1"
