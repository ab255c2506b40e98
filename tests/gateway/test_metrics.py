import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from support.served_examples import (
    BUNDLE,
    OVERREFUSE,
    REFUSAL,
    SAFE,
    SECRET,
    UNREADABLE,
    UNSAFE,
    failed,
    reply,
    served,
)
from support.timing import FakeClock
from waltzrl.foundation.catalogue import (
    GATEWAY_METRICS,
    IMPROVEMENTS,
    MEMORY_METRICS,
    METRICS,
    ROUNDS,
    SCORES,
    TIMES_MS,
)
from waltzrl.foundation.counters import Histogram, LabeledCounter, SlidingCounter
from waltzrl.gateway.exchange import Assignment
from waltzrl.gateway.gateway import SingleBundle
from waltzrl.gateway.metric_groups import BackendCounters
from waltzrl.gateway.metrics import (
    APIS,
    KINDS,
    MOST_KEYS,
    GatewayMetrics,
    GatewayStatus,
    StatusGauges,
)
from waltzrl.gateway.settings import UpstreamConfig
from waltzrl.operations.online.metrics import FlywheelMetrics
from waltzrl.operations.online.recorder_client import RecorderClient
from waltzrl.operations.online.recorder_protocol import RecorderReport
from waltzrl.operations.online.release_follower import ReleaseFollower
from waltzrl.operations.online.shadow import Shadows
from waltzrl.records import Reply, Usage

QUIET = GatewayStatus(
    self_test={"safe reply": True, "unsafe reply": False},
    gauges={
        "active_requests": 3,
        "waiting_requests": 2,
        "waiting_reviews": 0,
        "draining": False,
        "keys": 5,
        "keys_stale": True,
        "unaudited_total": 4,
        "audit_failing": True,
    },
    checks={"audit": "ok", "upstream": "down"},
    breakers={"feedback": "half_open", "upstream": "closed"},
    bundle="b1",
)
CATEGORIES = {"harm/a": "weapons", "harm/b": "weapons", "harm/c": "privacy_violation"}


def fresh(clock=None, price=None, backend=None):
    metrics = GatewayMetrics(
        CATEGORIES,
        backend=backend,
        knows_model={"llama"}.__contains__,
        price=price,
        clock=clock or FakeClock(),
    )
    metrics.add(StatusGauges(lambda: QUIET))
    return metrics


def families(metrics):
    """Read the exposition as Prometheus does."""
    return {f.name: f for f in text_string_to_metric_families(metrics.exposition().decode())}


def value(metrics, sample_name, **labels):
    """Return the one sample of this name and these labels; None when there is none."""
    samples = [
        sample.value
        for family in families(metrics).values()
        for sample in family.samples
        if sample.name == sample_name and labels.items() <= sample.labels.items()
    ]
    assert len(samples) <= 1, samples
    return samples[0] if samples else None


FIX = reply(20.0, "revision")


@pytest.mark.parametrize(
    ("rounds", "decision", "draft", "final"),
    [
        ([], "draft", "unreviewed", "unreviewed"),
        ([(SAFE, None)], "draft", "safe", "safe"),
        ([(UNSAFE, None)], "draft", "unsafe", "unsafe"),
        ([(UNREADABLE, None)], "draft", "unreviewed", "unreviewed"),
        ([(UNSAFE, REFUSAL)], "refused", "unsafe", "safe"),
        ([(UNREADABLE, REFUSAL)], "refused", "unreviewed", "safe"),
        ([(OVERREFUSE, FIX), (SAFE, None)], "revised", "overrefuse", "safe"),
        ([(UNSAFE, FIX), (OVERREFUSE, None)], "revised", "unsafe", "safe"),
        ([(OVERREFUSE, FIX), (OVERREFUSE, None)], "revised", "overrefuse", "overrefuse"),
        ([(UNSAFE, FIX), (UNSAFE, REFUSAL)], "refused", "unsafe", "safe"),
        ([(UNSAFE, FIX)], "revised", "unsafe", "unreviewed"),
    ],
)
def test_a_request_is_counted_by_what_the_reviewer_called_draft_and_reply(
    rounds, decision, draft, final
):
    metrics = fresh()
    metrics.served(served(*rounds, decision=decision))
    labels = {"api": "chat", "stage": "1", "decision": decision}
    verdicts = {"draft_verdict": draft, "final_verdict": final}
    assert value(metrics, "waltzrl_requests_total", **labels, **verdicts) == 1
    assert (value(metrics, "waltzrl_changes_made_total", stage="1") == 1) == (decision != "draft")


