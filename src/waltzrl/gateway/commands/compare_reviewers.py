"""`waltzrl compare-reviewers`: blocking against revision, with the same reviewers and drafts."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from waltzrl.foundation.options import AsJson, JudgeName, Server, print_json
from waltzrl.foundation.progress import showing_task

WIDTH = 200
"""Columns that the table needs."""


def compare_reviewers(  # noqa: PLR0913, PLR0917 - each parameter is an option
    sets: Annotated[list[str], typer.Argument(help="JSON Lines files, `xstest:FILE`, ...")],
    model: Annotated[str, typer.Option(help="Drafts and revises: folder, or name on the server.")],
    out: Annotated[Path, typer.Option(help="Folder of the log; the same command resumes.")],
    reviewers: Annotated[
        list[str] | None,
        typer.Option(
            "--reviewer",
            help="rules, the name of a classifier such as smollm2, guard:KIND[:MODEL]@URL, "
            "MODEL@URL, or the folder of a feedback agent; may be repeated "
            r"\[rules and every installed classifier].",
        ),
    ] = None,
    server: Server = None,
    wording: Annotated[str, typer.Option(help="Of the prompts for revisions.")] = "plain",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Labelled prompts of each set, drawn by a hash.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.")] = 512,
    max_rounds: Annotated[int, typer.Option(min=1, help="Most revisions.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Prompts at once.")] = 8,
    judge: JudgeName = "refusal",
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write report.html into OUT.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what each reviewer does to the same drafts: when it blocks, and when it revises.

    **Examples**

    `waltzrl compare-reviewers xstest:xstest_prompts.csv jailbreakbench:behaviors.csv
    --server http://localhost:8000/v1 --model qwen --out runs/reviewers`

    `waltzrl compare-reviewers prompts.jsonl --server http://localhost:8000/v1 --model qwen
    --reviewer rules --reviewer guard:qwen3guard@http://localhost:8001/v1 --out runs/guards`
    """
    from waltzrl.agents.opening import RULES, installed_reviewers
    from waltzrl.evaluation.commands.table import show_study_tables
    from waltzrl.evaluation.data.opening import read_each_set
    from waltzrl.evaluation.harm import draw_prompts
    from waltzrl.evaluation.judges.opening import open_judge
    from waltzrl.gateway.reviewer_comparison import (
        ReviewerComparison,
        measure_reviewers,
        tabulate_reviewers,
    )
    from waltzrl.gateway.reviewer_comparison import compare_reviewers as run_comparison

    comparison = ReviewerComparison(
        model=model,
        server=server,
        reviewers=reviewers or [RULES, *installed_reviewers()],
        wording=wording,
        max_new_tokens=max_new_tokens,
        max_rounds=max_rounds,
        concurrency=concurrency,
    )
    prompts = [
        prompt
        for own in read_each_set(sets)
        for prompt in (own if limit is None else draw_prompts(own, limit))
    ]
    with showing_task("reviewing", quiet=as_json) as progress:
        opening = open_judge(judge, cached=True)
        rows = asyncio.run(run_comparison(comparison, prompts, opening, out, progress))
    outcomes = measure_reviewers(rows)
    tables = tabulate_reviewers(outcomes, comparison)
    if as_json:
        print_json({name: asdict(outcome) for name, outcome in outcomes.items()})
    else:
        show_study_tables(tables, WIDTH, as_markdown=as_markdown)
    if report:
        from waltzrl.evaluation.report import EvaluationReport, write_report

        settings = {name: str(value) for name, value in asdict(comparison).items()}
        page = EvaluationReport(
            title="Reviewers", rows=rows, curves={}, settings=settings, tables=tables
        )
        write_report(out, page)
