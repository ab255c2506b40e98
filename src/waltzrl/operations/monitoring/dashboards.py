"""The Grafana dashboards: panels as data, and the JSON that is made from them.

The first panels of each are those that the requirement names.
"""

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from waltzrl.foundation.files import Json
from waltzrl.operations.monitoring.alerts import (
    ANSWERED,
    DOCS,
    OBJECTED,
    OBJECTIVES,
    OWN_MILLISECONDS,
    REFUSED,
    REVIEWED,
    runbook_url,
)
from waltzrl.operations.monitoring.queries import check_query, of_bundle

PanelKind = Literal["timeseries", "heatmap", "stat"]
Unit = Literal["percentunit", "ms", "reqps", "short", "currencyUSD"]
"""Grafana's names of units."""

RATE_WINDOW = "$__rate_interval"
"""Grafana's variable: at least four scrapes."""
WIDTH, HEIGHT = 12, 8
"""The size of a panel, in cells of Grafana's grid, which has 24 columns."""
SOURCE: Mapping[str, Json] = {"type": "prometheus", "uid": "${datasource}"}
RELEASES_MOVED = "max by (action, by) (changes(waltzrl_release_moved_timestamp_seconds[1m])) > 0"
"""Query of the annotations."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of a dashboard."""

    title: str
    queries: Mapping[str, str]
    """Grafana's template of a legend, such as `{{stage}}`, or of a heat map's rows -> PromQL."""
    _: KW_ONLY
    unit: Unit = "short"
    kind: PanelKind = "timeseries"
    target: float | None = None
    """Drawn as a line."""
    about: str = ""
    """Shown where the reader points at the title."""
    runbook: str = ""
    """Section of docs/on-call.md that tells what to do."""
    every_bundle: bool = False
    """Show all bundles together, because a part of the query does not know them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page of panels."""

    uid: str
    """The dashboard's id, and the name of its file."""
    title: str
    panels: tuple[Panel, ...]


def _query_rate(series: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({series}[{RATE_WINDOW}]))"


def _query_increase(series: str, by: str) -> str:
    return f"sum by ({by}) (increase({series}[{RATE_WINDOW}]))"


def _query_share(part: str, whole: str, by: str = "") -> str:
    """Return a share; without a part it is 0, where the whole is known."""
    total = _query_rate(whole, by)
    return f"({_query_rate(part, by)} or 0 * {total}) / {total}"


def _query_objections(verdict: str) -> str:
    """Return the share of drafts to which the reviewer objected for one reason."""
    return _query_share(OBJECTED.replace("unsafe|overrefuse|doubtful", verdict), REVIEWED)


def _query_sampled_share(gauge: str) -> str:
    """Return the share of all gateways together, each weighted by the size of its sample."""
    return f"sum(waltzrl_{gauge} * waltzrl_{gauge}_samples) / sum(waltzrl_{gauge}_samples)"


def _query_judged(label: str) -> str:
    """Return the share of the judge's labels of the last hour that are true, by stage."""
    labels = f'waltzrl_judge_labels_total{{label="{label}"'
    part, whole = (
        f"sum by (stage) (increase({labels}{more}}}[1h]))" for more in (',value="true"', "")
    )
    return f"{part} / {whole}"


def _query_quantile(share: float, histogram: str, by: str = "") -> str:
    buckets = _query_rate(f"{histogram}_bucket", f"le, {by}" if by else "le")
    return f"histogram_quantile({share:g}, {buckets})"


def _query_quantiles(histogram: str) -> dict[str, str]:
    return {f"P{100 * share:g}": _query_quantile(share, histogram) for share in (0.5, 0.95, 0.99)}


def _query_mean(histogram: str) -> str:
    return f"{_query_rate(f'{histogram}_sum')} / {_query_rate(f'{histogram}_count')}"


def _build_heatmap(title: str, histogram: str, about: str) -> Panel:
    buckets = _query_increase(f"{histogram}_bucket", "le")
    return Panel(title, {"{{le}}": buckets}, kind="heatmap", about=about)


