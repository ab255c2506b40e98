"""The table of an evaluation, for people or for programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from waltzrl.foundation.options import open_terminal, print_json

if TYPE_CHECKING:
    from waltzrl.evaluation import EvaluationRow
    from waltzrl.evaluation.rates import ClusterField

NARROWEST = 156
"""Columns that the table needs; a narrower terminal wraps or scrolls."""


def show_table(
    rows: "Sequence[EvaluationRow]",
    by: "ClusterField" = "cluster",
    judge_errors: Path | None = None,
    *,
    as_json: bool,
) -> None:
    """Print one line per pattern."""
    from waltzrl.evaluation import measure, metrics_table, review_row, table_row
    from waltzrl.evaluation.correction import read_measured_judge

    metrics = measure(rows, by, None if judge_errors is None else read_measured_judge(judge_errors))
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
        open_terminal(NARROWEST).print(metrics_table(metrics))
