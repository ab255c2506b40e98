"""`waltzrl rescore`: another judge on the same replies."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.cli.options import (
    AsJson,
    Cluster,
    Evaluation,
    JudgeErrors,
    JudgeName,
    JudgePrompts,
)
from waltzrl.cli.table import show_table

if TYPE_CHECKING:
    from waltzrl.evaluation import EvaluationRow


def rescore(  # noqa: PLR0913, PLR0917 - each parameter is an option
    evaluation: Evaluation,
    into: Annotated[Path | None, typer.Option(help="Another folder [the same].")] = None,
    judge: JudgeName = "refusal",
    judge_prompts: JudgePrompts = False,
    cluster: Cluster = "cluster",
    judge_errors: JudgeErrors = None,
    as_json: AsJson = False,
) -> None:
    """Judge the replies of an evaluation again, without generating any.

    **Example**

    `waltzrl rescore runs/evaluation --into runs/rejudged
    --judge llm:guard@http://localhost:8000/v1`
    """
    rescoring = _rescore(evaluation, judge, into or evaluation, judges_prompts=judge_prompts)
    rows = asyncio.run(rescoring)
    show_table(rows, cluster, judge_errors, as_json=as_json)


async def _rescore(
    evaluation: Path, judge: str, into: Path, *, judges_prompts: bool
) -> "list[EvaluationRow]":
    from waltzrl.build.judges import open_judge
    from waltzrl.evaluation import rescore as rescore_rows

    async with open_judge(judge, judges_prompts=judges_prompts, cached=True) as opened:
        return await rescore_rows(evaluation, opened, into, concurrency=64)