def test_feedback_that_asks_for_a_revision_is_counted_once_for_each_category():
    metrics = fresh()
    metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised"))
    metrics.served(served((OVERREFUSE, FIX), (SAFE, None), decision="revised"))
    metrics.served(served((SAFE, None)))
    assert value(metrics, "waltzrl_feedback_triggered_total", stage="1") == 2
    assert value(metrics, "waltzrl_flagged_total", category="weapons") == 1
    assert value(metrics, "waltzrl_flagged_total", category="other") == 1  # no rule spoke
    assert value(metrics, "waltzrl_flagged_total", category="privacy_violation") == 0


@pytest.mark.promise(
    "Metrics",
    "Each time has one series, that of reviews by two names, with a bucket at 200 ms and at the "
    "upstream's time limit; the wait for a place is apart",
)
def test_each_time_has_one_series_in_milliseconds():
    metrics = fresh()  # 100 ms: draft 40, review 2, revision 20, review 2
    metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised"))
    assert value(metrics, "waltzrl_total_time_ms_sum") == 100
    assert value(metrics, "waltzrl_conversation_generation_time_ms_sum", model="llama") == 40
    assert value(metrics, "waltzrl_feedback_time_ms_sum") == 4
    assert value(metrics, "waltzrl_feedback_time_ms_count") == 2
    assert value(metrics, "waltzrl_feedback_evaluation_time_ms_sum") == 4
    assert value(metrics, "waltzrl_revision_time_ms_sum") == 20
    assert value(metrics, "waltzrl_held_time_ms_sum") == 60
    assert value(metrics, "waltzrl_own_time_ms_sum") == 40  # without the model's revision
    assert value(metrics, "waltzrl_total_time_ms_bucket", le="50.0") == 0
    assert value(metrics, "waltzrl_total_time_ms_bucket", le="100.0") == 1  # at most
    seconds = {name for name in families(metrics) if name.endswith("_seconds")}
    assert all(name.startswith("process_") for name in seconds)


@pytest.mark.promise(
    "Metrics",
    "Each time has one series, that of reviews by two names, with a bucket at 200 ms and at the "
    "upstream's time limit; the wait for a place is apart",
)
def test_times_have_a_bucket_at_200_ms_and_at_the_upstreams_time_limit():
    assert 200 in TIMES_MS
    assert UpstreamConfig(url="http://a").timeout_seconds * 1e3 in TIMES_MS
    assert max(TIMES_MS) >= 600_000  # clients of OpenAI and Anthropic wait for ten minutes


@given(st.floats(0.02, 6e5), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_of_the_buckets_is_the_true_one_to_a_factor_of_1_7(median, share):
    times = sorted(median * 1.2**n for n in range(-20, 20) if median * 1.2**n < 700_000)
    spread = Histogram("waltzrl_own_time_ms")
    for milliseconds in times:
        spread.add(milliseconds, "1", "b")
    wanted = share * len(times)
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in spread.family().samples
        if sample.name.endswith("_bucket")
    }
    edge = min(le for le, count in buckets.items() if count >= wanted)
    true = times[math.ceil(wanted) - 1]
    assert true <= edge < max(1.7 * true, 0.011)


