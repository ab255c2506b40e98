"""`waltzrl train`: from a recipe to trained agents."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from waltzrl.cli.options import AsJson, Settings, print_json
from waltzrl.cli.progress import TrainingDisplay


def train(  # noqa: PLR0913, PLR0917 - each parameter is an option
    recipe: Annotated[Path, typer.Argument(help="A TOML file, such as recipes/tiny.toml.")],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Run directory [runs/NAME-OF-RECIPE].")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the plan and stop.")] = False,
    export: Annotated[Path | None, typer.Option(help="Write both agents here at the end.")] = None,
    memory: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="Learn from a gateway's memory too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train both agents as a recipe describes; the same command resumes.

    **Examples**

    `waltzrl train recipes/tiny.toml --set models.base=models/qwen --export agents`

    `waltzrl train recipes/tiny.toml --dry-run`

    `waltzrl train recipes/tiny.toml --set seed=1 --out runs/seed-1`

    `torchrun --nproc-per-node 2 -m waltzrl train recipes/tiny.toml`

    `waltzrl train recipes/continue.toml --from sqlite:///runs/memory.db --export agents-2`
    """
    from waltzrl.build.training import export_agents, joined_ranks, weights_of
    from waltzrl.build.training import train as train_team
    from waltzrl.config.training import load_recipe, with_memory_prompts
    from waltzrl.training import ranks
    from waltzrl.training.checkpoints import require_exportable

    loaded = load_recipe(recipe, settings or [])
    if memory is not None:
        loaded = with_memory_prompts(loaded, memory)
    if dry_run:
        from waltzrl.cli.plan import print_plan

        print_plan(loaded, as_json=as_json)
        return
    if export is not None:
        require_exportable(export)
    folder = out or Path("runs") / recipe.stem
    with joined_ranks(loaded):
        with TrainingDisplay(quiet=as_json or not ranks.is_first()) as display:
            team = asyncio.run(train_team(loaded, folder, display.show))
        if export is not None:
            export_agents(team, export)
        weights = weights_of(team) if as_json else {}
        if not ranks.is_first():
            return
    if as_json:
        best = team.best and team.best._asdict()
        print_json({"run": str(folder), "weights": weights, "best": best})
    else:
        print(f"trained: {folder}")
        if team.best is not None:
            print(f"best on data.validation: step {team.best.step}, F1 {team.best.f1:.1%}")
