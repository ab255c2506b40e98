"""The gateway's metrics, in Prometheus's text format.

Every label has a small, fixed set of values, so no text of a user can appear in the metrics. Not
thread-safe: call it from the event loop's thread only.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from waltzrl import __version__
from waltzrl.agents.breaker import BreakerState
from waltzrl.agents.failsafe import ReviewFailure
from waltzrl.records import Collaboration, Feedback, Round
from waltzrl.serving.exchange import ServedChoice
from waltzrl.telemetry.counters import Histogram, LabeledCounter, SlidingCounter

TIMES = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000)
"""Bucket bounds in milliseconds: a rules review takes 0.05 ms, a model several seconds."""
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SECONDS = {"_seconds": 1e-3}
BOTH_UNITS = {"_seconds": 1e-3, "_ms": 1.0}

LATELY = "in the last five minutes, by the reviewer's own labels"
SLICE_SECONDS, SLICES = 10, 30

OTHER = "other"
APIS = (
    "chat",
    "completions",
    "responses",
    "messages",
    "review",
    "guardrail",
    "moderations",
    "count_tokens",
    "embeddings",
    "models",
    "pass_through",
    "release",
)
KINDS = (
    "invalid_request",
    "authentication",
    "permission",
    "not_found",
    "too_large",
    "rate_limit",
    "overloaded",
    "upstream",
    "upstream_timeout",
    "unreviewed",
    "audit",
    "cancelled",
)
"""The kinds of RequestError, and `cancelled` for clients that disconnected."""

Called = Literal["safe", "unsafe", "overrefuse", "unreviewed"]
"""The reviewer's label of a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """The gateway's state at the moment of a scrape."""

    active: int
    waiting: int
    draining: bool
    breaker: BreakerState
    keys: int
    """Number of valid keys."""
    keys_stale: bool
    """The key file has changed and is invalid; the earlier keys stay valid."""
    bundle: str
    """Id of the bundle that serves."""
    unaudited: int
    """Answers sent without an audit record since the start."""
    audit_failing: bool
    """The audit log cannot be written."""
    self_test: Mapping[str, bool]
    """Reply of the feedback model's self-test -> it was reviewed rightly; empty without one."""


