"""The table of an evaluation, for people or for programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from waltzrl.cli.options import print_json

if TYPE_CHECKING:
    from waltzrl.evaluation import EvaluationRow
    from waltzrl.evaluation.rates import ClusterField

NARROWEST = 142
"""Columns that the table needs; a narrower terminal wraps or scrolls."""


def show_table(
    rows: "Sequence[EvaluationRow]", by: "ClusterField" = "cluster", *, as_json: bool
) -> None:
    """Print one line per pattern."""
    from waltzrl.evaluation import measure, metrics_table, review_row, table_row

    metrics = measure(rows, by)
    if as_json:
        print_json(
            [
                table_row(line.pattern, line)
                | review_row(line)
                | {"samples": line.samples, "clusters": line.clusters, "clustered_by": by}
                for line in metrics
            ]
        )
    else:
        Console(width=max(Console().width, NARROWEST)).print(metrics_table(metrics))
