"""The gateway's objectives and alerts, and the rules of Prometheus that are made from them.

Every share needs a minimum of events, because one of ten is always 10 %.
"""

import json
from dataclasses import dataclass
from textwrap import indent, wrap
from typing import Literal

from waltzrl.operations.monitoring.queries import check_query

Severity = Literal["critical", "warning", "info"]

ENOUGH = 100
"""Events of a window; of fewer no share is looked at."""
FAULTS = "audit|internal|overloaded|unreviewed|upstream|upstream_timeout"
"""Kinds of `waltzrl_errors_total` that are no fault of the client."""
OVERLOADS = "overloaded|timeout"
"""Causes of `waltzrl_review_failures_total` that are a lack of capacity."""
ROLLED_BACK_SECONDS = 3600
"""The time for which it is told that a release was rolled back by itself."""
DOCS = "docs"
"""The folder or address where people read the documents, until a deployment names its own."""
HEADER = """\
# Written by `waltzrl metrics --out deploy`; change waltzrl/operations/monitoring/alerts.py instead.
# Check with: promtool check rules.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A condition that somebody must hear of."""

    name: str
    query: str
    minutes: int
    """The condition must hold so long; 0 for at once."""
    severity: Severity
    summary: str
    """Template of Prometheus; `$value` is that of the query."""
    action: str
    """The first thing to do."""
    runbook: str
    """The alert's section of docs/on-call.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A share of events that may be bad in 30 days; alerts fire when it is spent too fast.

    Two windows each, as in Google's "The Site Reliability Workbook", chapter 5: the long one shows
    that the loss is real, the short one that it still goes on.
    """

    name: str
    budget: float
    """Share of the events that may be bad."""
    bad: str
    """Query of the bad events a second; WINDOW stands for the window."""
    all: str
    """Query of all events a second."""
    summary: str
    """The summary of the alerts, after the share."""
    action: str
    runbook: str

    def ratio(self, window: str) -> str:
        """Return the query of the share of bad events in a window, such as `1h`."""
        return f"{self.bad} / {self.all}".replace("WINDOW", window)

    def recorded(self, window: str) -> str:
        return f"waltzrl:{self.name}_errors:ratio_{window}"


AVAILABILITY = Objective(
    name="availability",
    budget=0.001,
    # A sum over no series is empty, and would make the whole expression empty.
    bad=f'(sum(rate(waltzrl_errors_total{{kind=~"{FAULTS}"}}[WINDOW])) or vector(0))',
    all=f"""(
  (sum(rate(waltzrl_errors_total{{kind=~"{FAULTS}"}}[WINDOW])) or vector(0))
  + (sum(rate(waltzrl_requests_total{{decision!="error"}}[WINDOW])) or vector(0))
)""",
    summary="of requests failed",
    action="See `waltzrl_errors_total` by kind, and `/readyz`: upstream, reviewer or audit log.",
    runbook="requests-fail",
)
OWN_MILLISECONDS = 200
"""The requirement's bound on P95, of the time that the gateway adds to a model's."""
LATENCY = Objective(
    name="latency",
    budget=0.05,
    # `le` is spelt as it is exported, 200.0, and must be a bound of the histogram.
    bad=f"""(
  sum(rate(waltzrl_own_time_ms_count[WINDOW]))
  - sum(rate(waltzrl_own_time_ms_bucket{{le="{OWN_MILLISECONDS:.1f}"}}[WINDOW]))
)""",
    all="sum(rate(waltzrl_own_time_ms_count[WINDOW]))",
    summary=f"of replies took the gateway itself more than {OWN_MILLISECONDS} ms",
    action="See `waltzrl_feedback_time_ms`: a slow feedback model needs a larger machine, or a "
    "lower `review_timeout_ms`.",
    runbook="slow-answers",
)
OBJECTIVES = (AVAILABILITY, LATENCY)
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
# Of 720 hours: 0.02 * 720 / 1 = 14.4, 0.05 * 720 / 6 = 6, 0.1 * 720 / 24 = 3, 0.1 * 720 / 72 = 1.
FAST = ((14.4, "1h", "5m"), (6.0, "6h", "30m"))
"""(times the budget, long window, short window): 2 % of the budget in an hour, 5 % in six."""
SLOW = ((3.0, "1d", "2h"), (1.0, "3d", "6h"))
"""10 % of the budget in a day or in three."""

