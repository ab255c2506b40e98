import math
import re
from dataclasses import replace
from pathlib import Path

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
from waltzrl.online.metrics import FlywheelMetrics
from waltzrl.online.recorder_client import RecorderClient
from waltzrl.online.release_follower import ReleaseFollower
from waltzrl.online.shadow import Shadows
from waltzrl.serving.exchange import Assignment
from waltzrl.serving.gateway import SingleBundle
from waltzrl.serving.metrics import APIS, KINDS, SCORES, TIMES, GatewayMetrics, GatewayStatus
from waltzrl.telemetry.counters import Histogram, SlidingCounter

ROOT = Path(__file__).parents[2]
QUIET = GatewayStatus(
    self_test={"safe reply": True, "unsafe reply": False},
    active=3,
    waiting=2,
    draining=False,
    breaker="half_open",
    keys=5,
    keys_stale=True,
    bundle="b1",
    unaudited=4,
    audit_failing=True,
)
CATEGORIES = {"harm/a": "weapons", "harm/b": "weapons", "harm/c": "privacy_violation"}


def fresh(clock=None):
    return GatewayMetrics(lambda: QUIET, CATEGORIES, clock=clock or FakeClock())


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


def test_times_come_in_seconds_and_in_the_requirements_milliseconds():
    metrics = fresh()  # 100 ms: draft 40, review 2, revision 20, review 2
    metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised"))
    assert value(metrics, "waltzrl_total_time_ms_sum") == 100
    assert value(metrics, "waltzrl_total_time_seconds_sum") == pytest.approx(0.1)
    assert value(metrics, "waltzrl_feedback_time_ms_sum") == 4
    assert value(metrics, "waltzrl_feedback_time_ms_count") == 2
    assert value(metrics, "waltzrl_revision_time_ms_sum") == 20
    assert value(metrics, "waltzrl_held_time_seconds_sum") == pytest.approx(0.06)
    assert value(metrics, "waltzrl_total_time_ms_bucket", le="50.0") == 0
    assert value(metrics, "waltzrl_total_time_ms_bucket", le="100.0") == 1  # at most
    assert value(metrics, "waltzrl_total_time_seconds_bucket", le="0.1") == 1


def test_a_canned_refusal_takes_no_revision_time():
    metrics = fresh()
    metrics.served(served((UNSAFE, REFUSAL), decision="refused"))
    assert value(metrics, "waltzrl_revision_time_ms_count") is None


def test_the_safety_score_is_that_of_the_draft():
    metrics = fresh()
    metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised"))  # risk 0.9
    assert value(metrics, "waltzrl_safety_score_bucket", le="0.1") == 1
    assert value(metrics, "waltzrl_safety_score_sum") == pytest.approx(0.1)


def test_rates_are_shares_of_what_was_reviewed_in_the_last_five_minutes():
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
    assert value(metrics, "waltzrl_rate_samples") == 8
    assert value(metrics, "waltzrl_unsafe_rate") == 2 / 8
    assert value(metrics, "waltzrl_overrefusal_rate") == 1 / 8
    assert value(metrics, "waltzrl_feedback_trigger_rate") == 4 / 8
    clock.now = 300
    assert value(metrics, "waltzrl_rate_samples") == 0
    assert value(metrics, "waltzrl_unsafe_rate") is None  # nothing is not zero


def test_unsafe_drafts_that_became_refusals_are_no_over_refusals():
    metrics = fresh()
    for _ in range(69):
        metrics.served(served((UNSAFE, FIX), (OVERREFUSE, None), decision="revised"))
    assert value(metrics, "waltzrl_rate_samples") == 69
    assert value(metrics, "waltzrl_overrefusal_rate") == 0


def test_a_mere_review_serves_nothing_and_moves_no_rate():
    metrics = fresh()
    metrics.served(served((UNSAFE, None), mode="review"))
    assert value(metrics, "waltzrl_rate_samples") == 0
    assert value(metrics, "waltzrl_requests_total", api="review", final_verdict="unsafe") == 1


def test_errors_are_counted_by_kind_and_failed_choices_as_requests_too():
    metrics = fresh()
    metrics.served(failed("upstream_timeout"))
    metrics.failed("chat", "rate_limit")
    assert value(metrics, "waltzrl_errors_total", api="chat", kind="upstream_timeout") == 1
    assert value(metrics, "waltzrl_errors_total", api="chat", kind="rate_limit") == 1
    assert value(metrics, "waltzrl_requests_total", decision="error") == 1


def test_what_must_never_go_unseen_is_counted_from_zero():
    metrics = fresh()
    assert value(metrics, "waltzrl_review_failures_total", cause="timeout") == 0
    metrics.review_failed("timeout")
    assert value(metrics, "waltzrl_review_failures_total", cause="timeout") == 1


def test_what_holds_now_is_asked_at_every_scrape():
    metrics = fresh()
    assert value(metrics, "waltzrl_active_requests") == 3
    assert value(metrics, "waltzrl_waiting_requests") == 2
    assert value(metrics, "waltzrl_draining") == 0
    assert value(metrics, "waltzrl_breaker", state="half_open") == 1
    assert value(metrics, "waltzrl_breaker", state="closed") == 0
    assert value(metrics, "waltzrl_keys") == 5
    assert value(metrics, "waltzrl_keys_stale") == 1
    assert value(metrics, "waltzrl_build_info", bundle="b1") == 1
    assert value(metrics, "waltzrl_unaudited_total") == 4
    assert value(metrics, "waltzrl_audit_failing") == 1


def test_first_words_are_timed_by_mode():
    metrics = fresh()
    metrics.served(served((SAFE, None), mode="window", first_words_milliseconds=250.0))
    assert value(metrics, "waltzrl_first_words_time_seconds_sum", mode="window") == 0.25


def test_no_word_that_anybody_wrote_is_in_the_metrics():
    metrics = fresh()
    metrics.served(served((UNSAFE, FIX), (UNSAFE, REFUSAL), decision="refused"))
    metrics.failed(SECRET, SECRET)
    assert SECRET.encode() not in metrics.exposition()


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


def test_every_metric_that_alerts_and_papers_name_is_exported():
    metrics = fresh()
    metrics.served(served((UNSAFE, FIX), (SAFE, None), decision="revised"))
    metrics.failed("chat", "overloaded")
    metrics.served(served((SAFE, None), mode="window", first_words_milliseconds=1.0))
    releases = ReleaseFollower(
        SingleBundle(Assignment(BUNDLE)), lambda last: None, None, None, None
    )
    shadows = Shadows(releases, metrics.served, at_once=1, per_minute=1)
    metrics.add(
        FlywheelMetrics(RecorderClient([], {}, {}, may_learn=True).status, releases, shadows)
    )
    exported = metrics.exposition().decode()
    for paper in ("deploy/prometheus-rules.yml", "docs/gateway-operations.md"):
        named = set(re.findall(r"\bwaltzrl_\w+", (ROOT / paper).read_text()))
        assert named, paper
        assert [name for name in named if name not in exported] == [], paper


@given(st.lists(st.floats(0, 1e6), max_size=40))
def test_a_bucket_counts_what_is_at_most_its_bound(values):
    spread = Histogram("waltzrl_x", "X.", "stage", TIMES, {"_ms": 1.0})
    for milliseconds in values:
        spread.add("1", milliseconds)
    (family,) = spread.families()
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_bucket")
    }
    if values:
        assert set(buckets) == {*TIMES, math.inf}
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
    for bounds in (SCORES, TIMES):
        assert list(bounds) == sorted(set(bounds))
