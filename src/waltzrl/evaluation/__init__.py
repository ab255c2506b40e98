"""Patterns run on prompts, judged and counted; `evaluation.report` needs the extra `report`."""

from typing import TYPE_CHECKING

from waltzrl.foundation.first_use import imported_on_first_use

if TYPE_CHECKING:
    from waltzrl.evaluation.comparison import Difference, compare
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

# To type checkers a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:
    __getattr__ = imported_on_first_use(
        __name__,
        {
            ".comparison": ("Difference", "compare"),
            ".gate": ("GateResult", "check_candidate", "require_agents"),
            ".harm": ("HarmMeasures", "measure_harm"),
            ".intervals": ("Estimate",),
            ".metrics": ("Metrics", "measure", "review_row", "table_row"),
            ".paired": ("SeedDifference", "compare_seeds", "mean_over_seeds"),
            ".rows": ("EvaluationRow", "read_evaluation", "read_rows"),
            ".runner": ("EvaluatedSystem", "evaluate", "rescore"),
            ".terminal": ("comparison_table", "harm_table", "metrics_table"),
        },
    )