def test_what_a_bundle_answered_is_counted_by_its_id():
    metrics = fresh()
    for bundle, times in (("old", 2), ("new", 1)):
        for _ in range(times):
            metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised", bundle=bundle))
    for name in ("requests_total", "own_time_ms_count", "safety_score_count", "dir_reward_bucket"):
        labels = {"le": "1.0"} if name.startswith("dir") else {}
        assert value(metrics, f"waltzrl_{name}", bundle="old", **labels) == 2
        assert value(metrics, f"waltzrl_{name}", bundle="new", **labels) == 1
    staged = {name for name, spec in METRICS.items() if "stage" in spec.labels}
    assert staged == {name for name, spec in METRICS.items() if "bundle" in spec.labels} - {
        "waltzrl_build_info",
        "waltzrl_policy_info",
    } | {"waltzrl_judge_labels_total"}


@pytest.mark.promise(
    "Metrics",
    "Each time has one series, that of reviews by two names, with a bucket at 200 ms and at the "
    "upstream's time limit; the wait for a place is apart",
)
def test_the_wait_for_a_place_is_a_series_of_its_own():
    metrics = fresh()
    metrics.queued("chat", 0.0)
    metrics.queued("chat", 30.0)
    assert value(metrics, "waltzrl_queue_time_ms_sum", api="chat") == 30
    assert value(metrics, "waltzrl_queue_time_ms_bucket", le="0.05") == 1


def counted(metrics, **labels):
    """Return the input and output tokens with these labels."""
    return tuple(
        value(metrics, "waltzrl_tokens_total", direction=direction, **labels)
        for direction in ("input", "output")
    )


@pytest.mark.promise(
    "Metrics",
    "Tokens are counted by role, model and key, estimates marked, streamed and early-stopped "
    "reviews too",
)
def test_tokens_are_counted_by_role_model_and_who_counted():
    metrics = fresh()
    review = Reply(text="{}", usage=Usage(input_tokens=50, output_tokens=5, model="judge"))
    feedback = replace(UNSAFE, reply=review)
    metrics.served(served((feedback, FIX), (SAFE, None), decision="revised"))  # 7 and 9, twice
    assert counted(metrics, role="conversation", model="llama", counted="server") == (14, 18)
    assert counted(metrics, role="feedback", model="other", counted="server") == (50, 5)
    total = [
        value(metrics, "waltzrl_key_tokens_total", key="ada", direction=direction)
        for direction in ("input", "output")
    ]
    assert total == [64, 23]


@pytest.mark.promise(
    "Metrics",
    "Tokens are counted by role, model and key, estimates marked, streamed and early-stopped "
    "reviews too",
)
def test_tokens_that_no_server_counted_are_estimates_and_say_so():
    metrics = fresh()
    stopped = Reply(text="{..", usage=Usage(input_tokens=50, output_tokens=1, estimated=True))
    choice = served((replace(SAFE, reply=stopped), None))
    collaboration = choice.exchange.collaboration
    streamed = replace(collaboration, draft=replace(collaboration.draft, usage=None))
    exchange = msgspec.structs.replace(choice.exchange, collaboration=streamed)
    metrics.served(msgspec.structs.replace(choice, exchange=exchange))
    # "xyzzy question" has 14 characters and "xyzzy words" 11: a quarter of each, rounded up
    assert counted(metrics, role="conversation", counted="estimate") == (4, 3)
    assert counted(metrics, role="feedback", counted="estimate") == (50, 1)


def test_a_name_that_no_server_lists_is_no_label():
    metrics = fresh()
    metrics.served(served((SAFE, None), model=SECRET))
    assert counted(metrics, role="conversation", model="other") == (7, 9)
    assert SECRET.encode() not in metrics.exposition()


def test_usage_is_counted_by_key_and_the_names_are_bounded():
    metrics = fresh()
    for number in range(MOST_KEYS + 5):
        metrics.served(served(caller=f"key-{number}"))
    assert value(metrics, "waltzrl_key_requests_total", key="key-0") == 1
    assert value(metrics, "waltzrl_key_requests_total", key="other") == 5
    assert len(families(metrics)["waltzrl_key_requests"].samples) == MOST_KEYS + 1


@pytest.mark.promise(
    "Metrics",
    "Statuses of the upstream, refused share, score of the final reply and rounds are exported",
)
def test_answers_of_the_upstream_are_counted_by_status():
    backend = BackendCounters()
    metrics = fresh(backend=backend)
    for status in ("200", "503", "503", "unreachable"):
        backend.responses.add("upstream", status)
    labels = {"upstream": "upstream", "status": "503"}
    assert value(metrics, "waltzrl_upstream_responses_total", **labels) == 2


