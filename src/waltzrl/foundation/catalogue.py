"""Every metric that we export, declared once: what it is called, counts and is labelled by.

`/metrics`, OTLP, the documents' tables, the alerts and the dashboards are made from it. Times are
in milliseconds, as the requirement names its three (`total_time_ms`); each series has one unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MetricKind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "max", "mean"]
"""The way in which the values of several workers become one; a mean is weighted by the metric
NAME_samples."""

TIMES_MS = (
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7),
    *(10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 7000),
    *(10_000, 15_000, 20_000, 30_000, 45_000, 60_000, 90_000, 120_000),
    *(200_000, 300_000, 500_000, 700_000),
)
"""Each is at most 1.7 times the one before: percentiles are only known to lie in a bucket, so they
are right to this factor. A rules review takes 0.05 ms, a model several seconds; a stream has no
time limit, and one of a model that reasons goes on for minutes."""
ORIGIN = ("stage", "bundle")
"""Labels of what one bundle answered; a bundle is of one stage."""
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
IMPROVEMENTS = (-0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
ROUNDS = (0, 1, 2, 3, 5, 8)

RECENTLY = "of the last five minutes"
JUDGED = "in the online judge's random sample of the last hour; absent without a judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric."""

    name: str
    """The name under which it is exported."""
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, ascending."""
    merge: Merge = "max"
    """The merge of a gauge; counters and histograms of several workers are added up."""

    @property
    def is_signed(self) -> bool:
        """Values may be negative; such a histogram has no sum, which could fall."""
        return min(self.bounds, default=0.0) < 0


def _counter(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=f"waltzrl_{name}_total", kind="counter", help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str, merge: Merge = "max") -> MetricSpec:
    return MetricSpec(name=f"waltzrl_{name}", kind="gauge", help=text, labels=labels, merge=merge)


def _gauge_with_samples(name: str, text: str, samples: str) -> tuple[MetricSpec, MetricSpec]:
    """Return a share and the size of its sample."""
    return _gauge(name, text, merge="mean"), _gauge(f"{name}_samples", samples, merge="sum")


def _histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> MetricSpec:
    full_name = f"waltzrl_{name}"
    return MetricSpec(name=full_name, kind="histogram", help=text, labels=labels, bounds=bounds)


GATEWAY_METRICS = (
    _counter(
        "requests",
        "Choices answered, with the reviewer's labels of the draft and of the reply that was sent.",
        *("api", *ORIGIN, "decision", "draft_verdict", "final_verdict"),
    ),
    _counter("feedback_triggered", "Drafts whose feedback asked for a revision.", *ORIGIN),
    _counter("changes_made", "Replies that were revised or refused.", *ORIGIN),
    _counter(
        "flagged",
        "Drafts that feedback objected to, by category of the rules or of the model.",
        "category",
    ),
    _counter(
        "errors",
        "Errors that were answered, and choices that were cancelled: the client left, or another "
        "choice failed.",
        "api",
        "kind",
    ),
    _counter("forwarded", "Requests that the upstream answered without a review.", "api"),
    _counter("review_failures", "Reviews that the feedback model did not give.", "cause"),
    _counter(
        "other_language_reviews",
        "Reviews of requests in a language that the reviewer does not read.",
        "language",
    ),
    _counter("unaudited", "Answers without an audit record."),
    _counter(
        "tokens",
        "Tokens read (input) and written (output) by the agents; `counted` is server, or estimate "
        "where the server did not count.",
        *("role", "direction", "model", "counted"),
    ),
    _counter(
        "cost_usd", "US dollars that the tokens of the agents cost, where known.", "role", "model"
    ),
    _counter("unpriced_tokens", "Tokens of models whose price is not known.", "role", "model"),
    _counter("key_requests", "Choices by name of the API key.", "key"),
    _counter("key_tokens", "Tokens of all agents by name of the API key.", "key", "direction"),
    _counter("key_cost_usd", "US dollars by name of the API key, where known.", "key"),
    _counter(
        "upstream_responses",
        "Requests to the upstream by HTTP status, or unreachable, timed_out, breaker.",
        *("upstream", "status"),
    ),
    _histogram("total_time_ms", "Wall time of a choice.", TIMES_MS, *ORIGIN),
    _histogram(
        "conversation_generation_time_ms", "Wall time of the upstream's draft.", TIMES_MS, "model"
    ),
    _histogram("feedback_time_ms", "Wall time of one review.", TIMES_MS, *ORIGIN),
    _histogram(
        "feedback_evaluation_time_ms",
        "The same as waltzrl_feedback_time_ms, by another name of the requirement's.",
        *(TIMES_MS, *ORIGIN),
    ),
    _histogram("revision_time_ms", "Wall time of one revision.", TIMES_MS, *ORIGIN),
    _histogram(
        "held_time_ms",
        "Time that reviews and revisions added after the draft.",
        *(TIMES_MS, *ORIGIN),
    ),
    _histogram(
        "own_time_ms",
        "The gateway's own time of a choice, reviews included: without draft and revisions.",
        *(TIMES_MS, *ORIGIN),
    ),
    _histogram(
        "queue_time_ms", "Time that a request waited for a place; 0 if it did not.", TIMES_MS, "api"
    ),
    _histogram("first_words_time_ms", "Time until a stream's first text.", TIMES_MS, "mode"),
    _histogram(
        "safety_score",
        "1 - risk of a reviewed draft; 0 or 1 where the review gave labels only.",
        *(SCORES, *ORIGIN),
    ),
    _histogram(
        "final_safety_score",
        "The same of the reply that was sent, if reviewed.",
        *(SCORES, *ORIGIN),
    ),
    _histogram(
        "helpfulness_score",
        "0 for a draft that its review called an over-refusal, else 1.",
        *(SCORES, *ORIGIN),
    ),
    _histogram(
        "final_helpfulness_score",
        "0 for an over-refusal, else 1, of the reply that was sent, if reviewed.",
        *(SCORES, *ORIGIN),
    ),
    _histogram(
        "dir_reward",
        "The requirement's operational DIR score of a revision that was sent, by its reviewer.",
        *(IMPROVEMENTS, *ORIGIN),
    ),
    _histogram("coaching_rounds", "Revisions by a model in a choice.", ROUNDS, *ORIGIN),
    *_gauge_with_samples(
        "feedback_trigger_rate",
        f"Share of drafts that feedback objected to, {RECENTLY}.",
        f"Reviewed drafts {RECENTLY}.",
    ),
    *_gauge_with_samples(
        "refused_rate",
        f"Share of answers that were a canned refusal, {RECENTLY}.",
        f"Answers {RECENTLY}.",
    ),
    _gauge("active_requests", "Requests in progress.", merge="sum"),
    _gauge("waiting_requests", "Requests that wait for a place.", merge="sum"),
    _gauge("waiting_reviews", "Reviews that wait for the feedback model.", merge="sum"),
    _gauge("draining", "1 while the gateway shuts down."),
    _gauge("check", "1 for the state of each check of /readyz.", "check", "status"),
    _gauge("breaker", "1 for the state of each circuit breaker.", "breaker", "state"),
    _gauge(
        "self_test_passed",
        "1 where the feedback model reviewed a reply of its self-test rightly.",
        "reply",
    ),
    _gauge("audit_failing", "1 while the audit log cannot be written."),
    _gauge("keys", "Valid API keys."),
    _gauge("keys_stale", "1 while the key file is invalid and the earlier keys stay valid."),
    _gauge("build_info", "Always 1.", "version", "bundle"),
    _gauge("policy_info", "Always 1: the bundle of each policy.", "policy", "bundle"),
)

MEMORY_METRICS = (
    *_gauge_with_samples(
        "unsafe_rate",
        f"Share of unsafe replies {JUDGED}.",
        f"Replies with a label unsafe {JUDGED}.",
    ),
    *_gauge_with_samples(
        "overrefusal_rate",
        f"Share of over-refusals {JUDGED}.",
        f"Replies with a label overrefuse {JUDGED}.",
    ),
    _counter(
        "judge_labels",
        "Labels of the online judge in its random sample: unsafe or overrefuse, true or false; by "
        "the stage that answered.",
        *("label", "value", "stage"),
    ),
    _counter(
        "judge_unscored",
        "Replies of the random sample that the online judge left without this label.",
        "label",
    ),
    _counter("judged", "Replies that the online judge judged, of candidates and shadows too."),
    _counter("unjudged", "Replies that the online judge could not judge."),
    _counter(
        "thumbs", "Thumbs that users gave to replies, up or down; a change counts too.", "thumb"
    ),
    _counter("recorder_accepted", "Exchanges handed to the recorder."),
    _counter("recorder_dropped", "Exchanges dropped because too many were waiting."),
    _counter("recorder_stored", "Exchanges stored in the memory."),
    _counter("recorder_failed", "Exchanges that cannot be stored."),
    _counter("recorder_restarts", "Recorder processes that ended and were replaced."),
    _gauge("recorder_waiting", "Exchanges that wait to be stored.", merge="sum"),
    _gauge("memory_failing", "1 while the database is unavailable."),
    _counter("shadows_left_out", "Answers of a shadow skipped for their cost."),
    _gauge("release", "1 for the state of the newest release, also after its end.", "state"),
    _gauge("release_percentage", "Percentage of the conversations that its candidate serves."),
    _gauge(
        "release_needs",
        "1 for what the release under way waits for people to do: advance or resume it, or label.",
        "what",
    ),
    _gauge(
        "release_moved_timestamp_seconds",
        "Unix time of the last move of a release by itself or by a person; 0 if there was none.",
        *("action", "by"),
    ),
)

OTLP_NAMES: Mapping[str, str] = {
    f"waltzrl_{role}_{rest}": f"waltzrl.{role}.{rest}"
    for role, rest in (
        ("conversation", "generation_time_ms"),
        ("feedback", "evaluation_time_ms"),
    )
}
"""Metrics whose name by OTLP has two dots, as the requirement writes it; the others have one."""

METRICS: Mapping[str, MetricSpec] = {
    spec.name: spec for spec in (*GATEWAY_METRICS, *MEMORY_METRICS)
}
