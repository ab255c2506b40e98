"""`waltzrl demo attack`: a pair alone against a pair that trained with an attacker."""

from pathlib import Path
from typing import Annotated

import typer

from waltzrl.foundation.options import AsJson
from waltzrl.foundation.workers import Workers
from waltzrl_demo.commands.seeds import Processes, Seeds, show_arms


def attack(
    seeds: Seeds = 1,
    processes: Processes = 2,
    out: Annotated[Path, typer.Option(help="Folder of the results and the work.")] = Path(
        "runs/attack"
    ),
    as_json: AsJson = False,
) -> None:
    """Train a pair alone and another against an attacker, then attack both anew, and compare.

    Takes about five minutes for a seed on two cores; the same command resumes, and more seeds
    are added to those that are there.

    **Example**

    `waltzrl demo attack --seeds 4`
    """
    from waltzrl_demo.attack import ARMS, FULL, SETS, AttackDemo, identify_study
    from waltzrl_demo.seeds import finish_seeds, list_tokens, tabulate

    with Workers(processes, quiet=as_json) as workers:
        finish_seeds(out, seeds, identify_study(FULL), AttackDemo, workers)
    rows, tokens = tabulate(out, range(seeds), ARMS, SETS), list_tokens(out, range(seeds))
    show_arms(rows, tokens, seeds, as_json=as_json)
