import asyncio
import json

import pytest

from support.openai_server import serving
from support.timing import FakeClock, run_on_fake_time, settle
from waltzrl.agents import (
    ConversationAgent,
    FeedbackAgent,
    HybridReviewer,
    RulesReviewer,
    load_wording,
)
from waltzrl.agents.breaker import Breaker
from waltzrl.agents.failsafe import LOG_SECONDS, FailsafeReviewer, FailureLog
from waltzrl.agents.hybrid import CRITICAL
from waltzrl.agents.review_queue import ReviewQueue
from waltzrl.agents.rules import load_rulebook
from waltzrl.collaboration import guarded
from waltzrl.errors import OverloadError, PolicyError
from waltzrl.policies import RemotePolicy, Sampling, ScriptedPolicy
from waltzrl.records import CANNED_REFUSAL, Message, Prompt, Reply

WORDING = load_wording("labels_first")
RULES = RulesReviewer(load_rulebook())
CONTENT = '{"unsafe": false, "overrefuse": false}'
FLAGGED = '{"unsafe": true, "overrefuse": false, "reasoning": "", "feedback": "Leave it out."}'
HARMLESS = "How do I bake bread?"
CRIME = "How do I make a pipe bomb at home?"
COMPLIES = "Of course, gladly."
DECLINES = "Sorry, I can't help with that."
POLICIES = ("refuse", "rules", "serve")


def ask(text):
    return Prompt(id="p", messages=(Message(role="user", content=text),))


class Away:
    """A policy whose server is down."""

    def __init__(self):
        self.calls = 0

    async def reply(self, messages, sampling):
        self.calls += 1
        raise PolicyError("the connection failed: bread", reason="connection failed")


class Slow:
    """A policy that takes its time, and notices that nobody waits any longer."""

    cancelled = False

    async def reply(self, messages, sampling):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def failsafe(policy, on_failure="refuse", **options):
    agent = FeedbackAgent(policy, WORDING, Sampling())
    options = {"breaker": Breaker(), "budget_seconds": 5.0} | options
    return FailsafeReviewer(agent, RULES, on_failure=on_failure, **options)


def review(reviewer, request=HARMLESS, reply=COMPLIES):
    return run_on_fake_time(reviewer.review(ask(request), Reply(text=reply)))


def served(reviewer, request, draft, revision="A revision."):
    agent = ConversationAgent(ScriptedPolicy([draft, revision]), WORDING, Sampling())
    fail_open = reviewer.on_failure == "serve"
    said = run_on_fake_time(guarded(ask(request), agent, reviewer, fail_open=fail_open))
    return said.final.text


def test_the_request_for_a_crime_is_critical_to_the_rules():
    assert RULES.read(ask(CRIME), Reply(text=COMPLIES)).risk >= CRITICAL
    assert RULES.read(ask(CRIME), Reply(text=DECLINES)).risk < CRITICAL
    assert RULES.read(ask(HARMLESS), Reply(text=COMPLIES)).risk == 0


@pytest.mark.parametrize("revision", ["", " \n"])
def test_a_revision_without_text_is_replaced_by_a_refusal(revision):
    reviewer = failsafe(ScriptedPolicy([FLAGGED, CONTENT]))
    assert served(reviewer, HARMLESS, COMPLIES, revision) == CANNED_REFUSAL


@pytest.mark.parametrize("on_failure", POLICIES)
def test_the_review_of_a_model_that_answers_counts(on_failure):
    failures = []
    reviewer = failsafe(
        ScriptedPolicy([FLAGGED, CONTENT]), on_failure, on_review_failure=failures.append
    )
    assert review(reviewer).text == "Leave it out."
    assert not review(reviewer).asks_for_revision
    assert failures == []


@pytest.mark.promise(
    "Do no harm",
    "The log and the audit log name the cause of every reply that no model reviewed, without "
    "content",
)
@pytest.mark.parametrize(
    ("policy", "cause"),
    [
        (Away(), "failed"),
        (Slow(), "timeout"),
        (ScriptedPolicy(lambda _: "I think it is fine."), "unreadable"),
    ],
)
def test_each_failure_has_a_cause_of_its_own(policy, cause):
    failures = []
    feedback = review(failsafe(policy, on_review_failure=failures.append, budget_seconds=0.05))
    assert failures == [cause]
    assert not feedback.well_formed
    failure = "failed: connection failed" if cause == "failed" else cause
    assert feedback.failure == failure
    assert feedback.reasoning == f"the model did not review this reply ({failure})"


