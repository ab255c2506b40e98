"""`waltzrl demo transfer`: a trained feedback agent in front of agents that it never met."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from waltzrl.evaluation.commands.table import NARROWEST
from waltzrl.foundation.options import AsJson, open_terminal, print_json
from waltzrl.foundation.workers import Workers
from waltzrl_demo.commands.seeds import Processes, Seeds, render_change, render_share

if TYPE_CHECKING:
    from waltzrl_demo.transfer import TransferRow


def transfer(
    seeds: Seeds = 2,
    agents_of: Annotated[
        Literal["demo", "attack"],
        typer.Option("--of", help="Whose agents: `waltzrl demo`, or the small `demo attack`."),
    ] = "demo",
    out: Annotated[
        Path | None, typer.Option(help="Folder of that demo, whose agents are used [runs/OF].")
    ] = None,
    processes: Processes = 2,
    as_json: AsJson = False,
) -> None:
    """Put a pair's feedback agent in front of other conversation agents, and compare F1.

    Agents that are in the folder are used as they are, and what is missing is trained first. Two
    seeds or more review each other's agents.

    **Example**

    `waltzrl demo transfer --of attack --seeds 4`
    """
    from waltzrl_demo.transfer import (
        list_evaluations,
        open_seeds,
        tabulate_transfer,
    )

    opened = open_seeds(agents_of, out or Path("runs") / agents_of, seeds)
    evaluations = list_evaluations(opened)
    with Workers(processes, quiet=as_json) as workers:
        for jobs in zip(*(each.rounds for each in opened), strict=True):
            workers.run([job for own in jobs for job in own])
        workers.run([job for own in evaluations for job in own.values()])
    rows = tabulate_transfer(evaluations)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
    else:
        _print_transfer_tables(rows)


def _print_transfer_tables(rows: "Sequence[TransferRow]") -> None:
    table = Table("conversation agent", "seed", "F1 alone, %", "F1 reviewed, %", "change", "p")
    for row in rows:
        for seed, each in enumerate(row.seeds):
            table.add_row(
                "" if seed else row.agent,
                str(seed),
                f"{100 * each.before:.1f}",
                f"{100 * each.after:.1f}",
                render_change(each.change),
                "-" if each.p_value is None else f"{each.p_value:.2g}",
                end_section=row.mean is None,
            )
        if row.mean is not None:
            cells = [render_share(row.mean.before), render_share(row.mean.after)]
            change = render_change(row.mean.change)
            p_value = f"{row.mean.sign_p_value:.2g}"
            table.add_row("", "mean", *cells, change, p_value, end_section=True)
    open_terminal(NARROWEST).print(table)
