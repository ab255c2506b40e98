"""`waltzrl train`: from a recipe to trained agents."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.foundation.options import AsJson, Settings, print_json
from waltzrl.training.progress import TrainingDisplay

if TYPE_CHECKING:
    from waltzrl.training.opening import Trained
    from waltzrl.training.recipe import Recipe


def train(  # noqa: PLR0913, PLR0917 - each parameter is an option
    recipe: Annotated[Path, typer.Argument(help="A TOML file, such as recipes/tiny.toml.")],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Run directory [runs/NAME-OF-RECIPE].")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the plan and stop.")] = False,
    export: Annotated[Path | None, typer.Option(help="Write both agents here at the end.")] = None,
    memory: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="Learn from a gateway's memory too.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ray cluster to train on: auto, HOST:PORT, local."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train both agents as a recipe describes; the same command resumes.

    **Examples**

    `waltzrl train recipes/tiny.toml --set models.base=models/qwen --export agents`

    `waltzrl train recipes/tiny.toml --dry-run`

    `waltzrl train recipes/tiny.toml --set seed=1 --out runs/seed-1`

    `torchrun --nproc-per-node 2 -m waltzrl train recipes/tiny.toml`

    `waltzrl train recipes/tiny.toml --ray auto --set compute.ray.workers=2`

    `waltzrl train recipes/continue.toml --from sqlite:///runs/memory.db --export agents-2`
    """
    from waltzrl.training.costs import training_result
    from waltzrl.training.recipe import load_recipe, with_memory_prompts

    cluster = [] if ray is None else ["compute.engine=ray", f"compute.ray.address={ray}"]
    loaded = load_recipe(recipe, [*(settings or []), *cluster])
    if memory is not None:
        loaded = with_memory_prompts(loaded, memory)
    if dry_run:
        from waltzrl.training.commands.plan import print_plan

        print_plan(loaded, as_json=as_json)
        return
    folder = out or Path("runs") / recipe.stem
    trained = _train_recipe(loaded, folder, export, as_json=as_json)
    if trained is None:
        return
    best = trained.best
    result = training_result(loaded, trained.prompts, best, folder, export)
    if as_json:
        outcome = {"weights": dict(trained.weights), "best": best and best._asdict()}
        print_json({"run": str(folder)} | outcome | {"result": asdict(result)})
        return
    usd = result.training_cost_usd
    cost = "an unknown price" if usd is None else f"USD {usd:.2f}"
    print(f"trained: {folder}, in {result.training_duration_hours:.2f} hours, for {cost}")
    if best is not None:
        print(f"best on data.validation: step {best.step}, F1 {best.f1:.1%}")


def _train_recipe(
    recipe: "Recipe", folder: Path, export: Path | None, *, as_json: bool
) -> "Trained | None":
    """Train with what starts the run's processes; None on ranks that print nothing."""
    from waltzrl.training import ranks
    from waltzrl.training.checkpoints import require_exportable
    from waltzrl.training.opening import join_ranks, train_and_export

    if export is not None:
        require_exportable(export)
    if recipe.compute.engine == "ray":
        from waltzrl.training.scale.opening import train_on_ray

        with TrainingDisplay(quiet=as_json) as display:
            return train_on_ray(recipe, folder, export, display.show, digests=as_json)
    with join_ranks(recipe), TrainingDisplay(quiet=as_json or not ranks.is_first()) as display:
        training = train_and_export(recipe, folder, display.show, export, digests=as_json)
        trained = asyncio.run(training)
        return trained if ranks.is_first() else None