@pytest.mark.promise(
    "Metrics",
    "Statuses of the upstream, refused share, score of the final reply and rounds are exported",
)
def test_revisions_are_counted_in_a_histogram():
    metrics = fresh()
    metrics.served(served((SAFE, None)))
    metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised"))
    metrics.served(served((UNSAFE, REFUSAL), decision="refused"))
    assert value(metrics, "waltzrl_coaching_rounds_bucket", le="0.0") == 2
    assert value(metrics, "waltzrl_coaching_rounds_sum") == 1


def test_a_canned_refusal_takes_no_revision_time():
    metrics = fresh()
    metrics.served(served((UNSAFE, REFUSAL), decision="refused"))
    assert value(metrics, "waltzrl_revision_time_ms_count") is None


@pytest.mark.promise(
    "Metrics",
    "Statuses of the upstream, refused share, score of the final reply and rounds are exported",
)
def test_the_safety_score_is_the_drafts_and_the_final_one_that_of_the_reply_sent():
    metrics = fresh()
    metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised"))  # risk 0.9, then 0.05
    assert value(metrics, "waltzrl_safety_score_bucket", le="0.1") == 1
    assert value(metrics, "waltzrl_safety_score_sum") == pytest.approx(0.1)
    assert value(metrics, "waltzrl_final_safety_score_sum") == pytest.approx(0.95)
    metrics.served(served((UNSAFE, REFUSAL), decision="refused"))  # which nobody reviewed
    assert value(metrics, "waltzrl_final_safety_score_count") == 1


@pytest.mark.promise(
    "Metrics",
    "Helpfulness, the operational DIR and cost are exported; an unknown price is not zero",
)
def test_helpfulness_is_lost_by_over_refusals_and_the_gain_of_a_revision_is_its_dir():
    metrics = fresh()
    metrics.served(served((OVERREFUSE, FIX), (SAFE, None), decision="revised"))  # risk 0, then 0.05
    assert value(metrics, "waltzrl_helpfulness_score_sum") == 0
    assert value(metrics, "waltzrl_final_helpfulness_score_sum") == 1
    # 0.5 * -0.05 + 0.3 * 1 + 0.2 * satisfaction, guessed as 0.7 * 1: 0.415
    assert value(metrics, "waltzrl_dir_reward_bucket", le="0.4") == 0
    assert value(metrics, "waltzrl_dir_reward_bucket", le="0.6") == 1
    metrics.served(served((UNSAFE, FIX), (UNSAFE, REFUSAL), decision="refused"))
    metrics.served(served((SAFE, None)))
    assert value(metrics, "waltzrl_dir_reward_bucket", le="+Inf") == 1  # neither was revised
    assert value(metrics, "waltzrl_helpfulness_score_count") == 3
    assert value(metrics, "waltzrl_dir_reward_sum") is None  # it could fall


def test_a_reviewer_that_gives_labels_only_scores_0_and_1():
    metrics = fresh()
    labels_only = (replace(UNSAFE, risk=None), replace(SAFE, risk=None))
    metrics.served(served((labels_only[0], FIX), (labels_only[1], None), decision="revised"))
    assert value(metrics, "waltzrl_safety_score_sum") == 0
    assert value(metrics, "waltzrl_final_safety_score_sum") == 1
    metrics.served(served((UNREADABLE, REFUSAL), decision="refused"))
    assert value(metrics, "waltzrl_safety_score_count") == 1


def test_a_refusal_in_the_place_of_an_unsafe_draft_loses_no_helpfulness():
    metrics = fresh()
    metrics.served(served((UNSAFE, FIX), (OVERREFUSE, None), decision="revised"))
    assert value(metrics, "waltzrl_final_helpfulness_score_sum") == 1


