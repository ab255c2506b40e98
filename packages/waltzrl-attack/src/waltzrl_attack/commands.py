"""`waltzrl attack`: attackers who adapt, against a model, a pair or a gateway."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from waltzrl.foundation.options import (
    EVALUATE,
    AsJson,
    JudgeName,
    Server,
    Settings,
    print_json,
)
from waltzrl.foundation.progress import showing_task

WIDTH = 150
"""Columns that the tables need."""


def add_commands(app: typer.Typer) -> None:
    """Add the command of this package to the command line."""
    app.command(rich_help_panel=EVALUATE)(attack)


def attack(  # noqa: PLR0913, PLR0917 - each parameter is an option
    against: Annotated[
        str, typer.Option(help="URL of a gateway, or a pattern such as base, collaborate, guarded.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the log; the same command resumes.")],
    attacker: Annotated[
        str, typer.Option(help="scripted, MODEL@URL, or a folder of weights.")
    ] = "scripted",
    goals: Annotated[
        list[str] | None,
        typer.Option(help=r"JSON Lines file, `xstest:FILE`, ...; may be repeated \[our own]."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help=r"The target's model: folder, name on the server \[hollow]."),
    ] = None,
    server: Server = None,
    feedback: Annotated[
        str, typer.Option(help="The target's feedback agent: folder, name on the server, rules.")
    ] = "rules",
    reviewer: Annotated[
        str | None, typer.Option(help="One of `waltzrl compare-reviewers` in its place.")
    ] = None,
    attacks: Annotated[
        str, typer.Option(help="Some of plain, reword, tree, escalate, reviewer, provoke.")
    ] = "plain,reword,tree,escalate,reviewer,provoke",
    attempts: Annotated[int, typer.Option(help="Most requests for a goal, of each attack.")] = 12,
    tokens: Annotated[
        int | None, typer.Option(help="Most tokens for a goal, of each attack, of both sides.")
    ] = None,
    check: Annotated[
        str, typer.Option(help="What keeps requests to their goal: words, MODEL@URL, or a folder.")
    ] = "words",
    judge: JudgeName = "refusal",
    training: Annotated[
        list[Path] | None,
        typer.Option(help="Prompts that the target learned from; may be repeated."),
    ] = None,
    settings: Settings = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write report.html into OUT.")] = False,
    as_json: AsJson = False,
) -> None:
    """Attack a target with requests that adapt to its replies, and count what they gain.

    On harmful goals an attack succeeds if the judge calls the reply unsafe, on harmless ones if the
    reply refuses. The same command resumes. Requests and replies are kept without personal data.
    `--set` changes settings of the target, as for `waltzrl evaluate`.

    **Examples**

    `waltzrl attack --against guarded --out runs/attack-rules --report`

    `waltzrl attack --against http://localhost:8080/v1 --model qwen --attacker
    mistral@http://localhost:8000/v1 --goals goals.jsonl --training train.jsonl --out runs/attack`

    `waltzrl attack --against collaborate --model agents/waltzrl_conversation_stage2
    --feedback agents/waltzrl_feedback_stage2 --set wording=tiny --out runs/attack-pair`
    """
    from waltzrl.evaluation.commands.table import show_study_tables
    from waltzrl_attack.attempts import AttackBudget
    from waltzrl_attack.opening import AttackSettings, describe_target, open_and_run, read_goals
    from waltzrl_attack.results import measure_attacks, tabulate_attacks

    agents: dict[str, object] = {
        "conversation": model,
        "server": server,
        "feedback": feedback,
        "max_new_tokens": 256,
        "concurrency": 8,
    }
    chosen = AttackSettings(
        target=describe_target(against, agents, settings or ()),
        reviewer=reviewer,
        attacker=attacker,
        check=check,
        judge=judge,
        attacks=tuple(name.strip() for name in attacks.split(",")),
        budget=AttackBudget(attempts=attempts, tokens=tokens),
    )
    read = read_goals(goals or (), training or ())
    with showing_task("attacking", quiet=as_json) as progress:
        paths = asyncio.run(open_and_run(chosen, read, out, progress))
    results = measure_attacks(paths)
    tables = tabulate_attacks(results)
    if as_json:
        print_json([asdict(result) for result in results])
    else:
        show_study_tables(tables, WIDTH, as_markdown=as_markdown)
    if report:
        from waltzrl_attack.report import write_attack_report

        page = write_attack_report(out, paths, out.name)
        if not as_json:
            print(f"written: {page}")
