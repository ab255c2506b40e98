"""`waltzrl demo coach`: what coaching that is remembered is worth."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from waltzrl.evaluation.commands.table import NARROWEST
from waltzrl.foundation.options import AsJson, open_terminal, print_json
from waltzrl.foundation.progress import progress_bar
from waltzrl.foundation.workers import Workers

if TYPE_CHECKING:
    from waltzrl.evaluation.intervals import Estimate
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

    started, console = time.monotonic(), open_terminal(stderr=True)

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - started:4.0f} s] {text}")

    demo = CoachDemo(out / f"seed-{seed}", seed)
    say("teaching a small model to revise as advice and examples say")
    demo.write_data()
    with Workers(1, quiet=as_json) as workers:
        workers.run([demo.training])
    say("coaching replies to letters: to fill the memory, then with and without examples from it")
    with progress_bar(quiet=as_json) as bar:
        task = bar.add_task("letters", total=None, note="")

        def report(answered: int, total: int) -> None:
            bar.update(task, completed=answered, total=total)

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
        shares = [
            _render_share(each) for each in (row.one_round, row.success, row.declined, row.misled)
        ]
        cells = (row.letters, row.arm, str(row.rounds.n), _render_rounds(row.rounds), *shares)
        table.add_row(*cells)
    changes = Table("subjects", "with examples minus without", "change", "p")
    for each in differences:
        change = (
            _render_rounds(each.change) if each.metric == "rounds" else _render_share(each.change)
        )
        changes.add_row(each.letters, each.metric, change, f"{each.p_value:.2g}")
    open_terminal(NARROWEST).print(table, changes)


def _render_share(estimate: "Estimate") -> str:
    return _render_interval(estimate, 100, 1)


def _render_rounds(estimate: "Estimate") -> str:
    return _render_interval(estimate, 1, 2)


def _render_interval(estimate: "Estimate", scale: float, digits: int) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "-"
    value, low, high = (scale * each for each in (estimate.value, estimate.low, estimate.high))
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