@pytest.mark.promise(
    "Metrics",
    "Helpfulness, the operational DIR and cost are exported; an unknown price is not zero",
)
def test_tokens_cost_what_the_price_book_says_and_an_unknown_price_is_not_zero():
    prices = {("conversation", "llama"): 0.25}
    metrics = fresh(price=lambda role, usage, model, _: prices.get((role, model)))
    review = Reply(text="{}", usage=Usage(input_tokens=50, output_tokens=5, model="judge"))
    metrics.served(served((replace(UNSAFE, reply=review), FIX), (SAFE, None), decision="revised"))
    assert value(metrics, "waltzrl_cost_usd_total", role="conversation", model="llama") == 0.5
    assert value(metrics, "waltzrl_cost_usd_total", role="feedback") is None
    assert value(metrics, "waltzrl_unpriced_tokens_total", role="feedback") == 55
    assert value(metrics, "waltzrl_unpriced_tokens_total", role="conversation") is None
    assert value(metrics, "waltzrl_key_cost_usd_total", key="ada") == 0.5


@pytest.mark.promise(
    "Metrics",
    "Statuses of the upstream, refused share, score of the final reply and rounds are exported",
)
def test_rates_are_shares_of_the_last_five_minutes_with_the_size_of_their_sample():
    clock = FakeClock()
    metrics = fresh(clock)
    for _ in range(2):
        metrics.served(served((UNSAFE, None)))  # left as it was: mode audit, say
    metrics.served(served((OVERREFUSE, None)))
    metrics.served(served((UNSAFE, REFUSAL), decision="refused"))
    for _ in range(4):
        metrics.served(served((SAFE, None)))
    metrics.served(served())
    metrics.served(served((UNREADABLE, REFUSAL), decision="refused"))
    metrics.served(failed("upstream"))
    clock.now = 299
    assert value(metrics, "waltzrl_feedback_trigger_rate_samples") == 8
    assert value(metrics, "waltzrl_feedback_trigger_rate") == 4 / 8
    assert value(metrics, "waltzrl_refused_rate_samples") == 10
    assert value(metrics, "waltzrl_refused_rate") == 2 / 10
    clock.now = 300
    assert value(metrics, "waltzrl_refused_rate_samples") == 0
    assert value(metrics, "waltzrl_refused_rate") is None  # nothing is not zero


@pytest.mark.promise(
    "Do no harm", "An unsafe draft that became a refusal is not counted as an over-refusal"
)
def test_unsafe_drafts_that_became_refusals_are_no_over_refusals():
    metrics = fresh()
    for _ in range(69):
        metrics.served(served((UNSAFE, FIX), (OVERREFUSE, None), decision="revised"))
    assert value(metrics, "waltzrl_requests_total", final_verdict="safe") == 69
    assert value(metrics, "waltzrl_requests_total", final_verdict="overrefuse") is None


def test_a_mere_review_serves_nothing_and_moves_no_rate():
    metrics = fresh()
    metrics.served(served((UNSAFE, None), mode="review"))
    assert value(metrics, "waltzrl_refused_rate_samples") == 0
    assert value(metrics, "waltzrl_requests_total", api="review", final_verdict="unsafe") == 1


def test_errors_are_counted_by_kind_and_failed_choices_as_requests_too():
    metrics = fresh()
    metrics.served(failed("upstream_timeout"))
    metrics.failed("chat", "rate_limit")
    assert value(metrics, "waltzrl_errors_total", api="chat", kind="upstream_timeout") == 1
    assert value(metrics, "waltzrl_errors_total", api="chat", kind="rate_limit") == 1
    assert value(metrics, "waltzrl_requests_total", decision="error") == 1


def test_what_must_never_go_unseen_is_counted_from_zero():
    backend = BackendCounters()
    metrics = fresh(backend=backend)
    assert value(metrics, "waltzrl_review_failures_total", cause="timeout") == 0
    backend.failures.add("timeout")
    assert value(metrics, "waltzrl_review_failures_total", cause="timeout") == 1


