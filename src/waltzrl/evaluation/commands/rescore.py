"""`waltzrl rescore`: another judge on the same replies."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.evaluation.commands.table import show_table
from waltzrl.foundation.options import (
    AsJson,
    Cluster,
    Evaluation,
    JudgeErrors,
    JudgeName,
    JudgePrompts,
    Settings,
)

if TYPE_CHECKING:
    from waltzrl.evaluation import EvaluationRow
    from waltzrl.evaluation.settings import EvaluationPrices


def rescore(  # noqa: PLR0913, PLR0917 - each parameter is an option
    evaluation: Evaluation,
    into: Annotated[Path | None, typer.Option(help="Another folder [the same].")] = None,
    judge: JudgeName = "refusal",
    judge_prompts: JudgePrompts = False,
    cluster: Cluster = "cluster",
    judge_errors: JudgeErrors = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Judge the replies of an evaluation again, without generating any.

    What the judge's model answers is charged to the folder; `--set` names prices, as for evaluate.

    **Example**

    `waltzrl rescore runs/evaluation --into runs/rejudged
    --judge llm:guard@http://localhost:8000/v1`
    """
    from waltzrl.evaluation.settings import EvaluationPrices
    from waltzrl.foundation.validation import validate_table, with_overrides

    prices = validate_table(EvaluationPrices, with_overrides({}, settings or []), "--set")
    into = into or evaluation
    rescoring = _run_rescoring(evaluation, judge, into, prices, judges_prompts=judge_prompts)
    rows = asyncio.run(rescoring)
    show_table(rows, cluster, judge_errors, as_json=as_json)


async def _run_rescoring(
    evaluation: Path, judge: str, into: Path, prices: "EvaluationPrices", *, judges_prompts: bool
) -> "list[EvaluationRow]":
    from waltzrl.evaluation import read_evaluation
    from waltzrl.evaluation import rescore as rescore_rows
    from waltzrl.evaluation.costs import charge_judge
    from waltzrl.evaluation.judges.opening import judge_place, open_judge

    read_evaluation(evaluation)  # before the ledger makes a folder of a name that was misspelt
    async with open_judge(judge, judges_prompts=judges_prompts, cached=True) as opened:
        with charge_judge(opened, judge_place(judge), f"rescore/{judge}", prices, into) as charged:
            return await rescore_rows(evaluation, charged, into, concurrency=64)
