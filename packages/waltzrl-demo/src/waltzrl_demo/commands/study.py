"""`waltzrl study`: the demo's comparisons with many seeds."""

import os
from pathlib import Path
from typing import Annotated

import typer

from waltzrl.foundation.workers import Workers


def study(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 20,
    out: Annotated[Path, typer.Option(help="Folder of the results and the work.")] = Path(
        "runs/study"
    ),
    processes: Annotated[
        int | None, typer.Option(min=1, help="Seeds at once, with one thread each [cores].")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Try the settings instead, on other seeds.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep data and weights in OUT/work.")
    ] = False,
) -> None:
    """Train and measure every row of the demo, and the 2x2x2, with many seeds.

    The main rows of all seeds come first. Takes about three quarters of an hour of one core for
    each seed, a third of it for the main rows; the same command resumes. The results, one
    small file for each seed, are what `waltzrl report` draws; weights are deleted.

    **Examples**

    `waltzrl study --seeds 20 --out runs/study`

    `waltzrl study --tune --seeds 2 --out runs/tuning`
    """
    from waltzrl.evaluation.commands.report import show_study
    from waltzrl.evaluation.study import open_study
    from waltzrl.foundation.run_directory import RunDirectory
    from waltzrl_demo.study import MAIN_STUDY, TUNING_SEED, TUNING_STUDY, study_rounds

    plan, first = (TUNING_STUDY, TUNING_SEED) if tune else (MAIN_STUDY, 0)
    with RunDirectory(out):
        open_study(out, plan.identity)
        count = processes or len(os.sched_getaffinity(0))
        with Workers(min(count, seeds), quiet=False) as workers:
            for jobs in study_rounds(plan, range(first, first + seeds), out, keep=keep):
                workers.run(jobs, together=jobs[0].table)
    show_study(out)
