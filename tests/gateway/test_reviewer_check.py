"""A reviewing model that cannot review is found while the gateway starts."""

import asyncio
import json
import logging
from dataclasses import replace

import pytest

from support.openai_server import serving
from support.small_gateway import ask, chat, gateway
from support.timing import FakeClock, run_on_fake_time, until
from waltzrl.agents import RulesReviewer
from waltzrl.agents.breaker import Breaker
from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.self_test import CONTRASTS, REPLIES, self_test
from waltzrl.agents.settings import FeedbackConfig, ReviewConfig
from waltzrl.errors import InputError, PolicyError
from waltzrl.foundation.background import in_background
from waltzrl.gateway.health import OK, Health, report_readiness
from waltzrl.gateway.reviewer_check import ReviewerCheck
from waltzrl.gateway.settings import BundleRecipe, UpstreamConfig
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Feedback, Reply

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


COMPLYING = {each.complying for each in CONTRASTS} | {REPLIES["unsafe reply"].reply}


class Cautious:
    """Calls nothing unsafe, as with a high threshold; its risks are what it knows of a reply."""

    def __init__(self, risk):
        self.risk = risk

    async def review(self, prompt, reply):
        refused = reply.text.startswith("I'm sorry")
        over = refused and "Python" in prompt.request
        risk = self.risk(prompt.request, reply.text)
        return Feedback(unsafe=False, overrefuse=over, risk=risk)


def seen(_request, reply):
    """The risks of a reviewer that sees what is bad, below its threshold."""
    return 0.3 if reply in COMPLYING else 0.05


@pytest.mark.promise(
    "Do no harm",
    "A reviewer with a cautious threshold passes the self-test by its risks; one that is "
    "constant, inverted or reads only requests does not",
)
def test_a_reviewer_below_whose_threshold_bad_replies_are_told_from_good_ones_passes():
    result = run_on_fake_time(self_test(Cautious(seen)))
    assert (result.failures, result.separation) == ("", 1.0)
    checked = check(Cautious(seen))
    run_on_fake_time(first_result(checked))
    assert checked.health() == OK


@pytest.mark.promise(
    "Do no harm",
    "A reviewer with a cautious threshold passes the self-test by its risks; one that is "
    "constant, inverted or reads only requests does not",
)
@pytest.mark.parametrize(
    ("risk", "separation"),
    [
        (lambda _request, _reply: 0.2, 0.5),  # constant
        (lambda request, reply: 0.3 - seen(request, reply), 0.0),  # inverted
        # It reads requests alone: 7 bad replies tie with the 7 good ones to the same requests, and
        # are above the 2 to a harmless one: (7 * 7 / 2 + 7 * 2) / (7 * 9).
        (lambda request, _reply: 0.05 if "Python" in request else 0.3, 0.611),
        (lambda _request, reply: len(reply) / 1000, 0.540),  # longer replies are worse
        (lambda request, reply: seen(request, reply) / 10, 1.0),  # far from any threshold
        (lambda _request, reply: None if reply in COMPLYING else 0.1, None),
    ],
)
def test_a_reviewer_whose_risks_do_not_tell_bad_replies_from_good_ones_fails(risk, separation):
    result = run_on_fake_time(self_test(Cautious(risk)))
    assert result.failures == "unsafe reply: called safe"
    assert result.separation == (separation and pytest.approx(separation, abs=1e-3))


def test_a_reviewer_that_fails_on_the_further_replies_is_not_told_apart():
    class Breaking(Cautious):
        async def review(self, prompt, reply):
            if reply.text == CONTRASTS[0].safe:
                raise PolicyError("down", reason="HTTP 503")
            return await super().review(prompt, reply)

    result = run_on_fake_time(self_test(Breaking(seen)))
    assert result.failures == "unsafe reply: called safe"


def check(
    agent,
    on_failure="refuse",
    timeout_ms=2000.0,
    *,
    breaker=None,
    self_test=True,
    on_overload=None,
):
    recipe = BundleRecipe(
        upstream=UpstreamConfig(url="http://127.0.0.1:9/v1"),
        stage=2,
        feedback=FeedbackConfig(model="judge", self_test=self_test),
        on_failure=on_failure,
        review=ReviewConfig(on_overload=on_overload),
        review_timeout_ms=timeout_ms,
    )
    return ReviewerCheck(agent, recipe, breaker or Breaker())


async def first_result(checked):
    """Run a check until its first self-test is done."""
    async with in_background(checked.run()):
        await until(lambda: checked.health().detail != "self-test under way")


@pytest.mark.promise(
    "Do no harm",
    "A reviewer that cannot review is found at the start: log, `/readyz` and metric say so, and "
    "why",
)
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

    run_on_fake_time(first_result(checked))
    health = checked.health()
    assert health.status == status
    assert health.detail.startswith("safe reply: ")


@pytest.mark.promise("Do no harm", "A reviewer that starts later than the gateway is tested again")
def test_it_is_tested_again_until_it_can_review(caplog):
    agent = Saying(PolicyError("not started", reason="connection failed"))
    checked = check(agent)

    async def starts_later():
        async with in_background(checked.run()):
            await asyncio.sleep(100)
            assert checked.health().status == "down"
            agent.review = Knowing().review
            await asyncio.sleep(60)

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
    run_on_fake_time(first_result(checked))
    assert checked.health().status == "degraded"
    assert "review_timeout_ms allows" in checked.health().detail


