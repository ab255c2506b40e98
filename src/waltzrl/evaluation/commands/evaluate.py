"""`waltzrl evaluate`: patterns x sets, judged and counted."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.evaluation.commands.report import write_page
from waltzrl.evaluation.commands.table import show_table
from waltzrl.foundation.options import (
    AsJson,
    Cluster,
    JudgeErrors,
    JudgeName,
    JudgePrompts,
    Server,
    Settings,
)
from waltzrl.foundation.progress import showing_task
from waltzrl.records import Prompt

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from waltzrl.evaluation import EvaluationRow
    from waltzrl.evaluation.judges.judge import Judge
    from waltzrl.evaluation.runner import Progress
    from waltzrl.evaluation.settings import EvaluationConfig

logger = logging.getLogger(__name__)


def evaluate(  # noqa: PLR0913, PLR0917 - each parameter is an option
    sets: Annotated[
        list[str], typer.Argument(help="JSON Lines files, `xstest:FILE`, or generator:test.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the log; the same command resumes.")],
    conversation: Annotated[
        str | None,
        typer.Option("--conversation", "--model", help="Folder, model on the server, saved:FILE."),
    ] = None,
    feedback: Annotated[
        str | None,
        typer.Option(
            help="The same, or rules, keywords, or reviewer:NAME of a package [conversation]."
        ),
    ] = None,
    pair: Annotated[
        Path | None,
        typer.Option(
            help="In their place: an exported pair's folder, or a package's pair such as smollm2."
        ),
    ] = None,
    server: Server = None,
    patterns: Annotated[
        str,
        typer.Option(
            "--pattern",
            help="Some of base, collaborate, safeguard, oracle, guarded, observe, best-of-3, "
            "served, replay.",
        ),
    ] = "base,collaborate,safeguard,oracle",
    samples: Annotated[
        int, typer.Option(min=1, help="Replies to every prompt, for ASR@k; needs a temperature.")
    ] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="Of the conversation agent.")] = 0.0,
    settings: Settings = None,
    judge: JudgeName = "refusal",
    judge_prompts: JudgePrompts = False,
    cluster: Cluster = "cluster",
    judge_errors: JudgeErrors = None,
    report: Annotated[bool, typer.Option("--report", help="Write report.html into OUT.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run patterns on prompts and print the table; the same command resumes.

    **Examples**

    `waltzrl evaluate test.jsonl --pair agents --pattern base,guarded --out runs/evaluation`

    `waltzrl evaluate xstest:xstest_prompts.csv --server http://localhost:8000/v1
    --model qwen --pattern base --set max_new_tokens=256 --out runs/qwen`

    `waltzrl evaluate jailbreakbench:behaviors.csv --server http://localhost:8000/v1
    --model qwen --pattern base --samples 10 --temperature 1 --out runs/sampled`

    `waltzrl evaluate replies.jsonl --conversation saved:replies.jsonl --feedback rules
    --pattern observe --judge saved:replies.jsonl --out runs/rules`
    """
    from waltzrl.evaluation.costs import charge_evaluation
    from waltzrl.evaluation.data.opening import read_sets
    from waltzrl.evaluation.judges.opening import judge_place, open_judge
    from waltzrl.evaluation.opening import name_agents
    from waltzrl.evaluation.rows import read_rows
    from waltzrl.evaluation.settings import EvaluationConfig
    from waltzrl.foundation.validation import require_finite, validate_table, with_overrides

    table: dict[str, object] = {
        "patterns": [name.strip() for name in patterns.split(",")],
        **name_agents(conversation, feedback, pair, server),
        "samples": samples,
        "temperature": temperature,
    }
    table = with_overrides(table, settings or [])
    require_finite(table, "--set")
    config = validate_table(EvaluationConfig, table, "--set")
    with showing_task("evaluating", quiet=as_json) as progress:
        opening = open_judge(judge, judges_prompts=judge_prompts, cached=True)
        with charge_evaluation(config, judge_place(judge), out):
            rows = asyncio.run(_run_evaluation(config, read_sets(sets), opening, out, progress))
    shown, own = {row.key for row in rows}, set(config.patterns)
    others = [row for row in read_rows(out) if row.pattern in own and row.key not in shown]
    if others:
        text = (
            "%s holds %d rows of these patterns on other prompts or samples, which report, compare"
            " and rescore count too; choose another folder for another set"
        )
        logger.warning(text, out, len(others))
    show_table(rows, cluster, judge_errors, as_json=as_json)
    if report:
        write_page(out, out, cluster, judge_errors, out.name)


async def _run_evaluation(
    config: "EvaluationConfig",
    prompts: Sequence[Prompt],
    judge: "AbstractAsyncContextManager[Judge]",
    out: Path,
    progress: "Progress",
) -> "list[EvaluationRow]":
    from waltzrl.evaluation.opening import run_evaluation

    async with judge as opened:
        return await run_evaluation(config, prompts, opened, out, progress)
