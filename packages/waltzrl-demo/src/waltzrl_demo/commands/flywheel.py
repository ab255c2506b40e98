"""`waltzrl demo flywheel`: serve, train on it, release the result, roll a bad bundle back."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from waltzrl.foundation.progress import announce_steps
from waltzrl.foundation.workers import Workers


def flywheel(
    seed: Annotated[int, typer.Option(help="Of the world, the models and the training.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder of the demo; data and models that exist are used.")
    ] = Path("runs/demo"),
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting of the second pair's training; may be repeated.",
        ),
    ] = None,
) -> None:
    """Train a pair, serve it, label, train further, release by evidence, roll a bad bundle back.

    Takes some minutes on two cores; finished trainings are reused. Ends with a summary, and with
    how to open the review desk again.

    **Examples**

    `waltzrl demo flywheel`

    `waltzrl demo flywheel --set stages.joint.steps=30`
    """
    from waltzrl.store.audit.reading import one_line
    from waltzrl_demo.flywheel import FlywheelDemo
    from waltzrl_demo.flywheel_run import TERMS, running_flywheel
    from waltzrl_demo.users import user_name

    say = announce_steps()
    story = FlywheelDemo(out / f"seed-{seed}" / "flywheel", seed, settings or ())
    say("in what follows:")
    for term, meaning in TERMS.items():
        say(f"  {term:<11} {meaning}")
    say("writing prompts, demonstrations and the users' questions")
    story.write_data()
    with Workers(2, quiet=False) as workers:

        async def turn() -> dict[str, str]:
            async with running_flywheel(story, say, workers.show_task) as run:
                say("users ask, and people label the answers")
                await run.collect()
                say("training further on what was served, and evaluating both pairs")
                await workers.run_beside([story.second])
                await workers.run_beside([story.drafts(story.second)])
                await workers.run_beside([story.calibration(story.second)])
                pairs = (story.base, story.first, story.second)
                await workers.run_beside([story.evaluation(pair) for pair in pairs])
                say("releasing the second pair")
                await run.release()
                say("releasing a bundle without a reviewer, as a drill")
                await run.drill()
                return run.summary

        say("training a small model and, briefly, a first pair of agents")
        workers.run([story.base])
        workers.run([story.first])
        say("measuring which refusals the first reviewer may challenge")
        workers.run([story.drafts(story.first)])
        workers.run([story.calibration(story.first)])
        summary = asyncio.run(turn())
    user = user_name(0)
    say(f"erasing {user}, who asks for it")
    summary |= {"erasure": story.erase(user), "audit log": story.verify_log()}
    for entry in story.notices():
        say(f"audit log: {one_line(entry).strip()}")
    say("summary:")
    for name in ("served", "labels", "learned", "release", "drill", "erasure", "audit log", "desk"):
        say(f"  {name:<11} {summary[name]}")