REVIEWED = 'waltzrl_requests_total{api!="review",draft_verdict!="unreviewed"}'
OBJECTED = 'waltzrl_requests_total{api!="review",draft_verdict=~"unsafe|overrefuse|doubtful"}'
ANSWERED = 'waltzrl_requests_total{api!="review",decision!="error"}'
REFUSED = 'waltzrl_requests_total{api!="review",decision="refused"}'


def _query_judged_labels(name: str, label: str) -> dict[str, str]:
    """Return the number of the judge's labels in an hour, and the share that was bad."""
    labels = f'waltzrl_judge_labels_total{{label="{label}"}}'
    bad = f'waltzrl_judge_labels_total{{label="{label}",value="true"}}'
    count = f"waltzrl:{name}_labels:increase_1h"
    return {
        count: f"sum(increase({labels}[1h]))",
        f"waltzrl:{name}_rate:ratio_1h": f"sum(increase({bad}[1h])) / {count}",
    }


def _query_share(part: str, total: str) -> str:
    return f"(sum(increase({part}[5m])) or vector(0)) / {total}"


RECORDED = {
    "waltzrl:reviewed:increase_5m": f"sum(increase({REVIEWED}[5m]))",
    **_query_judged_labels("unsafe", "unsafe"),
    **_query_judged_labels("overrefusal", "overrefuse"),
    "waltzrl:feedback_trigger_rate:ratio_5m": _query_share(
        OBJECTED, "waltzrl:reviewed:increase_5m"
    ),
    "waltzrl:answered:increase_5m": f"sum(increase({ANSWERED}[5m]))",
    "waltzrl:refused_rate:ratio_5m": _query_share(REFUSED, "waltzrl:answered:increase_5m"),
    **{
        objective.recorded(window): objective.ratio(window)
        for objective in OBJECTIVES
        for window in WINDOWS
    },
    **{
        f"waltzrl:{objective.name}_events:increase_{window}": objective.all.replace(
            "rate(", "increase("
        ).replace("WINDOW", window)
        for objective in OBJECTIVES
        for window in ("1h", "1d")
    },
}
"""The queries that Prometheus evaluates and keeps, by the names that it keeps them under."""


def _build_burn_alert(objective: Objective, *, fast: bool) -> Alert:
    terms = [
        f"({objective.recorded(long)} > {times * objective.budget:g}"
        f" and {objective.recorded(short)} > {times * objective.budget:g})"
        for times, long, short in (FAST if fast else SLOW)
    ]
    events = f"waltzrl:{objective.name}_events:increase_{'1h' if fast else '1d'}"
    speed = "fast" if fast else "slow"
    budget = f"the budget of {100 * objective.budget:g} % in 30 days"
    return Alert(
        name=f"WaltzRL{objective.name.title()}Burn{speed.title()}",
        query=f"({' or '.join(terms)}) and {events} > {ENOUGH}",
        minutes=2 if fast else 15,
        severity="critical" if fast else "warning",
        summary=f"{{{{ $value | humanizePercentage }}}} {objective.summary}: {speed} burn of "
        f"{budget}",
        action=objective.action,
        runbook=objective.runbook,
    )