def test_a_feedback_server_whose_url_lacks_v1_is_told():
    checked = check(Saying(PolicyError("not found", reason="HTTP 404")))
    run_on_fake_time(first_result(checked))
    assert checked.health().status == "down"
    assert "which probably has to end in /v1" in checked.health().detail


def fail(breaker, cause):
    for _ in range(5):
        with breaker.attempt() as attempt:
            attempt.fail(cause)


@pytest.mark.promise(
    "Do no harm",
    "A reviewer that fails after the start is told by `/readyz`, with the cause, until it can "
    "review again",
)
@pytest.mark.parametrize(
    ("on_failure", "status"), [("refuse", "down"), ("rules", "degraded"), ("serve", "degraded")]
)
def test_a_reviewer_that_fails_after_the_start_is_told_until_a_self_test_passes(on_failure, status):
    agent = Knowing()
    breaker = Breaker(clock=lambda: asyncio.get_running_loop().time())
    checked = check(agent, on_failure, breaker=breaker)

    async def work():
        async with in_background(checked.run()):
            await until(lambda: checked.health() == OK)
            agent.review = Saying(PolicyError("it broke", reason="HTTP 500")).review
            fail(breaker, "failed: HTTP 500")
            first = checked.health()
            await asyncio.sleep(600)  # half open in between, without traffic
            later = checked.health()
            agent.review = Knowing().review
            await asyncio.sleep(60)
            return first, later, checked.health(), breaker.state

    first, later, *last = run_on_fake_time(work())
    assert first == Health(status, "circuit breaker open: failed: HTTP 500")
    assert later.status == status
    assert "safe reply: failed: HTTP 500" in later.detail
    assert last == [OK, "closed"]


@pytest.mark.parametrize(
    ("on_failure", "on_overload", "status"),
    [
        ("rules", "unavailable", "down"),
        ("refuse", "rules", "degraded"),
        ("refuse", "pass", "degraded"),
    ],
)
def test_of_a_reviewer_without_time_on_overload_says_whether_the_gateway_is_ready(
    on_failure, on_overload, status
):
    breaker = Breaker()
    checked = check(Knowing(), on_failure, breaker=breaker, on_overload=on_overload)
    run_on_fake_time(first_result(checked))
    fail(breaker, "timeout")
    assert checked.health() == Health(status, "circuit breaker open: timeout")


def test_without_a_self_test_the_next_review_after_a_while_decides():
    clock = FakeClock()
    breaker = Breaker(clock=clock)
    checked = check(Knowing(), breaker=breaker, self_test=False)
    run_on_fake_time(checked.run())
    assert (checked.health(), checked.passed) == (OK, {})
    fail(breaker, "timeout")
    assert checked.health() == Health("down", "circuit breaker open: timeout")
    clock.now += 60  # it may get traffic, of which one request probes
    assert checked.health() == Health("degraded", "circuit breaker half_open: timeout")
    with breaker.attempt() as attempt:
        attempt.succeeded = True
    assert checked.health() == OK


def test_a_slow_self_test_does_not_close_the_breaker():
    breaker = Breaker()
    checked = check(Knowing(), timeout_ms=1e-6, breaker=breaker)
    fail(breaker, "timeout")
    run_on_fake_time(first_result(checked))
    assert breaker.state == "open"
    assert "review_timeout_ms allows" in checked.health().detail


def labels(messages):
    """A model on a server that reviews the self-test rightly."""
    text = messages[-1].content
    found = next(r for r in REPLIES.values() if r.reply in text and r.request in text)
    return json.dumps({"unsafe": found.unsafe, "overrefuse": found.overrefuse})


@pytest.mark.promise(
    "Do no harm",
    "A reviewer that cannot review is found at the start: log, `/readyz` and metric say so, and "
    "why",
)
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


class Broken:
    """A feedback model that can be broken and mended."""

    works = True

    async def reply(self, messages, sampling):
        if not self.works:
            raise PolicyError("broken")
        return Reply(text=labels(messages) if "pipe bomb" in messages[-1].content else SAFE_LABELS)


SAFE_LABELS = '{"unsafe": false, "overrefuse": false}'


@pytest.mark.promise(
    "Do no harm",
    "A reviewer that fails after the start is told by `/readyz`, with the cause, until it can "
    "review again",
)
def test_readyz_follows_a_server_that_starts_to_fail_and_recovers():
    async def work(server, model):
        options = ["stage=2", "feedback.model=judge", f"feedback.server={server.base_url}"]
        async with gateway(*options) as app:
            await until(lambda: report_readiness(app.checks)[0] == 200)
            model.works = False
            for _ in range(5):
                await chat(app, "What is bread made of?")
            failed = await ask(app, "/readyz", method="GET")
            model.works = True
            await until(lambda: report_readiness(app.checks)[0] == 200)
            return failed

    model = Broken()
    with serving({"judge": model}) as server:
        failed = asyncio.run(work(server, model))
    assert failed.status == 503
    reviewer = failed.json["checks"]["reviewer"]
    assert reviewer["status"] == "down"
    assert "circuit breaker open: failed: HTTP 400" in reviewer["detail"]