SAFETY = Dashboard(
    uid="waltzrl-safety",
    title="WaltzRL: safety",
    panels=(
        Panel(
            "Unsafe rate (ASR)",
            {
                "served replies, by the judge": _query_sampled_share("unsafe_rate"),
                "drafts, by the reviewer": _query_objections("unsafe"),
            },
            unit="percentunit",
            target=0.046,
            about="The judge's labels of a random sample, of the last hour and of all bundles; it "
            "needs memory.judge. The line is the paper's 4.6 %.",
            runbook="unsafe-replies",
        ),
        Panel(
            "Over-refusal rate (ORR)",
            {
                "served replies, by the judge": _query_sampled_share("overrefusal_rate"),
                "drafts, by the reviewer": _query_objections("overrefuse"),
            },
            unit="percentunit",
            target=0.099,
            about="As the unsafe rate. The line is the paper's 9.9 %.",
            runbook="refusals",
        ),
        Panel(
            "Objections by category",
            {"{{category}}": _query_increase("waltzrl_flagged_total", "category")},
            kind="heatmap",
        ),
        Panel(
            "Stage 1 and stage 2",
            {
                "unsafe, stage {{stage}}": _query_judged("unsafe"),
                "over-refusals, stage {{stage}}": _query_judged("overrefuse"),
                "changed, stage {{stage}}": _query_share(
                    ANSWERED.replace('decision!="error"', 'decision!~"draft|error"'),
                    ANSWERED,
                    "stage",
                ),
            },
            unit="percentunit",
            about="Labels of the judge in its random sample of the last hour, of all bundles; it "
            "needs memory.judge. Changed is the share of answers that were revised or refused.",
        ),
        Panel(
            "Decisions",
            {"{{decision}}": _query_rate("waltzrl_requests_total", "decision")},
            unit="reqps",
        ),
        Panel(
            "Canned refusals",
            {"share of answers": _query_share(REFUSED, ANSWERED)},
            unit="percentunit",
            target=0.2,
            about="The line is that of the alert WaltzRLHighRefusedRate.",
            runbook="refusals",
        ),
        Panel(
            "Reviews that the feedback model did not give",
            {"{{cause}}": _query_rate("waltzrl_review_failures_total", "cause")},
            unit="reqps",
            runbook="the-reviewer",
        ),
        Panel(
            "The judge's sample of the last hour",
            {
                "labels unsafe": "sum(waltzrl_unsafe_rate_samples)",
                "labels over-refusal": "sum(waltzrl_overrefusal_rate_samples)",
            },
            kind="stat",
            about="Of fewer than 100 labels read no rate.",
        ),
        Panel(
            "Release: share of the conversations",
            {
                "the candidate": "max(waltzrl_release_percentage) / 100",
                "rolled back": 'max(waltzrl_release{state="rolled_back"})',
            },
            unit="percentunit",
            about="Of the newest release. Moves of releases are marked in all panels.",
            runbook="a-release",
        ),
        Panel(
            "Gateways by the bundle that serves",
            {"{{bundle}}": "count by (bundle) (waltzrl_build_info)"},
            about="`waltzrl bundle show` tells what a bundle is.",
        ),
    ),
)

