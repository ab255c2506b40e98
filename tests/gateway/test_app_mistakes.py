"""A mistake of ours, or a request made to find one: what leaves, and what is logged."""

import asyncio
import json
import logging

import pytest

from support.small_gateway import BODIES, CHAT, GUARDRAIL, REVIEW, ask, chat, with_gateway
from waltzrl.agents import RulesReviewer, load_wording
from waltzrl.agents.rules import load_rulebook
from waltzrl.collaboration import guarded
from waltzrl.foundation.logs import TextLines
from waltzrl.gateway.access import AccessControl, KeyRing
from waltzrl.gateway.app import App
from waltzrl.gateway.exchange import Assignment, Bundle, ReplyDetails, UpstreamDelta
from waltzrl.gateway.gateway import DecisionLog, Gateway, SingleBundle
from waltzrl.gateway.limits import Limits
from waltzrl.gateway.metrics import GatewayMetrics
from waltzrl.gateway.named_policies import PolicyChooser
from waltzrl.gateway.stream_modes import StreamMode

SECRET = "words of the draft"
REVIEWED = {REVIEW: {"reply": "x"}, GUARDRAIL: {"texts": ["x"], "input_type": "response"}}


class Mistaken:
    """An upstream with a mistake in it."""

    async def complete(self, body, bearer, received=None):
        raise RuntimeError(SECRET)

    async def stream(self, body, bearer):
        yield UpstreamDelta(text="Hello.")
        await sent()
        raise RuntimeError(SECRET)


class Unwritable:
    """An upstream whose reply has a part that cannot be written."""

    async def stream(self, body, bearer):
        yield UpstreamDelta(text="Hello.")
        await sent()
        yield UpstreamDelta(finish="stop", details=ReplyDetails(system_fingerprint=object()))


async def sent():
    """Let the event loop send what waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def mistaken_app(mode=StreamMode.BUFFER, upstream=None):
    """Put a gateway together around a mistake."""
    rules = RulesReviewer(load_rulebook())
    bundle = Bundle(
        id="test",
        stage=1,
        pattern=guarded,
        reviewer=rules,
        wording=load_wording("plain"),
        upstream=upstream or Mistaken(),
        rules=rules,
        stream_mode=mode,
    )
    book = DecisionLog(None, [])
    return App(
        Gateway(selector=SingleBundle(Assignment(bundle)), decisions=book),
        AccessControl(KeyRing(None), Limits()),
        policies=PolicyChooser({}, is_open=True),
        metrics=GatewayMetrics({}),
        checks={},
    )


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("path", BODIES)
def test_a_mistake_of_ours_is_told_without_a_word_of_the_draft_and_logged_once(path, n, caplog):
    body = BODIES[path] | ({"n": n} if path == CHAT else {})
    response = asyncio.run(ask(mistaken_app(), path, body))
    assert response.status == 500
    assert response.headers["x-request-id"] in response.error
    assert SECRET not in response.text
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "exception=" in TextLines().format(caplog.records[0])
    assert SECRET not in TextLines().format(caplog.records[0])


@pytest.mark.parametrize("path", BODIES)
def test_a_mistake_before_the_first_text_of_a_stream_is_told_as_without_a_stream(path, caplog):
    response = asyncio.run(ask(mistaken_app(), path, BODIES[path] | {"stream": True}))
    assert (response.status, response.whole) == (500, True)
    assert response.headers["x-request-id"] in response.error
    assert SECRET not in response.text
    assert len(caplog.records) == 1
    assert SECRET not in TextLines().format(caplog.records[0])


@pytest.mark.parametrize("path", BODIES)
def test_a_mistake_in_a_stream_ends_it_with_an_error(path, caplog):
    response = asyncio.run(
        ask(mistaken_app(StreamMode.AUDIT), path, BODIES[path] | {"stream": True})
    )
    assert (response.status, response.whole) == (200, True)
    assert "Hello." in response.text
    assert response.headers["x-request-id"] in response.text
    assert SECRET not in response.text
    assert len(caplog.records) == 1
    assert SECRET not in TextLines().format(caplog.records[0])


def test_a_mistake_after_the_first_text_breaks_the_reply_off(caplog):
    response = asyncio.run(chat(mistaken_app(StreamMode.AUDIT, Unwritable()), stream=True))
    assert (response.status, response.whole) == (200, False)
    assert "Hello." in response.text
    assert SECRET not in response.text
    assert len(caplog.records) == 1
    assert SECRET not in TextLines().format(caplog.records[0])


@pytest.mark.parametrize("path", [*BODIES, REVIEW, GUARDRAIL])
def test_no_depth_of_nesting_is_a_mistake_of_ours(path):
    body = json.dumps(BODIES.get(path) or BODIES[CHAT] | REVIEWED[path])
    deep = ["[" * depth + "]" * depth for depth in (*range(1, 1_100, 5), 100_000)]

    async def work(app):
        raws = [f'{body[:-1]}, "deep": {value}}}'.encode() for value in deep]
        return [(await ask(app, path, raw)).status for raw in raws]

    statuses = with_gateway(work)
    assert set(statuses) <= {200, 400}
    assert statuses[-1] == 400
