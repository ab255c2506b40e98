"""`waltzrl flywheel`: one turn of the flywheel, for a calendar such as cron."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from waltzrl.errors import InputError
from waltzrl.foundation.options import Settings


def flywheel(
    recipe: Annotated[Path, typer.Argument(help="A TOML file, such as recipes/quarterly.toml.")],
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the turn [runs/NAME-OF-RECIPE/YEAR-MONTH].")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run the commands, not only print.")] = False,
) -> None:
    """Collect, train, evaluate and propose a release; without --run, print the commands.

    The same command resumes within a month.

    **Examples**

    `waltzrl flywheel recipes/quarterly.toml`

    `waltzrl flywheel recipes/quarterly.toml --run`
    """
    from waltzrl.evaluation.collecting.opening import read_remembered_prompts
    from waltzrl.evaluation.collecting.selection import Selection
    from waltzrl.operations.commands.release import open_book
    from waltzrl.operations.flywheel import (
        count_labelled,
        load_turn_settings,
        plan_turn,
        render_step,
        run_turn,
    )
    from waltzrl.operations.release.opening import read_stored_recipe, serving_bundle

    loaded = load_turn_settings(recipe, settings or [])
    book = open_book(loaded.memory)
    if (release := book.current()) is not None:
        raise InputError(f"release {release.id} is under way; start a turn when it is over")
    serving = read_stored_recipe(book, serving_bundle(book)) if loaded.propose else None
    folder = out or Path("runs") / recipe.stem / f"{datetime.now(UTC):%Y-%m}"
    turn = plan_turn(loaded, folder, serving)
    labelled = count_labelled(read_remembered_prompts(loaded.memory, Selection()))
    count = f"{labelled} labelled prompts in the memory, {loaded.fewest_prompts} are needed"
    if not run:
        print(f"# {count}", *map(render_step, turn.steps), sep="\n")
        print("# nothing was done; --run runs these commands")
    elif labelled < loaded.fewest_prompts:
        print(f"nothing was trained: {count}")
    elif status := run_turn(turn, lambda line: print(line, flush=True), book):
        print(f"stopped: this ended with {status}; run flywheel again to resume")
        raise typer.Exit(status)
