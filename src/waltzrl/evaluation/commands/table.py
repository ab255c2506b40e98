"""The tables of an evaluation, for people or for programs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from waltzrl.foundation.options import open_terminal, print_json

if TYPE_CHECKING:
    from waltzrl.evaluation import EvaluationRow
    from waltzrl.evaluation.rates import ClusterField
    from waltzrl.evaluation.study_tables import StudyTable

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

    metrics = measure(rows, by, read_measured_judge(judge_errors))
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


def show_study_tables(
    tables: "Iterable[StudyTable]", narrowest: int = NARROWEST, *, as_markdown: bool = False
) -> None:
    """Print tables as Markdown, or in a terminal of at least `narrowest` columns."""
    from waltzrl.evaluation.study_tables import render_markdown
    from waltzrl.evaluation.terminal import study_table

    terminal = open_terminal(narrowest)
    for table in tables:
        if as_markdown:
            print(f"## {table.title}\n\n{render_markdown(table)}")
        else:
            terminal.print(study_table(table))
