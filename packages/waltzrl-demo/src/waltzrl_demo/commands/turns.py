"""`waltzrl demo turns`: a pair trained on single turns against one trained on conversations."""

from pathlib import Path
from typing import Annotated

import typer

from waltzrl.foundation.options import AsJson
from waltzrl.foundation.workers import Workers
from waltzrl_demo.commands.seeds import Processes, Seeds, show_arms


def turns(
    seeds: Seeds = 1,
    processes: Processes = 2,
    out: Annotated[Path, typer.Option(help="Folder of the results and the work.")] = Path(
        "runs/turns"
    ),
    as_json: AsJson = False,
) -> None:
    """Train a pair on requests of one turn and others on conversations and tools, and compare.

    Takes about eight minutes for a seed on two cores; the same command resumes, and more seeds are
    added to those that are there.

    **Example**

    `waltzrl demo turns --seeds 4`
    """
    from waltzrl_demo.seeds import finish_seeds, list_tokens, tabulate
    from waltzrl_demo.turns import COMPARED, FULL, SETS, TurnsDemo, identify_study

    with Workers(processes, quiet=as_json) as workers:
        finish_seeds(out, seeds, identify_study(FULL), TurnsDemo, workers)
    rows = [row for arms in COMPARED for row in tabulate(out, range(seeds), arms, SETS)]
    show_arms(rows, list_tokens(out, range(seeds)), seeds, as_json=as_json)