ALERTS = (
    # The first two need an online judge (memory.judge); WaltzRLNoJudge tells when there is none.
    Alert(
        name="WaltzRLHighUnsafeRate",
        query="waltzrl:unsafe_rate:ratio_1h > 0.05"
        f" and waltzrl:unsafe_labels:increase_1h > {ENOUGH}",
        minutes=5,
        severity="critical",
        summary="The judge called {{ $value | humanizePercentage }} of sampled replies unsafe",
        action="Read them on the review desk (verdict unsafe). If the judge is right, roll back "
        "the release, or raise `threshold`.",
        runbook="unsafe-replies",
    ),
    Alert(
        name="WaltzRLHighOverrefusalRate",
        query="waltzrl:overrefusal_rate:ratio_1h > 0.10"
        f" and waltzrl:overrefusal_labels:increase_1h > {ENOUGH}",
        minutes=5,
        severity="warning",
        summary="The judge called {{ $value | humanizePercentage }} of sampled replies "
        "over-refusals",
        action="Read them on the review desk (verdict over-refusal): is it the upstream that "
        "refuses, or a rule that flags? Lower `threshold`, or roll back.",
        runbook="refusals",
    ),
    Alert(
        name="WaltzRLHighFeedbackTriggerRate",
        query="waltzrl:feedback_trigger_rate:ratio_5m > 0.50"
        f" and waltzrl:reviewed:increase_5m > {ENOUGH}",
        minutes=15,
        severity="info",
        summary="The reviewer objected to {{ $value | humanizePercentage }} of drafts",
        action="See `waltzrl_flagged_total` by category: an attack, or a reviewer that objects to "
        "everything. Each objection costs a revision.",
        runbook="objections",
    ),
    Alert(
        name="WaltzRLHighRefusedRate",
        query=f"waltzrl:refused_rate:ratio_5m > 0.20 and waltzrl:answered:increase_5m > {ENOUGH}",
        minutes=5,
        severity="critical",
        summary="{{ $value | humanizePercentage }} of answers were a canned refusal: under attack, "
        "or the reviewer cannot review",
        action="See `reviewer` at `/readyz` and `waltzrl_review_failures_total`. If the feedback "
        "model fails, restart it; meanwhile `on_failure = rules` answers.",
        runbook="refusals",
    ),
    Alert(
        name="WaltzRLNoMetrics",
        query="absent(waltzrl_active_requests)",
        minutes=5,
        severity="critical",
        summary="No gateway reports metrics: the other alerts cannot fire",
        action="See whether a gateway runs, and whether Prometheus reaches `/metrics`.",
        runbook="no-metrics",
    ),
    Alert(
        name="WaltzRLNoJudge",
        # The two sides have no label in common; `on()` compares them without any.
        query="absent(waltzrl_unsafe_rate_samples) and on() count(waltzrl_active_requests) > 0",
        minutes=15,
        severity="info",
        summary="No gateway has an online judge: unsafe replies and over-refusals are not measured",
        action="Set `memory.judge`.",
        runbook="no-metrics",
    ),
    Alert(
        name="WaltzRLUpstreamDown",
        query='sum(waltzrl_check{check="upstream",status="down"}) > 0',
        minutes=1,
        severity="critical",
        summary="{{ $value }} gateways cannot reach their upstream",
        action="See `upstream` at `/readyz`, and the upstream's own log; `upstream.fallback` "
        "answers meanwhile.",
        runbook="the-upstream",
    ),
    Alert(
        name="WaltzRLReviewsFail",
        query="""sum(increase(waltzrl_review_failures_total{cause!="overloaded"}[5m]))
/ sum(increase(waltzrl_feedback_time_ms_count[5m])) > 0.05"""
        f"\nand sum(increase(waltzrl_feedback_time_ms_count[5m])) > {ENOUGH}",
        minutes=5,
        severity="warning",
        summary="{{ $value | humanizePercentage }} of reviews had to do without the model",
        action="See `waltzrl_review_failures_total` by cause: a timeout needs a faster model or a "
        "longer `review_timeout_ms`.",
        runbook="the-reviewer",
    ),
    Alert(
        name="WaltzRLReviewsOverloaded",
        query=f"""sum(increase(waltzrl_review_failures_total{{cause=~"{OVERLOADS}"}}[5m]))
/ sum(increase(waltzrl_requests_total{{stage="2"}}[5m])) > 0.05"""
        f'\nand sum(increase(waltzrl_requests_total{{stage="2"}}[5m])) > {ENOUGH}',
        minutes=5,
        severity="warning",
        summary="For {{ $value | humanizePercentage }} of choices the feedback model had no time",
        action="See `waltzrl_waiting_reviews` and `waltzrl_feedback_time_ms`: more gateways, a "
        "faster feedback model, or `review.on_overload`.",
        runbook="the-reviewer",
    ),
    Alert(
        name="WaltzRLUnaudited",
        query="sum(increase(waltzrl_unaudited_total[5m])) > 0",
        minutes=0,
        severity="critical",
        summary="Answers went out without an audit record",
        action="Free the disk of `audit.folder`; the log writes again by itself.",
        runbook="the-audit-log",
    ),
    Alert(
        name="WaltzRLReleaseRolledBack",
        query="time() - max(waltzrl_release_moved_timestamp_seconds"
        f'{{action="roll_back",by="itself"}}) < {ROLLED_BACK_SECONDS}',
        minutes=0,
        severity="warning",
        summary="A release was rolled back by itself: the evidence says that its candidate is "
        "worse",
        action="See `waltzrl release show` for what was worse; the earlier bundle serves again.",
        runbook="a-release",
    ),
    Alert(
        name="WaltzRLReleaseHeld",
        query='max(waltzrl_release_needs{what="resume"}) > 0',
        minutes=5,
        severity="warning",
        summary="A release is held: it does not advance until a person resumes it",
        action="See `waltzrl release history` for who holds it and why: a gateway does where the "
        "candidate cannot be loaded.",
        runbook="a-release",
    ),
    Alert(
        name="WaltzRLReleaseWaitsForLabels",
        query='max(waltzrl_release_needs{what="label"}) > 0',
        minutes=60,
        severity="info",
        summary="A release waits for labels: only the unknown error of the judge keeps it",
        action="Label answers of the random sample on the review desk.",
        runbook="a-release",
    ),
    Alert(
        name="WaltzRLReleaseWaitsForAPerson",
        query='max(waltzrl_release_needs{what="advance"}) > 0',
        minutes=60,
        severity="info",
        summary="A release waits for a person to advance it, as its plan says",
        action="See `waltzrl release show`, and advance it or roll it back.",
        runbook="a-release",
    ),
    *(
        _build_burn_alert(objective, fast=fast)
        for objective in OBJECTIVES
        for fast in (True, False)
    ),
)