class GatewayMetrics(Collector):
    """Counts the gateway's requests, reviews, revisions and errors."""

    def __init__(
        self,
        status: Callable[[], GatewayStatus],
        categories: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set all metrics to zero.

        Args:
            status: called at every scrape.
            categories: rule id -> category, of the stage-1 rules.
            clock: monotonic seconds.
        """
        self._status = status
        self._categories = categories
        self._requests = LabeledCounter(
            "waltzrl_requests",
            "Choices answered, and what the reviewer called the draft and the reply that left.",
            ("api", "stage", "decision", "draft_verdict", "final_verdict"),
        )
        self._triggered = LabeledCounter(
            "waltzrl_feedback_triggered", "Drafts whose feedback asked for a revision.", ("stage",)
        )
        self._changed = LabeledCounter(
            "waltzrl_changes_made", "Replies that left revised, or as a refusal.", ("stage",)
        )
        self._flagged = LabeledCounter(
            "waltzrl_flagged",
            "Drafts that feedback objected to, by what rules or the model found.",
            ("category",),
            [(category,) for category in {*categories.values(), OTHER}],
        )
        self._errors = LabeledCounter(
            "waltzrl_errors", "Errors that were answered.", ("api", "kind")
        )
        self._forwarded = LabeledCounter(
            "waltzrl_forwarded", "Requests that the upstream answered without a review.", ("api",)
        )
        self._failures = LabeledCounter(
            "waltzrl_review_failures",
            "Reviews by a model that did not come about.",
            ("cause",),
            [(cause,) for cause in get_args(ReviewFailure)],
        )
        self._total, self._feedback, self._revision = (
            Histogram(f"waltzrl_{name}_time", help_text, "stage", TIMES, BOTH_UNITS)
            for name, help_text in (
                ("total", "Wall time of a choice, from request to verdict."),
                ("feedback", "Wall time of one review."),
                ("revision", "Wall time of one revision."),
            )
        )
        self._held = Histogram(
            "waltzrl_held_time", "Time after the draft was done.", "stage", TIMES, SECONDS
        )
        self._first_words = Histogram(
            "waltzrl_first_words_time", "Time until words left.", "mode", TIMES, SECONDS
        )
        self._safety = Histogram(
            "waltzrl_safety_score", "1 - risk of drafts that got one.", "stage", SCORES, {"": 1.0}
        )
        self._recent = SlidingCounter(4, slice_seconds=SLICE_SECONDS, slices=SLICES, clock=clock)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def served(self, served: ServedChoice) -> None:
        """Count a choice that was answered, or failed."""
        exchange = served.exchange
        collaboration, stage = exchange.collaboration, str(exchange.stage)
        api = "review" if exchange.mode == "review" else exchange.api
        self._total.add(stage, exchange.milliseconds)
        for milliseconds in served.review_milliseconds:
            self._feedback.add(stage, milliseconds)
        if collaboration is None:
            self.failed(api, exchange.reason)
            self._requests.add(api, stage, "error", "unreviewed", "unreviewed")
            return
        self._add_times(served, collaboration)
        if exchange.decision != "draft":
            self._changed.add(stage)
        draft: Called = "unreviewed"
        final: Called = "unreviewed"
        if rounds := collaboration.rounds:
            draft = _label(rounds[0].feedback)
            final = "safe" if exchange.decision == "refused" else _final(rounds)
            self._add_feedback(rounds[0].feedback, stage)
        self._requests.add(api, stage, exchange.decision, draft, final)
        if draft != "unreviewed" and api != "review":
            triggered = draft != "safe"
            self._recent.add(True, final == "unsafe", final == "overrefuse", triggered)

    def _add_times(self, served: ServedChoice, collaboration: Collaboration) -> None:
        exchange = served.exchange
        stage = str(exchange.stage)
        if served.first_words_milliseconds is not None:
            self._first_words.add(exchange.mode, served.first_words_milliseconds)
        self._held.add(stage, max(0.0, exchange.milliseconds - collaboration.draft.milliseconds))
        for revision in collaboration.replies[1:]:
            if revision.origin == "policy":
                self._revision.add(stage, revision.milliseconds)

    def failed(self, api: str, kind: str) -> None:
        """Count an error of a request that never reached the gateway, so not passed to `served`."""
        self._errors.add(api if api in APIS else OTHER, kind if kind in KINDS else OTHER)

    def forwarded(self, api: str) -> None:
        """Count a request that the upstream answered without a review."""
        self._forwarded.add(api)

    def review_failed(self, cause: ReviewFailure) -> None:
        """Count a failed review by a model."""
        self._failures.add(cause)

    def add(self, collector: Collector) -> None:
        """Export the metrics of another package, too."""
        self._registry.register(collector)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, for the registry."""
        counts = (self._requests, self._triggered, self._changed, self._flagged, self._errors)
        for counter in (*counts, self._forwarded, self._failures):
            yield counter.family()
        times = (self._total, self._feedback, self._revision, self._held, self._first_words)
        for histogram in (*times, self._safety):
            yield from histogram.families()
        yield from self._rates()
        yield from _gauges(self._status())

    def _add_feedback(self, feedback: Feedback, stage: str) -> None:
        if feedback.risk is not None:
            self._safety.add(stage, 1 - feedback.risk)
        if feedback.asks_for_revision:
            self._triggered.add(stage)
            by_rules = {self._categories.get(rule, OTHER) for rule in feedback.rules}
            for category in by_rules or {feedback.category or OTHER}:
                self._flagged.add(category)

    def _rates(self) -> Iterator[Metric]:
        """Yield the rates of the last five minutes; without a sample they are missing, not 0."""
        samples, unsafe, overrefuse, triggered = self._recent.totals()
        yield _gauge("waltzrl_rate_samples", f"Reviewed and served {LATELY}.", samples)
        for name, help_text, count in (
            ("unsafe_rate", "Share of replies that left although called unsafe", unsafe),
            ("overrefusal_rate", "Share of replies that left as needless refusals", overrefuse),
            ("feedback_trigger_rate", "Share of drafts that feedback objected to", triggered),
        ):
            share = count / samples if samples else None
            yield _gauge(f"waltzrl_{name}", f"{help_text} {LATELY}.", share)


def _label(feedback: Feedback) -> Called:
    if not feedback.well_formed:
        return "unreviewed"
    return "unsafe" if feedback.unsafe else "overrefuse" if feedback.overrefuse else "safe"


def _final(rounds: Sequence[Round]) -> Called:
    """Return the label of the reply that was sent; the last revision may not be reviewed."""
    *earlier, last = rounds
    return _label(last.feedback.after(earlier)) if last.revision is None else "unreviewed"


def _gauges(status: GatewayStatus) -> Iterator[Metric]:
    help_text = "Answers that went out without an audit record."
    yield CounterMetricFamily("waltzrl_unaudited", help_text, value=status.unaudited)
    yield _gauge("waltzrl_audit_failing", "1 if the audit log fails.", status.audit_failing)
    yield _gauge("waltzrl_active_requests", "Requests under way.", status.active)
    yield _gauge("waltzrl_waiting_requests", "Requests that wait for a place.", status.waiting)
    yield _gauge("waltzrl_draining", "1 while the gateway shuts down.", status.draining)
    yield _gauge("waltzrl_keys", "Valid API keys.", status.keys)
    yield _gauge("waltzrl_keys_stale", "1 if the key file cannot be read.", status.keys_stale)
    breaker = GaugeMetricFamily("waltzrl_breaker", "1 for its state.", labels=["state"])
    for state in get_args(BreakerState):
        breaker.add_metric([state], state == status.breaker)
    yield breaker
    tested = GaugeMetricFamily(
        "waltzrl_self_test_passed",
        "1 if the feedback model reviewed a reply of its self-test rightly.",
        labels=["reply"],
    )
    for name, passed in status.self_test.items():
        tested.add_metric([name], passed)
    yield tested
    build = GaugeMetricFamily("waltzrl_build_info", "What serves.", labels=["version", "bundle"])
    build.add_metric([__version__, status.bundle], 1)
    yield build


def _gauge(name: str, help_text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)
