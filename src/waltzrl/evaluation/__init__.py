"""Patterns on prompts, judged and counted; `evaluation.report`, which draws, is imported apart."""

from waltzrl.evaluation.compare import Difference, compare
from waltzrl.evaluation.console import comparison_table, metrics_table
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.metrics import Metrics, measure, review_row, table_row
from waltzrl.evaluation.rows import Row, read_evaluation, read_rows
from waltzrl.evaluation.runner import Contestant, evaluate, rescore

__all__ = [
    "Contestant",
    "Difference",
    "Estimate",
    "Metrics",
    "Row",
    "compare",
    "comparison_table",
    "evaluate",
    "measure",
    "metrics_table",
    "read_evaluation",
    "read_rows",
    "rescore",
    "review_row",
    "table_row",
]
