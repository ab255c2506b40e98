"""`waltzrl demo flywheel`: serve, learn from it, release what was learned, take a bad one back."""

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from waltzrl.cli.workers import Workers


def flywheel(
    seed: Annotated[int, typer.Option(help="Of the world, the models and the training.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Of the demo; a world that is there already is used.")
    ] = Path("runs/demo"),
) -> None:
    """Train a pair, serve it, label, train on, release by evidence, and see a bad bundle fall.

    About four minutes on two cores; trainings that are done are not done again.

    **Example**

    `waltzrl demo flywheel`
    """
    from waltzrl.audit import one_line
    from waltzrl.demo import PaperDemo
    from waltzrl.demo.flywheel import FlywheelDemo
    from waltzrl.demo.flywheel_run import running_flywheel

    started, console = time.monotonic(), Console(stderr=True)

    def say(text: str) -> None:
        console.print(
            f"[{time.monotonic() - started:4.0f} s] {text}", highlight=False, markup=False
        )

    story = FlywheelDemo(PaperDemo(out / f"seed-{seed}", seed), out / f"seed-{seed}" / "flywheel")
    say("writing the world's prompts and demonstrations, and what its users will ask")
    story.write_data()
    with Workers(2, quiet=False) as workers:

        async def turn() -> None:
            async with running_flywheel(story, say) as at_work:
                say("users ask, and people label what they were told")
                await at_work.collect()
                say("training on, with what was served, and measuring both pairs")
                await workers.run_beside([story.second])
                pairs = (story.base, story.first, story.second)
                await workers.run_beside([story.evaluation(one) for one in pairs])
                say("releasing the second pair")
                await at_work.release()
                say("releasing a bundle that nobody reviews, as a drill")
                await at_work.drill()

        say("training a small model, and a first pair of agents, briefly")
        workers.run([story.base])
        workers.run([story.first])
        asyncio.run(turn())
    for entry in story.notices():
        say(f"audit log: {one_line(entry).strip()}")
