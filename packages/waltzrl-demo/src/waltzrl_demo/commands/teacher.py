"""`waltzrl demo teacher`: what a student learns from trained explanations."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from waltzrl.evaluation.commands.table import NARROWEST
from waltzrl.foundation.options import AsJson, open_terminal, print_json
from waltzrl.foundation.workers import Workers
from waltzrl_demo.commands.seeds import Seeds

if TYPE_CHECKING:
    from waltzrl_demo.teacher import ArmComparison, TeacherSeedResult


def teacher(
    seeds: Seeds = 4,
    processes: Annotated[int, typer.Option(min=1, help="Seeds at a time, one core each.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder of the demo.")] = Path("runs/teacher"),
    as_json: AsJson = False,
) -> None:
    """Teach students with trained explanations, with untrained ones and with none, and compare.

    Takes one or two minutes for each seed on one core; the same command resumes.

    **Example**

    `waltzrl demo teacher --seeds 8`
    """
    from waltzrl_demo.teacher import TeacherSeedJob, compare_arms, read_result, teacher_table

    jobs = [TeacherSeedJob(seed=seed, folder=out / f"seed-{seed}") for seed in range(seeds)]
    if left := [job for job in jobs if not job.result_file.exists()]:
        with Workers(min(processes, len(left)), quiet=as_json) as workers:
            workers.run(left, together="seeds")
    results = [read_result(job) for job in jobs]
    comparisons = compare_arms(results)
    if as_json:
        print_json(teacher_table(results, comparisons))
    else:
        _print_student_tables(results, comparisons)


def _print_student_tables(
    results: "Sequence[TeacherSeedResult]", comparisons: "Sequence[ArmComparison]"
) -> None:
    from waltzrl.evaluation.study_tables import render_cell
    from waltzrl_demo.teacher import ARMS, mean_accuracy

    table = Table("student learns from", "right, %", "tokens read")
    for arm in ARMS:
        read = sum(result.tokens[arm] for result in results) // len(results)
        table.add_row(arm, render_cell(mean_accuracy(results, arm)), f"{read:,}")
    changes = Table(
        "trained minus", "points, questions", "McNemar, p", "points, seeds", "t-test, p"
    )
    for each in comparisons:
        cells = [each.arm, render_cell(each.change), f"{each.p_value:.2g}"]
        if (seeds := each.over_seeds) is not None:
            cells += [render_cell(seeds.change), f"{seeds.t_p_value:.2g}"]
        changes.add_row(*cells)
    explained = Table("teacher", "explanations with every step right, %")
    for name in results[0].in_steps:
        share = sum(result.in_steps[name] for result in results) / len(results)
        explained.add_row(name, f"{100 * share:.0f}")
    open_terminal(NARROWEST).print(table, changes, explained)