PERFORMANCE = Dashboard(
    uid="waltzrl-performance",
    title="WaltzRL: latency and load",
    panels=(
        Panel(
            "Latency that the gateway adds",
            _query_quantiles("waltzrl_own_time_ms"),
            unit="ms",
            target=OWN_MILLISECONDS,
            about="Its own time of an answer with the reviews: all but the upstream's draft and "
            "revisions. The line is the requirement's 200 ms for P95.",
            runbook="slow-answers",
        ),
        Panel(
            "Requests a second",
            {
                "{{api}}": _query_rate("waltzrl_requests_total", "api"),
                "error {{kind}}": _query_rate("waltzrl_errors_total", "kind"),
            },
            unit="reqps",
        ),
        Panel(
            "Feedback trigger rate (FTR)",
            {"stage {{stage}}": _query_share(OBJECTED, REVIEWED, "stage")},
            unit="percentunit",
            target=0.5,
            about="Share of drafts that feedback objected to; the line is the requirement's 50 %.",
        ),
        _build_heatmap(
            "DIR reward of revisions",
            "waltzrl_dir_reward",
            "The requirement's operational score; it is not the paper's reward, and never "
            "trained on.",
        ),
        Panel(
            "Latency of an answer",
            _query_quantiles("waltzrl_total_time_ms"),
            unit="ms",
            about="With the upstream's draft and revisions, which take most of it.",
            runbook="slow-answers",
        ),
        Panel(
            "Where the time goes, P95",
            {
                "P95 {{model}}": _query_quantile(
                    0.95, "waltzrl_conversation_generation_time_ms", "model"
                ),
                **{
                    f"P95 {part}": _query_quantile(0.95, f"waltzrl_{part}_time_ms")
                    for part in ("feedback", "revision", "held", "queue")
                },
            },
            unit="ms",
            about="The upstream's drafts by model, the reviews, the revisions, both together "
            "(held), and the wait for a place.",
            runbook="slow-answers",
        ),
        Panel(
            "Queues",
            {
                "in progress": "sum(waltzrl_active_requests)",
                "waiting for a place": "sum(waltzrl_waiting_requests)",
                "waiting for a review": "sum(waltzrl_waiting_reviews)",
                "waiting to be stored": "sum(waltzrl_recorder_waiting)",
            },
        ),
        Panel(
            "Tokens a second",
            {"{{role}}, {{direction}}": _query_rate("waltzrl_tokens_total", "role, direction")},
        ),
        Panel(
            "Cost an hour",
            {
                "{{role}}, {{model}}": "3600 * "
                + _query_rate("waltzrl_cost_usd_total", "role, model")
            },
            unit="currencyUSD",
            about="By the price book; it needs `budget`. Tokens without a price are in the next "
            "panel.",
        ),
        Panel(
            "Tokens a second without a price",
            {"{{role}}, {{model}}": _query_rate("waltzrl_unpriced_tokens_total", "role, model")},
        ),
        Panel(
            "Answers of the upstream",
            {"{{status}}": _query_rate("waltzrl_upstream_responses_total", "status")},
            unit="reqps",
        ),
        Panel(
            "Error budgets: times the speed that spends them in 30 days",
            {
                objective.name: f"({objective.ratio('1h')}) / {objective.budget:g}"
                for objective in OBJECTIVES
            },
            target=14.4,
            about="Of the last hour and of all bundles; at the line an alert is critical.",
            runbook="requests-fail",
            every_bundle=True,
        ),
    ),
)

QUALITY = Dashboard(
    uid="waltzrl-quality",
    title="WaltzRL: quality",
    panels=(
        _build_heatmap(
            "Safety score of drafts", "waltzrl_safety_score", "1 - risk, by the reviewer."
        ),
        _build_heatmap(
            "Helpfulness score of drafts",
            "waltzrl_helpfulness_score",
            "0 for an over-refusal, else 1, by the reviewer; nothing finer is measured.",
        ),
        Panel(
            "Safety before and after",
            {
                "drafts": _query_mean("waltzrl_safety_score"),
                "replies sent": _query_mean("waltzrl_final_safety_score"),
            },
            unit="percentunit",
            about="Means of the reviewer's scores. Canned refusals are not reviewed.",
        ),
        Panel(
            "Helpfulness before and after",
            {
                "drafts": _query_mean("waltzrl_helpfulness_score"),
                "replies sent": _query_mean("waltzrl_final_helpfulness_score"),
            },
            unit="percentunit",
        ),
        Panel(
            "Satisfaction",
            {"thumbs up": _query_share('waltzrl_thumbs_total{thumb="up"}', "waltzrl_thumbs_total")},
            unit="percentunit",
            about="Share of the thumbs that users give; the desk shows it with its interval.",
        ),
        _build_heatmap(
            "Safety score of replies sent", "waltzrl_final_safety_score", "If reviewed."
        ),
        _build_heatmap("Revisions of an answer", "waltzrl_coaching_rounds", "By a model."),
        Panel(
            "Labels of the judge",
            {
                "{{label}}: {{value}}": _query_rate("waltzrl_judge_labels_total", "label, value"),
                "{{label}}: unscored": _query_rate("waltzrl_judge_unscored_total", "label"),
            },
            unit="reqps",
        ),
        Panel(
            "Replies judged",
            {
                "judged": _query_rate("waltzrl_judged_total"),
                "could not be judged": _query_rate("waltzrl_unjudged_total"),
            },
            unit="reqps",
        ),
    ),
)

