"""Everything that is made from the catalogue: the files for Prometheus and Grafana, and tables."""

from collections.abc import Iterable, Mapping, Sequence

from waltzrl.foundation.catalogue import METRICS, MetricSpec
from waltzrl.operations.monitoring.alerts import ALERTS, DOCS, rules_file
from waltzrl.operations.monitoring.dashboards import DASHBOARDS, dashboard_file


def monitoring_files(docs: str = DOCS) -> Mapping[str, str]:
    """Return the path of each file, relative to their folder, and its text.

    Args:
        docs: URL or folder of the documents, which the runbook links begin with.
    """
    dashboards = {f"dashboards/{one.uid}.json": dashboard_file(one, docs) for one in DASHBOARDS}
    return {"prometheus-rules.yml": rules_file(docs), **dashboards}


def metrics_table(specs: Iterable[MetricSpec] = METRICS.values()) -> str:
    """Return metrics as a table in Markdown."""
    rows = [(f"`{spec.name}`", spec.kind, ", ".join(spec.labels), spec.help) for spec in specs]
    return _format_table(("metric", "kind", "labels", "what"), rows)


def alerts_table() -> str:
    """Return the alerts as a table in Markdown."""
    rows = [
        (
            f"[{alert.name}](on-call.md#{alert.runbook})",
            *(alert.severity, f"{alert.minutes} min" if alert.minutes else "", alert.action),
        )
        for alert in ALERTS
    ]
    return _format_table(("alert", "severity", "after", "what to do first"), rows)


def _format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in lines
    )
