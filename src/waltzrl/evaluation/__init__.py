"""Patterns run on prompts, judged and counted; `evaluation.report` needs the extra `report`."""

from waltzrl.evaluation.compare import Difference, compare
from waltzrl.evaluation.gate import GateResult, check_candidate, require_agents
from waltzrl.evaluation.harm import HarmMeasures, measure_harm
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.metrics import Metrics, measure, review_row, table_row
from waltzrl.evaluation.paired import SeedDifference, compare_seeds, mean_over_seeds
from waltzrl.evaluation.rows import EvaluationRow, read_evaluation, read_rows
from waltzrl.evaluation.runner import EvaluatedSystem, evaluate, rescore
from waltzrl.evaluation.terminal import comparison_table, harm_table, metrics_table

__all__ = [
    "Difference",
    "Estimate",
    "EvaluatedSystem",
    "EvaluationRow",
    "GateResult",
    "HarmMeasures",
    "Metrics",
    "SeedDifference",
    "check_candidate",
    "compare",
    "compare_seeds",
    "comparison_table",
    "evaluate",
    "harm_table",
    "mean_over_seeds",
    "measure",
    "measure_harm",
    "metrics_table",
    "read_evaluation",
    "read_rows",
    "require_agents",
    "rescore",
    "review_row",
    "table_row",
]