@pytest.mark.promise(
    "Do no harm", "What a reviewer wrote and nobody could read is kept where contents are kept"
)
def test_a_reply_that_cannot_be_read_is_kept_with_its_feedback():
    feedback = review(failsafe(ScriptedPolicy(lambda _: "I think it is fine.")))
    assert feedback.reply.text == "I think it is fine."
    assert review(failsafe(Away())).reply is None


@pytest.mark.promise(
    "Do no harm",
    "The log and the audit log name the cause of every reply that no model reviewed, without "
    "content",
)
def test_the_log_names_the_cause_and_no_content(caplog):
    review(failsafe(Away()))
    review(failsafe(ScriptedPolicy(lambda _: "I think bread is fine.")))
    assert caplog.messages == [
        "the feedback model did not review a reply: failed: connection failed",
        "the feedback model did not review a reply: unreadable",
    ]


def test_the_log_gets_one_line_for_many_failures(caplog):
    clock = [0.0]
    log = FailureLog(lambda: clock[0])
    for seconds in [0, 1, 1, 1, LOG_SECONDS]:
        clock[0] += seconds
        log.add("timeout", "timeout")
    log.add("breaker", "breaker")
    first = "the feedback model did not review a reply: timeout"
    assert caplog.messages == [
        first,
        f"{first}; 3 more since the last line",
        "the feedback model did not review a reply: breaker",
    ]


def test_a_review_out_of_time_is_cancelled():
    slow = Slow()
    review(failsafe(slow, budget_seconds=0.02))
    assert slow.cancelled


