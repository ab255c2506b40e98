"""Patterns run on prompts, judged and counted; `evaluation.report` needs the extra `report`."""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl.evaluation.comparison import Difference as Difference
    from waltzrl.evaluation.comparison import compare as compare
    from waltzrl.evaluation.gate import GateResult as GateResult
    from waltzrl.evaluation.gate import check_candidate as check_candidate
    from waltzrl.evaluation.gate import require_agents as require_agents
    from waltzrl.evaluation.harm import HarmMeasures as HarmMeasures
    from waltzrl.evaluation.harm import measure_harm as measure_harm
    from waltzrl.evaluation.intervals import Estimate as Estimate
    from waltzrl.evaluation.metrics import Metrics as Metrics
    from waltzrl.evaluation.metrics import measure as measure
    from waltzrl.evaluation.metrics import review_row as review_row
    from waltzrl.evaluation.metrics import table_row as table_row
    from waltzrl.evaluation.paired import SeedDifference as SeedDifference
    from waltzrl.evaluation.paired import compare_seeds as compare_seeds
    from waltzrl.evaluation.paired import mean_over_seeds as mean_over_seeds
    from waltzrl.evaluation.rows import EvaluationRow as EvaluationRow
    from waltzrl.evaluation.rows import read_evaluation as read_evaluation
    from waltzrl.evaluation.rows import read_rows as read_rows
    from waltzrl.evaluation.runner import EvaluatedSystem as EvaluatedSystem
    from waltzrl.evaluation.runner import evaluate as evaluate
    from waltzrl.evaluation.runner import rescore as rescore
    from waltzrl.evaluation.terminal import comparison_table as comparison_table
    from waltzrl.evaluation.terminal import harm_table as harm_table
    from waltzrl.evaluation.terminal import metrics_table as metrics_table
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "comparison": ("Difference", "compare"),
            "gate": (
                "GateResult",
                "check_candidate",
                "require_agents",
            ),
            "harm": (
                "HarmMeasures",
                "measure_harm",
            ),
            "intervals": ("Estimate",),
            "metrics": (
                "Metrics",
                "measure",
                "review_row",
                "table_row",
            ),
            "paired": (
                "SeedDifference",
                "compare_seeds",
                "mean_over_seeds",
            ),
            "rows": (
                "EvaluationRow",
                "read_evaluation",
                "read_rows",
            ),
            "runner": (
                "EvaluatedSystem",
                "evaluate",
                "rescore",
            ),
            "terminal": (
                "comparison_table",
                "harm_table",
                "metrics_table",
            ),
        },
    )
