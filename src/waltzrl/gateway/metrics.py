"""The gateway's metrics, in Prometheus's text format.

Every label has a small, fixed set of values, so no text of a user can appear in the metrics. Not
thread-safe: call it from the event loop's thread only.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from waltzrl import __version__
from waltzrl.agents.breaker import BreakerState
from waltzrl.foundation.counters import (
    Histogram,
    LabeledCounter,
    SlidingCounter,
    build_family,
    build_states,
    yield_rate,
)
from waltzrl.foundation.families import Family, families_of, format_exposition, merge_families
from waltzrl.gateway.exchange import ServedChoice
from waltzrl.gateway.health import HealthStatus
from waltzrl.gateway.metric_groups import (
    BackendCounters,
    MetricGroup,
    ReviewScores,
    TokenPrice,
    TokenUse,
)
from waltzrl.records import (
    Collaboration,
    Feedback,
    Round,
    ServedExchange,
)

SLICE_SECONDS, SLICES = 10, 30
MOST_KEYS = 200
"""The most API keys whose names have series of their own; the rest count as other."""

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
    "feedback",
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
    "internal",
    "cancelled",
)
"""The kinds of RequestError, and `cancelled` for choices that were left: the client disconnected,
or another choice of the request failed.
"""

OtherMetrics: TypeAlias = Callable[[], Awaitable[Sequence[Family]]]

Called = Literal["safe", "doubtful", "unsafe", "overrefuse", "unreviewed"]
"""The reviewer's label of a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """The gateway's state at the moment of a scrape."""

    gauges: Mapping[str, float]
    """The names of gauges without labels, after `waltzrl_` -> their values."""
    checks: Mapping[str, HealthStatus]
    """The checks of `/readyz` -> their states."""
    breakers: Mapping[str, BreakerState]
    """The names of the breakers -> their states."""
    bundle: str
    """The id of the bundle that serves."""
    self_test: Mapping[str, bool]
    """The replies of the feedback model's self-test -> whether they were reviewed rightly; empty
    without one.
    """
    policies: Mapping[str, str] = field(default_factory=dict)
    """The name of each policy -> the id of its bundle."""


class GatewayMetrics(MetricGroup):
    """Counts the gateway's requests, reviews, revisions and errors."""

    def __init__(
        self,
        categories: Mapping[str, str],
        *,
        backend: BackendCounters | None = None,
        knows_model: Callable[[str], bool] = lambda _: False,
        price: TokenPrice | None = None,
        others: OtherMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set all metrics to zero.

        Args:
            categories: rule id -> category, of the stage-1 rules.
            backend: counts what the models behind the gateway answer; None counts nothing there.
            knows_model: whether a name is that of a model, and no text of a client; the others
                count as other.
            price: of tokens; None where costs are not recorded.
            others: returns the metrics of the gateway's other workers; None if there are none.
            clock: monotonic seconds.
        """
        self._others = others
        self._categories = categories
        self._knows_model = knows_model
        self._keys: set[str] = set()
        self._models: set[str] = set()
        """The names that are known to be names of models."""
        self._requests = LabeledCounter("waltzrl_requests_total")
        self._triggered = LabeledCounter("waltzrl_feedback_triggered_total")
        self._changed = LabeledCounter("waltzrl_changes_made_total")
        flagged = [(category,) for category in {*categories.values(), OTHER}]
        self._flagged = LabeledCounter("waltzrl_flagged_total", flagged)
        self._errors = LabeledCounter("waltzrl_errors_total")
        self._forwarded = LabeledCounter("waltzrl_forwarded_total")
        self._key_requests = LabeledCounter("waltzrl_key_requests_total")
        self._total = Histogram("waltzrl_total_time_ms")
        self._generation = Histogram("waltzrl_conversation_generation_time_ms")
        self._feedback = Histogram("waltzrl_feedback_time_ms")
        self._revision = Histogram("waltzrl_revision_time_ms")
        self._held = Histogram("waltzrl_held_time_ms")
        self._own = Histogram("waltzrl_own_time_ms")
        self._queue = Histogram("waltzrl_queue_time_ms")
        self._first_words = Histogram("waltzrl_first_words_time_ms")
        self._rounds = Histogram("waltzrl_coaching_rounds")
        self._scores, self._token_use = ReviewScores(), TokenUse(price)
        self._recent = SlidingCounter(4, slice_seconds=SLICE_SECONDS, slices=SLICES, clock=clock)
        # Not the global one, in which a second gateway of this process would collide.
        self._registry = CollectorRegistry()
        for group in (self, backend or BackendCounters(), self._scores, self._token_use):
            self._registry.register(group)
        ProcessCollector(registry=self._registry)

    def served(self, served: ServedChoice) -> None:
        """Count a choice that was answered, or failed."""
        exchange = served.exchange
        collaboration, origin = exchange.collaboration, (str(exchange.stage), exchange.bundle)
        # the rates of what is served leave reviews out, and so an operator's own checks too
        api = "review" if exchange.mode == "review" or exchange.probe else exchange.api
        key = self._key(exchange.caller)
        self._key_requests.add(key)
        self._total.add(exchange.milliseconds, *origin)
        for milliseconds in served.review_milliseconds:
            self._feedback.add(milliseconds, *origin)
        if collaboration is None:
            self.failed(api, exchange.reason)
            self._requests.add(api, *origin, "error", "unreviewed", "unreviewed")
            if exchange.unfinished is not None:
                self._add_tokens(exchange, exchange.unfinished)
            return
        model = self._model(exchange.model)
        self._add_times(served, collaboration, model)
        self._add_tokens(exchange, collaboration)
        if exchange.decision != "draft":
            self._changed.add(*origin)
        draft: Called = "unreviewed"
        final: Called = "unreviewed"
        if rounds := collaboration.rounds:
            draft = _label_feedback(rounds[0].feedback)
            # A canned refusal is ours and needs no review.
            final = "safe" if exchange.decision == "refused" else _label_final_reply(rounds)
            if not exchange.probe:
                self._add_feedback(rounds[0].feedback, *origin)
                self._scores.add(rounds, *origin)
        self._requests.add(api, *origin, exchange.decision, draft, final)
        if api != "review":
            reviewed = draft != "unreviewed"
            triggered = reviewed and draft != "safe"
            self._recent.add(True, exchange.decision == "refused", reviewed, triggered)

    def _add_times(self, served: ServedChoice, collaboration: Collaboration, model: str) -> None:
        exchange = served.exchange
        origin = (str(exchange.stage), exchange.bundle)
        if served.first_words_milliseconds is not None:
            self._first_words.add(served.first_words_milliseconds, exchange.mode)
        if collaboration.draft.origin == "policy":
            self._generation.add(collaboration.draft.milliseconds, model)
        revised = [
            turn.revision.milliseconds
            for turn in collaboration.rounds
            if turn.revision is not None and turn.revision.origin == "policy"
        ]
        for milliseconds in revised:
            self._revision.add(milliseconds, *origin)
        self._rounds.add(len(revised), *origin)
        held = exchange.milliseconds - collaboration.draft.milliseconds
        self._held.add(max(0.0, held), *origin)
        own = exchange.own_milliseconds
        assert own is not None, "there was an answer"
        self._own.add(own, *origin)

    def _add_tokens(self, exchange: ServedExchange, collaboration: Collaboration) -> None:
        """Count the tokens of both roles in what was said."""
        prompt, key = collaboration.prompt, self._key(exchange.caller)
        conversation = ("conversation", self._model(exchange.model), key)
        asked, reviewer = (exchange.model, exchange.bundle), ("", exchange.bundle)
        self._token_use.add(conversation, asked, prompt, collaboration.draft)
        for turn in collaboration.rounds:
            if turn.revision is not None:
                self._token_use.add(conversation, asked, prompt, turn.revision)
            if (reply := turn.feedback.reply) is not None:
                named = "" if reply.usage is None else reply.usage.model
                self._token_use.add(("feedback", self._model(named), key), reviewer, prompt, reply)

    def _model(self, name: str) -> str:
        if name not in self._models:
            if not self._knows_model(name):
                return OTHER
            self._models.add(name)
        return name

    def _key(self, name: str) -> str:
        if name not in self._keys:
            if len(self._keys) >= MOST_KEYS:
                return OTHER
            self._keys.add(name)
        return name

    def failed(self, api: str, kind: str) -> None:
        """Count an error of a request that never reached the gateway, so not passed to `served`."""
        self._errors.add(api if api in APIS else OTHER, kind if kind in KINDS else OTHER)

    def forwarded(self, api: str) -> None:
        """Count a request that the upstream answered without a review."""
        self._forwarded.add(api)

    def queued(self, api: str, milliseconds: float) -> None:
        """Add the time that a request waited for a place."""
        self._queue.add(milliseconds, api)

    def add(self, collector: Collector) -> None:
        """Export the metrics of another package, too."""
        self._registry.register(collector)

    def families(self) -> list[Family]:
        """Return all metrics of this worker."""
        return families_of(self._registry)

    def exposition(self, others: Sequence[Family] = ()) -> bytes:
        """Return all metrics, those of other workers added, in Prometheus's text format 0.0.4."""
        return format_exposition(merge_families([self.families(), others]))

    async def scrape(self) -> bytes:
        """Return the metrics of all workers."""
        return self.exposition(() if self._others is None else await self._others())

    def collect(self) -> Iterator[Metric]:
        """Yield every metric but those of the groups, for the registry."""
        yield from super().collect()
        yield self._feedback.family("waltzrl_feedback_evaluation_time_ms")
        # The rates of the last five minutes; without a sample they are missing, not 0.
        answered, refused, reviewed, triggered = self._recent.totals()
        yield from yield_rate("waltzrl_refused_rate", refused, answered)
        yield from yield_rate("waltzrl_feedback_trigger_rate", triggered, reviewed)

    def _add_feedback(self, feedback: Feedback, *origin: str) -> None:
        if feedback.flags:
            self._triggered.add(*origin)
            by_rules = {self._categories.get(rule, OTHER) for rule in feedback.rules}
            for category in by_rules or {feedback.category or OTHER}:
                self._flagged.add(category)


def _label_feedback(feedback: Feedback) -> Called:
    if not feedback.well_formed:
        return "unreviewed"
    if feedback.unsafe:
        return "unsafe"
    return "overrefuse" if feedback.overrefuse else "doubtful" if feedback.doubtful else "safe"


def _label_final_reply(rounds: Sequence[Round]) -> Called:
    """Return the label of the reply that was sent; the last revision may not be reviewed."""
    *earlier, last = rounds
    return _label_feedback(last.feedback.after(earlier)) if last.revision is None else "unreviewed"


class StatusGauges(Collector):
    """The gateway's state, read at every scrape."""

    def __init__(self, status: Callable[[], GatewayStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, for the registry."""
        return _yield_gauges(self._status())


def _yield_gauges(status: GatewayStatus) -> Iterator[Metric]:
    for name, value in status.gauges.items():
        yield build_family(f"waltzrl_{name}", {(): value})
    yield build_states("waltzrl_check", status.checks, get_args(HealthStatus))
    yield build_states("waltzrl_breaker", status.breakers, get_args(BreakerState))
    yield build_family(
        "waltzrl_self_test_passed", {(name,): ok for name, ok in status.self_test.items()}
    )
    yield build_family("waltzrl_build_info", {(__version__, status.bundle): 1})
    yield build_family("waltzrl_policy_info", dict.fromkeys(status.policies.items(), 1))
