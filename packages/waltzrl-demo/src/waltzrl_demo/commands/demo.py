"""`waltzrl demo`: train, evaluate and compare everything in miniature."""

from pathlib import Path
from typing import Annotated

import typer

from waltzrl.evaluation.commands.table import show_table
from waltzrl.foundation.options import AsJson
from waltzrl.foundation.progress import announce_steps
from waltzrl.foundation.workers import Workers
from waltzrl_demo.commands.attack import attack
from waltzrl_demo.commands.coach import coach
from waltzrl_demo.commands.flywheel import flywheel
from waltzrl_demo.commands.teacher import teacher
from waltzrl_demo.commands.transfer import transfer
from waltzrl_demo.commands.turns import turns

demos = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)
demos.command()(flywheel)
demos.command()(coach)
demos.command()(attack)
demos.command()(transfer)
demos.command()(turns)
demos.command()(teacher)


@demos.callback()
def demo(
    context: typer.Context,
    seed: Annotated[int, typer.Option(help="Seed of the data, models and training.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for table.json, report.html and the runs.")
    ] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Train and evaluate every row of the paper's table in miniature, and print the table.

    Takes about twenty minutes on two cores and 2 GB of memory; the same command resumes.
    `waltzrl study` does it with many seeds.

    **Example**

    `waltzrl demo --seed 1 --out runs/demo-1`
    """
    if context.invoked_subcommand:
        return
    from waltzrl_demo.arms import MAIN, MAIN_ROWS
    from waltzrl_demo.paper import PaperDemo

    story = PaperDemo(out / f"seed-{seed}", seed)
    say = announce_steps()
    say("writing prompts and demonstrations; checking that no training prompt is a test prompt")
    story.write_data()
    with Workers(2, quiet=as_json) as workers:
        say("pretraining a small model on the demo's language, with decisions by surface cues")
        workers.run([story.base])
        say("fitting linear guards on its drafts")
        workers.run([story.guard_drafts])
        story.fit_guard()
        say("training WaltzRL and what it is compared with, two at a time")
        workers.run([story.training(name) for name in MAIN])
        say("evaluating every row on held-out prompts")
        workers.run(story.evaluations(MAIN_ROWS))
        workers.run([story.calibration])
    report = story.write_report(out)
    say("the paper's table:")
    show_table(story.table(), as_json=as_json)
    say(f"the table is in {out / 'table.json'}, the report in {report}")