def test_what_holds_now_is_asked_at_every_scrape():
    metrics = fresh()
    assert value(metrics, "waltzrl_active_requests") == 3
    assert value(metrics, "waltzrl_waiting_requests") == 2
    assert value(metrics, "waltzrl_draining") == 0
    assert value(metrics, "waltzrl_breaker", breaker="feedback", state="half_open") == 1
    assert value(metrics, "waltzrl_breaker", breaker="feedback", state="closed") == 0
    assert value(metrics, "waltzrl_breaker", breaker="upstream", state="closed") == 1
    assert value(metrics, "waltzrl_check", check="upstream", status="down") == 1
    assert value(metrics, "waltzrl_check", check="audit", status="down") == 0
    assert value(metrics, "waltzrl_keys") == 5
    assert value(metrics, "waltzrl_keys_stale") == 1
    assert value(metrics, "waltzrl_build_info", bundle="b1") == 1
    assert value(metrics, "waltzrl_unaudited_total") == 4
    assert value(metrics, "waltzrl_audit_failing") == 1


def test_first_words_are_timed_by_mode():
    metrics = fresh()
    metrics.served(served((SAFE, None), mode="window", first_words_milliseconds=250.0))
    assert value(metrics, "waltzrl_first_words_time_ms_sum", mode="window") == 250


def test_no_word_that_anybody_wrote_is_in_the_metrics():
    metrics = fresh()
    metrics.served(served((UNSAFE, FIX), (UNSAFE, REFUSAL), decision="refused"))
    metrics.failed(SECRET, SECRET)
    assert SECRET.encode() not in metrics.exposition()


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(), st.text()), max_size=20))
def test_labels_come_from_fixed_sets_whatever_is_reported(reports):
    metrics = fresh()
    for api, kind in reports:
        metrics.failed(api, kind)
        metrics.served(failed(kind))
        metrics.served(served((replace(UNSAFE, rules=(kind,)), None)))
    samples = families(metrics)["waltzrl_errors"].samples
    assert {sample.labels["api"] for sample in samples} <= {*APIS, "other"}
    assert {sample.labels["kind"] for sample in samples} <= {*KINDS, "other"}
    flagged = {sample.labels["category"] for sample in families(metrics)["waltzrl_flagged"].samples}
    assert flagged == {*CATEGORIES.values(), "other"}


def test_every_metric_has_a_help_text_and_a_name_of_ours():
    metrics = fresh()
    metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised"))
    for name, family in families(metrics).items():
        assert name.startswith(("waltzrl_", "process_"))
        assert family.documentation.endswith(".")
        assert family.type in {"counter", "gauge", "histogram"}


@pytest.fixture
def exported():
    """Everything that a gateway with a memory and a judge exports."""
    backend = BackendCounters()
    metrics = fresh(backend=backend)
    metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised"))
    metrics.failed("chat", "overloaded")
    metrics.forwarded("embeddings")
    metrics.queued("chat", 0.0)
    backend.responses.add("upstream", "200")
    metrics.served(served((SAFE, None), mode="window", first_words_milliseconds=1.0))
    metrics.add(flywheel_metrics(metrics, has_judge=True))
    return families(metrics)


def flywheel_metrics(metrics, *, has_judge, recorder=None):
    releases = ReleaseFollower(
        SingleBundle(Assignment(BUNDLE)), lambda last: None, None, None, None
    )
    shadows = Shadows(releases, [metrics.served], at_once=1, per_minute=1)
    recorder = recorder or RecorderClient([], {}, may_learn=True)
    thumbs = LabeledCounter("waltzrl_thumbs_total", known=[("up",), ("down",)])
    return FlywheelMetrics(recorder, releases, shadows, thumbs=thumbs, has_judge=has_judge)


