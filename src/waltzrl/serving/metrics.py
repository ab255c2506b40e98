"""What operators watch, in Prometheus's text format.

Nothing that anybody wrote gets in: every label has a small, fixed set of values. To be called in
the event loop's thread only.
"""

import time
from collections.abc import Callable, Iterator, Mapping
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
"""Milliseconds: rules take a twentieth of one, models many thousands."""
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SECONDS = {"_seconds": 1e-3}
BOTH_UNITS = {"_seconds": 1e-3, "_ms": 1.0}

LATELY = "in the last five minutes, by the reviewer's own labels"
SLICE_SECONDS, SLICES = 10, 30

OTHER = "other"
APIS = ("chat", "responses", "messages", "review")
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
    "audit",
    "cancelled",
)
"""What can fail: the kinds of RequestError, and clients that went away."""

Called = Literal["safe", "unsafe", "overrefuse", "unreviewed"]
"""What the reviewer called a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """What holds at the moment of a scrape."""

    active: int
    waiting: int
    draining: bool
    breaker: BreakerState
    keys: int
    """Valid ones."""
    keys_stale: bool
    """The key file has changed and cannot be read."""
    bundle: str
    """Id of what serves."""
    unaudited: int
    """Answers that went out without an audit record, since the start."""
    audit_failing: bool
    """The disk does not take the audit log's records."""


class GatewayMetrics(Collector):
    """Counts what the gateway does."""

    def __init__(
        self,
        now: Callable[[], GatewayStatus],
        categories: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin at zero.

        Args:
            now: asked at every scrape.
            categories: of each stage-1 rule, by its id.
            clock: seconds that never go back.
        """
        self._now = now
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
            "Drafts that feedback objected to, by what stage 1 found.",
            ("category",),
            [(category,) for category in {*categories.values(), OTHER}],
        )
        self._errors = LabeledCounter(
            "waltzrl_errors", "Errors that were answered.", ("api", "kind")
        )
        self._failures = LabeledCounter(
            "waltzrl_review_failures",
            "Reviews by a model that did not come about.",
            ("cause",),
            [(cause,) for cause in get_args(ReviewFailure)],
        )
        self._total, self._feedback, self._revision = (
            Histogram(f"waltzrl_{name}_time", what, "stage", TIMES, BOTH_UNITS)
            for name, what in (
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
        self._timed(served, collaboration)
        if exchange.decision != "draft":
            self._changed.add(stage)
        draft: Called = "unreviewed"
        final: Called = "unreviewed"
        if rounds := collaboration.rounds:
            draft = _called(rounds[0].feedback)
            final = "safe" if exchange.decision == "refused" else _final(rounds[-1])
            self._reviewed(rounds[0].feedback, stage)
        self._requests.add(api, stage, exchange.decision, draft, final)
        if draft != "unreviewed" and api != "review":
            asked = draft != "safe"
            self._recent.add(True, final == "unsafe", final == "overrefuse", asked)

    def _timed(self, served: ServedChoice, collaboration: Collaboration) -> None:
        exchange = served.exchange
        stage = str(exchange.stage)
        if served.first_words_milliseconds is not None:
            self._first_words.add(exchange.mode, served.first_words_milliseconds)
        self._held.add(stage, max(0.0, exchange.milliseconds - collaboration.draft.milliseconds))
        for revision in collaboration.replies[1:]:
            if revision.origin == "policy":
                self._revision.add(stage, revision.milliseconds)

    def failed(self, api: str, kind: str) -> None:
        """Count a request that got an error and of which `served` is not told."""
        self._errors.add(api if api in APIS else OTHER, kind if kind in KINDS else OTHER)

    def review_failed(self, cause: ReviewFailure) -> None:
        """Count a review by a model that did not come about."""
        self._failures.add(cause)

    def add(self, collector: Collector) -> None:
        """Export what another room counts, too."""
        self._registry.register(collector)

    def exposition(self) -> bytes:
        """Return everything in Prometheus's text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, for the registry."""
        counts = (self._requests, self._triggered, self._changed, self._flagged, self._errors)
        for tally in (*counts, self._failures):
            yield tally.family()
        times = (self._total, self._feedback, self._revision, self._held, self._first_words)
        for spread in (*times, self._safety):
            yield from spread.families()
        yield from self._rates()
        yield from _gauges(self._now())

    def _reviewed(self, feedback: Feedback, stage: str) -> None:
        if feedback.risk is not None:
            self._safety.add(stage, 1 - feedback.risk)
        if feedback.asks_for_revision:
            self._triggered.add(stage)
            for category in {self._categories.get(rule, OTHER) for rule in feedback.rules or ("",)}:
                self._flagged.add(category)

    def _rates(self) -> Iterator[Metric]:
        """Yield shares of what was reviewed lately; none while nothing was, and never a guess."""
        samples, unsafe, overrefuse, triggered = self._recent.totals()
        yield _gauge("waltzrl_rate_samples", f"Reviewed and served {LATELY}.", samples)
        for name, what, count in (
            ("unsafe_rate", "Share of replies that left although called unsafe", unsafe),
            ("overrefusal_rate", "Share of replies that left as needless refusals", overrefuse),
            ("feedback_trigger_rate", "Share of drafts that feedback objected to", triggered),
        ):
            share = count / samples if samples else None
            yield _gauge(f"waltzrl_{name}", f"{what} {LATELY}.", share)


def _called(feedback: Feedback) -> Called:
    if not feedback.well_formed:
        return "unreviewed"
    return "unsafe" if feedback.unsafe else "overrefuse" if feedback.overrefuse else "safe"


def _final(last: Round) -> Called:
    """Say what the reviewer called the reply that left; it need not have seen a last revision."""
    return _called(last.feedback) if last.revision is None else "unreviewed"


def _gauges(now: GatewayStatus) -> Iterator[Metric]:
    lost = "Answers that went out without an audit record."
    yield CounterMetricFamily("waltzrl_unaudited", lost, value=now.unaudited)
    yield _gauge("waltzrl_audit_failing", "1 if the audit log fails.", now.audit_failing)
    yield _gauge("waltzrl_active_requests", "Requests under way.", now.active)
    yield _gauge("waltzrl_waiting_requests", "Requests that wait for a place.", now.waiting)
    yield _gauge("waltzrl_draining", "1 while the gateway shuts down.", now.draining)
    yield _gauge("waltzrl_keys", "Valid API keys.", now.keys)
    yield _gauge("waltzrl_keys_stale", "1 if the key file cannot be read.", now.keys_stale)
    breaker = GaugeMetricFamily("waltzrl_breaker", "1 for its state.", labels=["state"])
    for state in get_args(BreakerState):
        breaker.add_metric([state], state == now.breaker)
    yield breaker
    build = GaugeMetricFamily("waltzrl_build_info", "What serves.", labels=["version", "bundle"])
    build.add_metric([__version__, now.bundle], 1)
    yield build


def _gauge(name: str, what: str, value: float | None) -> Metric:
    return GaugeMetricFamily(name, what, value=value)
