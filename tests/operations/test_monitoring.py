"""The alerts, the dashboards and the documents are made from the catalogue, and ask for no more."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_pages import write_metrics

from support.small_runs import run
from waltzrl.foundation.catalogue import METRICS
from waltzrl.operations.monitoring.alerts import (
    ALERTS,
    LATENCY,
    OBJECTIVES,
    OWN_MILLISECONDS,
    RECORDED,
    WINDOWS,
)
from waltzrl.operations.monitoring.dashboards import (
    DASHBOARDS,
    PERFORMANCE,
    QUALITY,
    SAFETY,
    Dashboard,
    Panel,
    dashboard_file,
)
from waltzrl.operations.monitoring.files import alerts_table, metrics_table, monitoring_files
from waltzrl.operations.monitoring.queries import SERIES, UnknownMetricError, check_query, of_bundle

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/monitoring.md"


@pytest.mark.promise(
    "Metrics",
    "An alert or a panel that asks for a metric or label that is not in the catalogue is refused; "
    "the files in `deploy` are those that are made",
)
@pytest.mark.promise(
    "Bad input",
    "An alert or a dashboard for a metric or a label that is not in the catalogue: the name, and "
    "the query",
)
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("sum(rate(waltzrl_request_total[5m]))", "waltzrl_request_total"),
        ('sum(waltzrl_requests_total{apis="chat"})', "apis"),
        ("sum by (model) (rate(waltzrl_errors_total[5m]))", "model"),
        ("rate(waltzrl_total_time_ms[5m])", "waltzrl_total_time_ms"),  # it has only _bucket ...
        ("rate(waltzrl_keys_count[5m])", "waltzrl_keys_count"),
        ("rate(waltzrl_dir_reward_sum[5m])", "waltzrl_dir_reward_sum"),
        ('waltzrl_total_time_ms_sum{le="1"}', "le"),
        ("up == 0", "up"),
        ("quantile(0.5, waltzrl_keys)", "quantile"),
        ("waltzrl:unsafe_rate:ratio_9h > 0", "waltzrl:unsafe_rate:ratio_9h"),
    ],
)
def test_a_query_for_what_nobody_exports_is_refused_by_name(query, name):
    with pytest.raises(UnknownMetricError, match=f"'{re.escape(name)}'"):
        check_query(query, RECORDED)


@pytest.mark.parametrize(
    "query",
    [
        'sum by (le, stage) (rate(waltzrl_total_time_ms_bucket{job="a",stage=~"1|2"}[5m]))',
        'absent(waltzrl_keys) and on() count(waltzrl_check{status="down"}) > 0',
        "waltzrl:unsafe_rate:ratio_1h > 0.05",
        'waltzrl_check{check="waltzrl_nothing{"}',  # between quotes is no name
    ],
)
def test_a_query_for_what_is_exported_is_accepted(query):
    check_query(query, RECORDED)


@given(st.sampled_from(sorted(SERIES)), st.integers(0, 30))
def test_a_name_with_a_letter_more_is_refused(name, place):
    mistaken = name[:place] + "x" + name[place:]
    with pytest.raises(UnknownMetricError):
        check_query(f"sum(rate({mistaken}[5m]))")


@pytest.mark.promise(
    "Metrics",
    "An alert or a panel that asks for a metric or label that is not in the catalogue is refused; "
    "the files in `deploy` are those that are made",
)
@pytest.mark.promise(
    "Bad input",
    "An alert or a dashboard for a metric or a label that is not in the catalogue: the name, and "
    "the query",
)
def test_a_dashboard_with_a_metric_that_is_not_in_the_catalogue_is_not_made():
    panel = Panel("a", {"all": "sum(waltzrl_happiness)"})
    with pytest.raises(UnknownMetricError, match="'waltzrl_happiness'"):
        dashboard_file(Dashboard(uid="a", title="a", panels=(panel,)))


@pytest.mark.promise(
    "Metrics",
    "An alert or a panel that asks for a metric or label that is not in the catalogue is refused; "
    "the files in `deploy` are those that are made",
)
def test_the_files_that_are_shipped_are_those_that_are_made(tmp_path, capsys):
    assert run("metrics", "--out", tmp_path) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [str(tmp_path / name) for name in monitoring_files()]
    for name, text in monitoring_files().items():
        assert (tmp_path / name).read_text() == text
        assert (ROOT / "deploy" / name).read_text() == text, "run waltzrl metrics --out deploy"
    assert {path.name for path in (ROOT / "deploy/dashboards").iterdir()} == {
        f"{dashboard.uid}.json" for dashboard in DASHBOARDS
    }


@pytest.mark.promise("Metrics", "What is exported is what the catalogue and the documents declare")
def test_the_documents_list_every_metric_of_the_catalogue():
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|(.*)\|$", write_metrics(), re.MULTILINE)
    assert [tuple(cell.strip() for cell in row) for row in rows] == [
        (spec.name, spec.kind, ", ".join(spec.labels), spec.help) for spec in METRICS.values()
    ]


@pytest.mark.promise("Metrics", "What is exported is what the catalogue and the documents declare")
def test_the_documents_list_every_alert(capsys):
    assert f"{alerts_table()}\n\n" in PAGE.read_text()
    assert run("metrics") == 0
    assert capsys.readouterr().out == f"{metrics_table()}\n\n{alerts_table()}\n"


def test_every_metric_that_the_page_names_is_exported():
    named = set(re.findall(r"\bwaltzrl_\w+", PAGE.read_text()))
    assert sorted(named - {*METRICS, *SERIES}) == []


@pytest.mark.promise(
    "Metrics",
    "Every alert is played through firing and silence; the documents' three have their bounds",
)
def test_the_requirements_alerts_have_its_bounds():
    found = {alert.name: alert for alert in ALERTS}
    assert len(found) == len(ALERTS)
    for name, bound, minutes, severity in (
        ("WaltzRLHighUnsafeRate", "> 0.05", 5, "critical"),
        ("WaltzRLHighOverrefusalRate", "> 0.10", 5, "warning"),
        ("WaltzRLHighFeedbackTriggerRate", "> 0.50", 15, "info"),
    ):
        alert = found[name]
        assert bound in alert.query
        assert (alert.minutes, alert.severity) == (minutes, severity)


def test_the_200_ms_are_of_the_gateways_own_time_wherever_they_stand():
    assert "waltzrl_own_time_ms" in LATENCY.bad
    assert f'le="{OWN_MILLISECONDS:.1f}"' in LATENCY.bad
    drawn = [panel for one in DASHBOARDS for panel in one.panels if panel.target == 200]
    assert [panel.title for panel in drawn] == ["Latency that the gateway adds"]
    assert all("own_time_ms" in query for query in drawn[0].queries.values())


@pytest.mark.parametrize(
    ("query", "restricted"),
    [
        ("sum(waltzrl_requests_total)", 'sum(waltzrl_requests_total{bundle=~"$bundle"})'),
        (
            'rate(waltzrl_own_time_ms_bucket{le="1.0"}[5m])',
            'rate(waltzrl_own_time_ms_bucket{le="1.0",bundle=~"$bundle"}[5m])',
        ),
        ('max(waltzrl_check{status="down"})', 'max(waltzrl_check{status="down"})'),
    ],
)
def test_a_query_is_restricted_to_a_bundle_where_the_series_know_it(query, restricted):
    assert of_bundle(query, "$bundle") == restricted


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_a_dashboard_has_a_bundle_variable_marks_releases_and_links_to_the_runbook(dashboard):
    model = json.loads(dashboard_file(dashboard, "https://git.example/docs/"))
    variables = {one["name"]: one for one in model["templating"]["list"]}
    assert variables["bundle"]["query"] == "label_values(waltzrl_requests_total, bundle)"
    expressions = [target["expr"] for panel in model["panels"] for target in panel["targets"]]
    assert any('bundle=~"$bundle"' in expression for expression in expressions)
    (moves,) = model["annotations"]["list"]
    assert "waltzrl_release_moved_timestamp_seconds" in moves["expr"]
    assert model["links"][0]["url"] == "https://git.example/docs/on-call.md"
    for panel in model["panels"]:
        for link in panel["links"]:
            assert link["url"].startswith("https://git.example/docs/on-call.md#")
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["placement"] == "bottom"


def test_every_runbook_link_leads_to_a_section_of_the_page_for_people_on_call(tmp_path):
    page = (ROOT / "docs/on-call.md").read_text()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    sections = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    panels = [panel.runbook for one in DASHBOARDS for panel in one.panels if panel.runbook]
    assert {*panels, *(alert.runbook for alert in ALERTS)} <= sections
    assert run("metrics", "--out", tmp_path, "--docs", "https://git.example/docs") == 0
    rules = (tmp_path / "prometheus-rules.yml").read_text()
    assert rules.count('runbook_url: "https://git.example/docs/on-call.md#') == len(ALERTS)


def test_each_budget_is_watched_over_all_windows():
    for objective in OBJECTIVES:
        assert {objective.recorded(window) for window in WINDOWS} <= RECORDED.keys()
        used = " ".join(alert.query for alert in ALERTS)
        assert all(objective.recorded(window) in used for window in WINDOWS)


@pytest.mark.parametrize(
    ("dashboard", "titles"),
    [
        (SAFETY, ["Unsafe rate (ASR)", "Over-refusal rate (ORR)", "category", "Stage 1 and stage"]),
        (PERFORMANCE, ["Latency", "Requests a second", "Feedback trigger rate", "DIR reward"]),
        (QUALITY, ["Safety score", "Helpfulness score", "before and after"]),
    ],
)
def test_the_panels_of_the_requirement_are_there(dashboard, titles):
    for title in titles:
        assert any(title in panel.title for panel in dashboard.panels), title


def test_targets_are_drawn_as_lines():
    lines = {
        panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"]
        for dashboard in DASHBOARDS
        for panel in json.loads(dashboard_file(dashboard))["panels"]
        if "thresholds" in panel["fieldConfig"]["defaults"]
    }
    assert lines["Unsafe rate (ASR)"] == 0.046
    assert lines["Over-refusal rate (ORR)"] == 0.099
    assert lines["Latency that the gateway adds"] == 200
    assert "Latency of an answer" not in lines  # most of which is the model's
    assert "Where the time goes, P95" not in lines
    assert lines["Feedback trigger rate (FTR)"] == 0.5


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_panels_have_ids_units_sources_and_places_of_their_own(dashboard):
    model = json.loads(dashboard_file(dashboard))
    panels = model["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len(dashboard.panels)
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len(panel["targets"]) > 0
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert all(target["legendFormat"] for target in panel["targets"])
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = abs(one["x"] - other["x"]) >= one["w"] or abs(one["y"] - other["y"]) >= one["h"]
        assert apart
    assert len({dashboard.uid for dashboard in DASHBOARDS}) == len(DASHBOARDS)
