"""`waltzrl demo coach`: what coaching that is remembered is worth."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from waltzrl.evaluation.commands.table import NARROWEST
from waltzrl.foundation.options import AsJson, open_terminal, print_json
from waltzrl.foundation.progress import announce_steps, showing_task
from waltzrl.foundation.workers import Workers

if TYPE_CHECKING:
    from waltzrl_demo.coach import CoachDifference, CoachRow


def coach(
    seed: Annotated[int, typer.Option(help="Of the letters, the model and its training.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the demo.")] = Path("runs/coach"),
    as_json: AsJson = False,
) -> None:
    """Coach an agent's replies with and without examples from the memory, and compare.

    Takes about five minutes on two cores; the same command resumes.

    **Example**

    `waltzrl demo coach --seed 1 --json`
    """
    from waltzrl_demo.coach import CoachDemo

    say = announce_steps()
    demo = CoachDemo(out / f"seed-{seed}", seed)
    say("teaching a small model to revise as advice and examples say")
    demo.write_data()
    with Workers(1, quiet=as_json) as workers:
        workers.run([demo.training])
    say("coaching replies to letters: to fill the memory, then with and without examples from it")
    with showing_task("letters", quiet=as_json) as report:
        outcomes = asyncio.run(demo.run(demo.open_agent(), report))
    rows, differences = demo.measure(outcomes), demo.compare(outcomes)
    table = demo.write_table(rows, differences)
    if as_json:
        print_json(table)
    else:
        _print_letter_tables(rows, differences)
    say(f"the numbers are in {demo.folder / 'coach.json'}")


def _print_letter_tables(
    rows: "Sequence[CoachRow]", differences: "Sequence[CoachDifference]"
) -> None:
    from waltzrl.evaluation.metrics import render_percent
    from waltzrl.evaluation.study_tables import render_cell

    table = Table(
        "subjects",
        "examples",
        "n",
        "rounds",
        "right after 1 round, %",
        "right, %",
        "declined, %",
        "wrong office first, %",
    )
    for row in rows:
        rounds = render_cell(row.rounds, _render_count)
        shares = map(render_cell, (row.one_round, row.success, row.declined, row.misled))
        table.add_row(row.letters, row.arm, str(row.rounds.n), rounds, *shares)
    changes = Table("subjects", "with examples minus without", "change", "p")
    for each in differences:
        show = _render_count if each.metric == "rounds" else render_percent
        change = render_cell(each.change, show)
        changes.add_row(each.letters, each.metric, change, f"{each.p_value:.2g}")
    open_terminal(NARROWEST).print(table, changes)


def _render_count(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
