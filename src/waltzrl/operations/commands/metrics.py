"""`waltzrl metrics`: the metrics, alerts and dashboards of the gateway."""

from pathlib import Path
from typing import Annotated

import typer


def metrics(
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write the rules of Prometheus and the dashboards to."),
    ] = None,
    docs: Annotated[
        str, typer.Option(help="URL where your people read docs/: the runbook links begin with it.")
    ] = "docs",
) -> None:
    """List the metrics and alerts, or write the files for Prometheus and Grafana.

    The files are `prometheus-rules.yml`, and one dashboard of Grafana each below `dashboards`.

    **Example**

    `waltzrl metrics --out deploy --docs https://git.example.com/waltzrl/blob/main/docs`
    """
    from waltzrl.foundation.files import disk_errors, write_bytes
    from waltzrl.operations.monitoring.files import alerts_table, metrics_table, monitoring_files

    if out is None:
        print(f"{metrics_table()}\n\n{alerts_table()}")
        return
    for name, text in monitoring_files(docs).items():
        path = out / name
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())
        print(path)