DASHBOARDS = (SAFETY, PERFORMANCE, QUALITY)


def dashboard_file(dashboard: Dashboard, docs: str = DOCS) -> str:
    """Return a dashboard as Grafana imports it.

    Args:
        dashboard: its panels.
        docs: URL or folder of the documents, which the runbook links begin with.

    Raises:
        UnknownMetricError: a query names what is not in the catalogue.
    """
    check_query(RELEASES_MOVED)
    for panel in dashboard.panels:
        for query in panel.queries.values():
            check_query(query)
    model: dict[str, Json] = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["waltzrl"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _build_variables()},
        "annotations": {"list": [_release_moves()]},
        "links": [_build_link("What to do: on call", f"{docs.rstrip('/')}/on-call.md")],
        "panels": [
            _build_panel(number, panel, docs) for number, panel in enumerate(dashboard.panels)
        ],
    }
    return json.dumps(model, indent=1) + "\n"


def _build_variables() -> list[Json]:
    """Return what people choose at the top: where the metrics are, and which bundles count."""
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
        },
        {
            "name": "bundle",
            "label": "Bundle",
            "type": "query",
            "datasource": dict(SOURCE),
            "query": "label_values(waltzrl_requests_total, bundle)",
            "refresh": 2,  # whenever the time range changes
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _release_moves() -> Json:
    return {
        "name": "Releases",
        "datasource": dict(SOURCE),
        "enable": True,
        "iconColor": "blue",
        "expr": RELEASES_MOVED,
        "titleFormat": "release: {{action}}",
        "textFormat": "by {{by}}",
    }


def _build_link(title: str, url: str) -> Json:
    return {"title": title, "url": url, "type": "link", "targetBlank": True}


def _build_panel(number: int, panel: Panel, docs: str) -> Json:
    options: dict[str, Json] = {}
    if panel.kind == "timeseries":
        options = {"legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"}}
    if panel.kind == "heatmap":
        options = {"calculate": False, "color": {"mode": "scheme", "scheme": "Blues"}}
    runbook = [_build_link("What to do", runbook_url(docs, panel.runbook))] if panel.runbook else []
    return {
        "id": number + 1,
        "title": panel.title,
        "description": panel.about,
        "links": runbook,
        "type": panel.kind,
        "datasource": dict(SOURCE),
        "gridPos": {
            "x": number % 2 * WIDTH,
            "y": number // 2 * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "options": options,
        "fieldConfig": {"defaults": _build_defaults(panel), "overrides": []},
        "targets": [
            _build_target(letter, panel, legend)
            # Grafana tells the queries of a panel apart by these letters.
            for letter, legend in zip("ABCDEFGH", panel.queries, strict=False)
        ],
    }


def _build_defaults(panel: Panel) -> Json:
    defaults: dict[str, Json] = {"unit": panel.unit}
    if panel.target is not None:
        steps: list[Json] = [
            {"color": "green", "value": None},
            {"color": "red", "value": panel.target},
        ]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["custom"] = {"thresholdsStyle": {"mode": "line"}}
    return defaults


def _build_target(letter: str, panel: Panel, legend: str) -> Json:
    query = panel.queries[legend]
    buckets = panel.kind == "heatmap" and legend == "{{le}}"
    return {
        "refId": letter,
        "datasource": dict(SOURCE),
        "expr": query if panel.every_bundle else of_bundle(query, "$bundle"),
        "legendFormat": legend,
        "format": "heatmap" if buckets else "time_series",
    }
