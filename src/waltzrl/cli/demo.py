"""`waltzrl demo`: train, measure and compare everything, small, on this machine."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from waltzrl.cli.flywheel import flywheel
from waltzrl.cli.options import AsJson
from waltzrl.cli.table import show_table
from waltzrl.cli.workers import Workers

demos = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)
demos.command()(flywheel)


@demos.callback()
def demo(
    context: typer.Context,
    seed: Annotated[int, typer.Option(help="Of the world, the models and the training.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Holds table.json, report.html and a folder per seed.")
    ] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Make a small world and a model, train every row of the paper's table, and print it.

    About six minutes on two cores, under 3 GB; the same command resumes.

    **Example**

    `waltzrl demo --seed 1 --out runs/demo-1`
    """
    if context.invoked_subcommand:
        return
    from waltzrl.demo import PaperDemo

    story = PaperDemo(out / f"seed-{seed}", seed)
    started, console = time.monotonic(), Console(stderr=True)

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - started:4.0f} s] {text}", highlight=False)

    say("writing prompts and demonstrations, and checking that training does not touch the test")
    story.write_data()
    with Workers(2, quiet=as_json) as workers:
        say("teaching a small model the demo's language, and to decide by surface")
        workers.run([story.base])
        say("training WaltzRL, single-model RL and the ablations, two at a time")
        workers.run([*story.trainings.values(), story.guard_drafts])
        story.fit_guard()
        say("measuring every row on prompts that no training has seen")
        workers.run(story.evaluations)
    page = story.write_report(out)
    if not as_json:
        say("both rewards, the paper's reward designs (stage 1 alone), and a guard of words:")
        show_table(story.modes(), as_json=False)
    say("the paper's table:")
    show_table(story.table(), as_json=as_json)
    say(f"the table is in {out / 'table.json'}, the report in {page}")
