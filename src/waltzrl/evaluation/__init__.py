"""Patterns run on prompts, judged and counted; `evaluation.report` needs the extra `report`."""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl.evaluation.comparison import Difference as Difference
    from waltzrl.evaluation.comparison import compare as compare
    from waltzrl.evaluation.gate import check_candidate as check_candidate
    from waltzrl.evaluation.gate import require_agents as require_agents
    from waltzrl.evaluation.metrics import measure as measure
    from waltzrl.evaluation.metrics import review_row as review_row
    from waltzrl.evaluation.metrics import table_row as table_row
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
            "gate": ("check_candidate", "require_agents"),
            "metrics": ("measure", "review_row", "table_row"),
            "rows": ("EvaluationRow", "read_evaluation", "read_rows"),
            "runner": ("EvaluatedSystem", "evaluate", "rescore"),
            "terminal": ("comparison_table", "harm_table", "metrics_table"),
        },
    )