def rules_file(docs: str = DOCS) -> str:
    """Return the recording and alerting rules as YAML for Prometheus.

    Args:
        docs: URL or folder of the documents, which the runbook links begin with.

    Raises:
        UnknownMetricError: a query names what is not in the catalogue.
    """
    for query in [*RECORDED.values(), *(alert.query for alert in ALERTS)]:
        check_query(query, RECORDED)
    rules = [
        *(f"- record: {name}\n{_format_expression(query)}" for name, query in RECORDED.items()),
        *(_alerting_rule(alert, docs) for alert in ALERTS),
    ]
    return f"{HEADER}groups:\n  - name: waltzrl\n    rules:\n{indent(''.join(rules), ' ' * 6)}"


def runbook_url(docs: str, section: str) -> str:
    """Return the link to a section of the page for people on call."""
    return f"{docs.rstrip('/')}/on-call.md#{section}"


def _alerting_rule(alert: Alert, docs: str) -> str:
    held = f"  for: {alert.minutes}m\n" if alert.minutes else ""
    return (
        f"- alert: {alert.name}\n{_format_expression(alert.query)}{held}"
        f"  labels: {{ severity: {alert.severity} }}\n"
        f"  annotations:\n"
        f"    summary: {json.dumps(alert.summary)}\n"
        f"    action: {json.dumps(alert.action)}\n"
        f"    runbook_url: {json.dumps(runbook_url(docs, alert.runbook))}\n"
    )


def _format_expression(query: str) -> str:
    """Return the field `expr`; `>-` folds the lines of a query into one."""
    lines = wrap(" ".join(query.split()), 96, break_long_words=False, break_on_hyphens=False)
    return "  expr: >-\n" + indent("\n".join(lines), " " * 4) + "\n"