def test_who_goes_away_is_not_a_failure():
    breaker = Breaker(failures=1)
    reviewer = failsafe(Slow(), breaker=breaker)

    async def leave():
        waiting = asyncio.create_task(reviewer.review(ask(HARMLESS), Reply(text=COMPLIES)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await waiting

    with pytest.raises(asyncio.CancelledError):
        run_on_fake_time(leave())
    assert breaker.state == "closed"


def test_after_five_failures_the_model_is_left_alone():
    away, failures = Away(), []
    reviewer = failsafe(away, on_review_failure=failures.append)
    for _ in range(8):
        review(reviewer)
    assert away.calls == 5
    assert failures == ["failed"] * 5 + ["breaker"] * 3


def test_nobody_can_open_the_breaker_by_breaking_the_json():
    breaker = Breaker(failures=1)
    reviewer = failsafe(ScriptedPolicy(lambda _: '{"unsafe": maybe}'), breaker=breaker)
    for _ in range(3):
        assert not review(reviewer).well_formed
    assert breaker.state == "closed"


@pytest.mark.promise("Legal duties", "AI Act 15(4): it stays safe when something fails")
@pytest.mark.promise("Requirements", "WaltzRLSafetyWrapper, wrap_agent_response")
@pytest.mark.parametrize(
    ("on_failure", "request_text", "draft", "leaves"),
    [
        ("refuse", HARMLESS, COMPLIES, CANNED_REFUSAL),
        ("refuse", CRIME, COMPLIES, CANNED_REFUSAL),
        ("rules", HARMLESS, COMPLIES, COMPLIES),
        ("rules", HARMLESS, DECLINES, DECLINES),
        ("rules", CRIME, DECLINES, DECLINES),
        ("rules", CRIME, COMPLIES, CANNED_REFUSAL),
        ("serve", HARMLESS, COMPLIES, COMPLIES),
        ("serve", CRIME, COMPLIES, COMPLIES),
    ],
)
def test_what_leaves_when_the_model_is_away_is_policy(on_failure, request_text, draft, leaves):
    assert served(failsafe(Away(), on_failure), request_text, draft) == leaves


def test_feedback_without_the_model_says_so_and_names_the_rules_that_spoke():
    for on_failure in POLICIES:
        feedback = review(failsafe(Away(), on_failure), CRIME)
        assert (
            feedback.reasoning == "the model did not review this reply (failed: connection failed)"
        )
        assert not feedback.well_formed
        assert feedback.rules
        assert feedback.risk >= CRITICAL
    assert review(failsafe(Away(), "rules")).reasoning.endswith("the rules decided")


def test_broken_json_of_a_hybrid_does_not_pass_for_a_clean_review():
    agent = FeedbackAgent(ScriptedPolicy(['{"unsafe": tr']), WORDING, Sampling())
    hybrid = HybridReviewer(agent, RULES)
    reviewer = FailsafeReviewer(hybrid, RULES, breaker=Breaker(), budget_seconds=5.0)
    assert served(reviewer, HARMLESS, COMPLIES) == CANNED_REFUSAL


def test_a_real_server_that_dies_and_comes_back_is_asked_again():
    clock = [0.0]
    with serving({"judge": ScriptedPolicy(lambda _: CONTENT)}) as server:
        broken = (500, {}, json.dumps({"error": {"message": "out of memory"}}))
        server.first.extend([broken] * 6)
        breaker = Breaker(clock=lambda: clock[0])

        async def reviews():
            async with RemotePolicy(server.base_url, "judge", retries=0) as policy:
                reviewer = failsafe(policy, breaker=breaker)
                for seconds in [0] * 7 + [60, 30, 30, 0]:
                    clock[0] += seconds
                    feedback = await reviewer.review(ask(HARMLESS), Reply(text=COMPLIES))
                    yield feedback.reasoning

        async def all_of_them():
            return [reasoning async for reasoning in reviews()]

        reasonings = asyncio.run(all_of_them())
    failed, spared = (
        f"the model did not review this reply ({why})" for why in ("failed: HTTP 500", "breaker")
    )
    assert reasonings == [failed] * 5 + [spared] * 2 + [failed, spared, "", ""]
    assert len(server.requests) == 8


class Busy:
    """A policy whose server says that it has no capacity."""

    def __init__(self, reason):
        self.reason = reason

    async def reply(self, messages, sampling):
        raise PolicyError("try later", reason=self.reason)


def overload(policy, **options):
    """Return what a review without a reply in time raises."""
    with pytest.raises(OverloadError) as raised:
        review(failsafe(policy, on_overload="unavailable", **options))
    return raised.value


def test_a_review_out_of_time_is_an_overload_and_no_refusal():
    error = overload(Slow())
    assert error.reason == "timeout"
    assert str(error) == "no reviewer had time for the reply (timeout)"


@pytest.mark.parametrize("reason", ["HTTP 429", "HTTP 503", "HTTP 529"])
def test_a_server_that_says_it_is_busy_is_an_overload(reason):
    failures = []
    assert overload(Busy(reason), on_review_failure=failures.append).reason == (
        f"overloaded: {reason}"
    )
    assert failures == ["overloaded"]


def test_a_busy_server_gets_half_as_many_reviews_at_once():
    async def work():
        queue = ReviewQueue(8)
        reviewer = failsafe(Busy("HTTP 429"), queue=queue, on_overload="unavailable")
        told = await outcome(reviewer)
        reviewer.reviewer.policy = OneByOne()
        tasks = [asyncio.create_task(outcome(reviewer)) for _ in range(8)]
        await settle()
        waiting = queue.waiting
        for task in tasks:
            task.cancel()
        return told[0], waiting

    assert run_on_fake_time(work()) == ("overloaded: HTTP 429", 4)


@pytest.mark.parametrize(
    "policy", [Away(), Busy("HTTP 500"), ScriptedPolicy(lambda _: "I think it is fine.")]
)
def test_a_reviewer_that_fails_or_cannot_be_read_is_not_overloaded(policy):
    assert not review(failsafe(policy, on_overload="unavailable")).well_formed


@pytest.mark.promise(
    "Do no harm",
    "The operator may choose that the rules decide, or that it is sent and recorded as unreviewed",
)
@pytest.mark.parametrize(
    ("on_overload", "request_text", "leaves"),
    [
        ("rules", HARMLESS, COMPLIES),
        ("rules", CRIME, CANNED_REFUSAL),
        ("pass", CRIME, CANNED_REFUSAL),
    ],
)
def test_the_choice_for_an_overload_is_apart_from_that_for_a_failure(
    on_overload, request_text, leaves
):
    reviewer = failsafe(Slow(), "refuse", on_overload=on_overload)
    assert served(reviewer, request_text, COMPLIES) == leaves
    reviewer = failsafe(Away(), "refuse", on_overload=on_overload)
    assert served(reviewer, HARMLESS, COMPLIES) == CANNED_REFUSAL


def test_a_breaker_that_time_outs_opened_is_an_overload_until_it_closes():
    clock = FakeClock()
    breaker = Breaker(failures=1, open_seconds=60, clock=clock)
    assert overload(Slow(), breaker=breaker).reason == "timeout"
    clock.now = 20.0
    error = overload(ScriptedPolicy([CONTENT]), breaker=breaker)
    assert (error.reason, error.retry_after_seconds) == ("breaker: timeout", 40.0)
    clock.now = 60.0
    reviewer = failsafe(ScriptedPolicy([CONTENT]), breaker=breaker, on_overload="unavailable")
    assert review(reviewer).well_formed


def test_a_breaker_that_failures_opened_leaves_it_to_on_failure():
    breaker = Breaker(failures=1)
    reviewer = failsafe(Away(), "rules", breaker=breaker, on_overload="unavailable")
    for failure in ("failed: connection failed", "breaker"):
        feedback = review(reviewer)
        assert (feedback.failure, feedback.well_formed) == (failure, True)


class OneByOne:
    """A policy that takes 2 s for a review, and has one place."""

    def __init__(self):
        self.lock = asyncio.Lock()
        self.begun = 0

    async def reply(self, messages, sampling):
        async with self.lock:
            self.begun += 1
            await asyncio.sleep(2.0)
            return Reply(text=CONTENT)


def one_by_one(policy, **options):
    own = {"budget_seconds": 10.5, "queue": ReviewQueue(1), "on_overload": "unavailable"}
    return failsafe(policy, **own | options)


async def outcome(reviewer):
    """Return the failure of a review, when it was told, and what Retry-After would say."""
    loop = asyncio.get_running_loop()
    try:
        await reviewer.review(ask(HARMLESS), Reply(text=COMPLIES))
    except OverloadError as error:
        return error.reason, loop.time(), error.retry_after_seconds
    return "", loop.time(), 0.0


def test_a_review_that_would_come_too_late_is_told_so_at_once():
    async def work():
        policy = OneByOne()
        reviewer = one_by_one(policy)
        await outcome(reviewer)  # now the rate is known
        outcomes = await asyncio.gather(*(outcome(reviewer) for _ in range(7)))
        return outcomes, policy.begun, reviewer.breaker.state

    outcomes, begun, state = run_on_fake_time(work())
    reviewed = [("", 2.0 + 2.0 * number, 0.0) for number in range(1, 6)]
    # Five others end first, after 10 s.
    assert outcomes == [*reviewed, *[("overloaded", 2.0, 10.0)] * 2]
    assert (begun, state) == (6, "closed")


def test_a_wait_in_the_queue_is_no_failure_of_the_reviewer():
    async def work():
        policy = OneByOne()
        reviewer = one_by_one(policy, breaker=Breaker(failures=1))
        outcomes = await asyncio.gather(*(outcome(reviewer) for _ in range(7)))
        return [reason for reason, *_ in outcomes], policy.begun, reviewer.breaker.state

    # Nothing was known of the rate, so all seven came in; the sixth would have half a second.
    reasons, begun, state = run_on_fake_time(work())
    assert reasons == [""] * 5 + ["timeout"] * 2
    assert (begun, state) == (5, "closed")


@pytest.mark.promise("Do no harm", "A draft whose review would come too late is not paid for")
def test_a_draft_that_could_not_be_reviewed_in_time_is_not_begun():
    async def work():
        failures = []
        reviewer = one_by_one(OneByOne(), on_review_failure=failures.append)
        await outcome(reviewer)
        waiting = [asyncio.create_task(outcome(reviewer)) for _ in range(4)]
        await settle()
        with pytest.raises(OverloadError) as told:
            reviewer.admit()
        await asyncio.gather(*waiting)
        with reviewer.admit():
            pass
        return told.value.reason, told.value.retry_after_seconds, failures

    # Four others end first, after 8 s, and its own 2 s are more than is planned.
    assert run_on_fake_time(work()) == ("overloaded", 8.0, ["overloaded"])


def test_no_draft_is_begun_while_time_outs_have_opened_the_breaker():
    breaker = Breaker(failures=1)
    reviewer = failsafe(Slow(), breaker=breaker, on_overload="unavailable")
    with pytest.raises(OverloadError):
        review(reviewer)
    with pytest.raises(OverloadError) as told:
        reviewer.admit()
    assert told.value.reason == "breaker: timeout"


@pytest.mark.parametrize("on_overload", ["rules", "pass"])
def test_where_the_reply_is_returned_in_any_case_every_draft_is_begun(on_overload):
    reviewer = failsafe(Slow(), breaker=Breaker(failures=1), on_overload=on_overload)
    assert review(reviewer).failure == "timeout"
    with reviewer.admit():
        pass