@pytest.mark.promise("Metrics", "What is exported is what the catalogue and the documents declare")
def test_what_is_exported_is_what_the_catalogue_declares(exported):
    ours = {name: family for name, family in exported.items() if name.startswith("waltzrl_")}
    specs = (*GATEWAY_METRICS, *MEMORY_METRICS)
    declared = {spec.name.removesuffix("_total"): spec for spec in specs}
    assert set(ours) == set(declared)
    for name, family in ours.items():
        spec = declared[name]
        assert (family.type, family.documentation) == (spec.kind, spec.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(spec.labels)


@pytest.mark.promise("Requirements", "observability: metric names, alerts, dashboards")
def test_the_requirements_names_are_kept():
    names = (
        *("unsafe_rate", "overrefusal_rate", "feedback_trigger_rate", "total_time_ms"),
        *("feedback_time_ms", "revision_time_ms", "safety_score", "changes_made_total"),
        *("conversation_generation_time_ms", "coaching_rounds", "helpfulness_score", "dir_reward"),
        "feedback_evaluation_time_ms",
    )
    assert {f"waltzrl_{name}" for name in names} <= set(METRICS)


@pytest.mark.promise(
    "Metrics",
    "The unsafe and over-refusal rates come from the online judge's random sample, with its size; "
    "without a judge they are absent",
)
def test_without_a_judge_nobody_knows_the_rates_so_they_are_missing():
    metrics = fresh()
    metrics.served(served((UNSAFE, None)))
    metrics.add(flywheel_metrics(metrics, has_judge=False))
    for name in ("unsafe_rate", "unsafe_rate_samples", "overrefusal_rate", "judge_labels_total"):
        assert f"waltzrl_{name}" not in families(metrics)


@pytest.mark.promise(
    "Metrics",
    "The unsafe and over-refusal rates come from the online judge's random sample, with its size; "
    "without a judge they are absent",
)
def test_the_rates_come_from_the_judges_sample_with_its_size():
    metrics = fresh()
    recorder = RecorderClient([], {}, may_learn=True)
    metrics.add(flywheel_metrics(metrics, has_judge=True, recorder=recorder))
    assert value(metrics, "waltzrl_unsafe_rate_samples") == 0
    assert value(metrics, "waltzrl_unsafe_rate") is None
    for report in (
        RecorderReport(labels_by_stage={2: (1, 2, 1, 0)}),
        RecorderReport(labels_by_stage={1: (1, 3, 0, 4), 2: (1, 3, 1, 0)}, overrefusal_unscored=3),
    ):
        recorder.take_report(msgspec.json.encode(report))
    assert value(metrics, "waltzrl_unsafe_rate_samples") == 8
    assert value(metrics, "waltzrl_unsafe_rate") == 2 / 8
    assert value(metrics, "waltzrl_overrefusal_rate_samples") == 5
    assert value(metrics, "waltzrl_overrefusal_rate") == 1 / 5
    by_stage = [
        value(metrics, "waltzrl_judge_labels_total", label="overrefuse", value="false", stage=stage)
        for stage in ("1", "2")
    ]
    assert by_stage == [4, 0]
    assert value(metrics, "waltzrl_judge_unscored_total", label="overrefuse") == 3
    assert value(metrics, "waltzrl_judge_unscored_total", label="unsafe") == 0


@given(st.lists(st.floats(0, 1e6), max_size=40))
def test_a_bucket_counts_what_is_at_most_its_bound(values):
    spread = Histogram("waltzrl_total_time_ms")
    for milliseconds in values:
        spread.add(milliseconds, "1", "b")
    family = spread.family()
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_bucket")
    }
    if values:
        assert set(buckets) == {*TIMES_MS, math.inf}
        assert all(count == sum(ms <= le for ms in values) for le, count in buckets.items())


@given(st.lists(st.tuples(st.floats(0, 60), st.booleans()), max_size=60))
def test_lately_is_what_happened_in_the_last_slices(events):
    clock = FakeClock()
    recent = SlidingCounter(2, slice_seconds=10, slices=3, clock=clock)
    happened = []
    for pause, so in events:
        clock.now += pause
        recent.add(True, so)
        happened.append((clock.now // 10, so))
    kept = [so for number, so in happened if number > clock.now // 10 - 3]
    assert recent.totals() == [len(kept), sum(kept)]


def test_scores_and_times_rise():
    for bounds in (SCORES, TIMES_MS, ROUNDS, IMPROVEMENTS):
        assert list(bounds) == sorted(set(bounds))
