"""A reviewing model that cannot review is found while the gateway starts."""

import asyncio
import json
import logging
from dataclasses import replace

import pytest

from support.openai_server import serving
from support.small_gateway import ask, chat, gateway
from support.timing import run_on_fake_time, until
from waltzrl.agents import RulesReviewer
from waltzrl.agents.self_test import REPLIES, self_test
from waltzrl.build.reviewer_check import ReviewerCheck
from waltzrl.config.gateway import BundleRecipe, FeedbackConfig, UpstreamConfig
from waltzrl.errors import InputError, PolicyError
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Feedback
from waltzrl.rules import load_rulebook
from waltzrl.serving.health import OK, Health

RIGHT = {reply.reply + reply.request: reply for reply in REPLIES.values()}


class Knowing:
    """Gives each reply of the self-test its labels."""

    async def review(self, prompt, reply):
        example = RIGHT[reply.text + prompt.request]
        return Feedback(unsafe=example.unsafe, overrefuse=example.overrefuse, risk=0.5)


class Saying:
    """Says the same of everything; or fails, or never ends."""

    def __init__(self, says):
        self.says = says

    async def review(self, prompt, reply):
        if isinstance(self.says, Exception):
            raise self.says
        if self.says is None:
            await asyncio.Event().wait()
        return self.says


ALL_UNSAFE = Feedback(unsafe=True, overrefuse=False)
SAFE = Feedback(unsafe=False, overrefuse=False)
UNREADABLE = Feedback(unsafe=False, overrefuse=False, well_formed=False)


@pytest.mark.parametrize(
    ("says", "outcome"),
    [
        (UNREADABLE, "unreadable"),
        (PolicyError("down: bread", reason="HTTP 503"), "failed: HTTP 503"),
        (InputError("no chat template"), "failed"),
        (None, "timeout"),
    ],
)
def test_the_cause_is_told_for_a_reviewer_that_cannot_review(says, outcome):
    result = run_on_fake_time(self_test(Saying(says)))
    assert set(result.outcomes.values()) == {outcome}
    assert not result.can_review
    assert result.failures.startswith(f"safe reply: {outcome}; unsafe reply: {outcome}")


def test_a_reviewer_that_calls_everything_unsafe_cannot_review():
    both = replace(ALL_UNSAFE, overrefuse=True)  # as SmolLM2-135M does
    assert not run_on_fake_time(self_test(Saying(both))).can_review
    result = run_on_fake_time(self_test(Saying(ALL_UNSAFE)))
    assert not result.can_review
    assert result.failures == "; ".join(
        f"{name}: called unsafe" for name in ("safe reply", "right refusal", "over-refusal")
    )
    over = Feedback(unsafe=False, overrefuse=True)
    assert run_on_fake_time(self_test(Saying(over))).can_review


def test_a_reviewer_that_knows_passes_and_one_that_approves_all_does_not():
    assert run_on_fake_time(self_test(Knowing())).failures == ""
    result = run_on_fake_time(self_test(Saying(SAFE)))
    assert result.can_review
    assert result.failures == "unsafe reply: called safe; over-refusal: called safe"
    assert not result.probabilities


def test_the_rules_pass_but_for_the_over_refusal():
    rules = RulesReviewer(load_rulebook())
    result = run_on_fake_time(self_test(rules))
    assert result.failures == "over-refusal: called safe"


def check(agent, on_failure="refuse", timeout_ms=2000.0):
    recipe = BundleRecipe(
        upstream=UpstreamConfig(url="http://127.0.0.1:9/v1"),
        stage=2,
        feedback=FeedbackConfig(model="judge"),
        on_failure=on_failure,
        review_timeout_ms=timeout_ms,
    )
    return ReviewerCheck(agent, recipe)


@pytest.mark.parametrize(
    ("says", "on_failure", "status"),
    [
        (UNREADABLE, "refuse", "down"),
        (UNREADABLE, "rules", "degraded"),
        (UNREADABLE, "serve", "degraded"),
        (ALL_UNSAFE, "rules", "down"),  # a review that failed is another matter
    ],
)
def test_a_gateway_that_would_refuse_everything_is_not_ready(says, on_failure, status):
    checked = check(Saying(says), on_failure)
    assert checked.health() == Health("down", "self-test under way")

    async def once():
        running = asyncio.create_task(checked.run())
        await until(lambda: checked.health().detail != "self-test under way")
        running.cancel()

    run_on_fake_time(once())
    health = checked.health()
    assert health.status == status
    assert health.detail.startswith("safe reply: ")


def test_it_is_tested_again_until_it_can_review(caplog):
    agent = Saying(PolicyError("not started", reason="connection failed"))
    checked = check(agent)

    async def starts_later():
        running = asyncio.create_task(checked.run())
        await asyncio.sleep(100)
        assert checked.health().status == "down"
        agent.review = Knowing().review
        await running

    caplog.set_level(logging.INFO)
    run_on_fake_time(starts_later())
    assert checked.health() == OK
    assert all(checked.passed.values())
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "the feedback model failed its self-test",
        "the feedback model passed its self-test",
    ]


def test_a_reviewer_slower_than_the_time_limit_is_told():
    checked = check(Knowing(), timeout_ms=1e-6)
    run_on_fake_time(checked.run())
    assert checked.health().status == "degraded"
    assert "review_timeout_ms allows" in checked.health().detail


def labels(messages):
    """A model on a server that reviews the self-test rightly."""
    text = messages[-1].content
    found = next(r for r in REPLIES.values() if r.reply in text and r.request in text)
    return json.dumps({"unsafe": found.unsafe, "overrefuse": found.overrefuse})


@pytest.mark.parametrize(
    ("says", "status", "passed"),
    [(labels, 200, 1.0), (lambda _: "Hi! How can I help you?", 503, 0.0)],
)
def test_readyz_log_and_metric_tell_what_the_self_test_showed(caplog, says, status, passed):
    async def start(server):
        options = ["stage=2", "feedback.model=judge", f"feedback.server={server.base_url}"]
        async with gateway(*options) as app:
            await chat(app, "echo")  # requests do not wait for it, and the upstream is reached

            await until(lambda: "self-test" in caplog.text)
            ready = await ask(app, "/readyz", method="GET")
            return ready, (await ask(app, "/metrics", method="GET")).text

    caplog.set_level(logging.INFO)
    with serving({"judge": ScriptedPolicy(says)}) as server:
        ready, metrics = asyncio.run(start(server))
    reviewer = ready.json["checks"]["reviewer"]
    assert ready.status == status
    assert f'waltzrl_self_test_passed{{reply="unsafe reply"}} {passed}' in metrics
    if passed:
        assert reviewer == {"status": "ok", "detail": ""}
        assert "the feedback model passed its self-test" in caplog.messages
    else:
        assert "unsafe reply: unreadable" in reviewer["detail"]
        assert any("failed its self-test: safe reply: unreadable" in m for m in caplog.messages)
