"""`waltzrl train`, from a recipe to trained agents, and `waltzrl export`, to plain models."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from waltzrl.foundation.options import AsJson, Settings, open_terminal, print_json
from waltzrl.training.commands.cost import find_measured_run, show_estimate
from waltzrl.training.progress import showing_steps

if TYPE_CHECKING:
    from waltzrl.training.opening import Trained
    from waltzrl.training.plan import RunPlan
    from waltzrl.training.recipe import Recipe

PILOT_STEPS = 2
"""Steps of every stage by which `--check` extrapolates."""


def train(  # noqa: PLR0913, PLR0917 - each parameter is an option
    recipe: Annotated[Path, typer.Argument(help="A TOML file, such as recipes/tiny.toml.")],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Run directory [runs/NAME-OF-RECIPE].")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the plan and stop.")] = False,
    check: Annotated[
        bool, typer.Option(help="Say whether all that the run needs is there; exits with 1 if not.")
    ] = False,
    node: Annotated[
        str | None,
        typer.Option(metavar="8xH100-80GB", help="Check for this machine in place of this one."),
    ] = None,
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

    `waltzrl train recipes/qwen-7b-8xh100.toml --node 8xH100-80GB`

    `waltzrl train recipes/tiny.toml --set seed=1 --out runs/seed-1`

    `torchrun --nproc-per-node 2 -m waltzrl train recipes/tiny.toml`

    `waltzrl train recipes/tiny.toml --ray auto --set compute.ray.workers=2`

    `waltzrl train recipes/continue.toml --from sqlite:///runs/memory.db --export agents-2`
    """
    from waltzrl.training.recipe import load_recipe, with_memory_prompts

    cluster = [] if ray is None else ["compute.engine=ray", f"compute.ray.address={ray}"]
    loaded = load_recipe(recipe, [*(settings or []), *cluster])
    if memory is not None:
        loaded = with_memory_prompts(loaded, memory)
    if dry_run:
        _print_plan(loaded, as_json=as_json)
        return
    if check or node is not None:
        # True is an exit status of 1.
        raise typer.Exit(not _check(loaded, node, as_json=as_json))
    folder = out or Path("runs") / recipe.stem
    trained = _train_recipe(loaded, folder, export, as_json=as_json)
    if trained is None:
        return
    # With torch: after the recipe is read, so that what is wrong there is said at once.
    from waltzrl.training.costs import training_result

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

        with showing_steps(quiet=as_json) as show:
            return train_on_ray(recipe, folder, export, show, digests=as_json)
    with join_ranks(recipe), showing_steps(quiet=as_json or not ranks.is_first()) as show:
        training = train_and_export(recipe, folder, show, export, digests=as_json)
        trained = asyncio.run(training)
        return trained if ranks.is_first() else None


def _print_plan(recipe: "Recipe", *, as_json: bool) -> None:
    """Print what the recipe would do."""
    from waltzrl.training.opening import plan_training

    plan = plan_training(recipe)
    if as_json:
        print_json(asdict(plan) | {"gigabytes": plan.gigabytes})
        return
    console = open_terminal()
    console.print(f"base {plan.base}, {plan.layout}, {plan.device}, {plan.dtype}")
    if plan.ranks > 1:
        console.print(f"{plan.ranks} ranks; the memory is that of each")
    learnt = f"{plan.prompts} prompts, {plan.demonstrations} demonstrations"
    solved = f", {plan.solutions} solved questions" if plan.solutions else ""
    console.print(learnt + solved)
    console.print(_tabulate_memory(plan))
    console.print(_tabulate_stages(plan))


def _check(recipe: "Recipe", node: str | None, *, as_json: bool) -> bool:
    """Print what the run needs and whether it is there; return whether it can start."""
    from waltzrl.training.check import Node, check_training
    from waltzrl.training.costs import estimate_costs

    checked = asyncio.run(check_training(recipe, None if node is None else Node.parse(node)))
    expected = None
    if checked.plan is not None and checked.ready and node is None:
        with find_measured_run(recipe, None, PILOT_STEPS, quiet=as_json) as measured:
            expected = estimate_costs(recipe, checked.plan, measured)
    if as_json:
        print_json(
            asdict(checked) | {"ready": checked.ready, "cost": expected and asdict(expected)}
        )
        return checked.ready
    table = Table(title="What the run needs")
    for heading in ("", "", "found"):
        table.add_column(heading)
    for finding in checked.findings:
        table.add_row(finding.what, finding.state, finding.detail)
    console = open_terminal()
    console.print(table)
    if checked.plan is not None:
        console.print(_tabulate_stages(checked.plan))
        if expected is not None:
            show_estimate(expected, checked.plan.gigabytes)
            console.print("measured on the first steps of each stage, which are slower than most")
    if checked.ready and expected is None:
        console.print("hours and cost: `waltzrl cost estimate RECIPE --pilot 2` on that machine")
    console.print("ready" if checked.ready else "not ready")
    return checked.ready


def _tabulate_memory(plan: "RunPlan") -> Table | str:
    if plan.gigabytes is None:
        return "memory unknown: the base is not here, and the plan does not know its shape"
    table = Table(title=f"Memory, with contexts of {plan.context_tokens} tokens at most")
    for heading in ("", "parameters", "bytes each", "GB"):
        table.add_column(heading, justify="right" if heading else "left")
    if plan.libraries_gigabytes:
        table.add_row("Python and libraries", "", "", f"{plan.libraries_gigabytes:.3g}")
    for part in plan.memory:
        table.add_row(
            part.what, f"{part.parameters:,}", str(part.bytes_each), f"{part.gigabytes:.3g}"
        )
    table.add_row("an update: activations, logits", "", "", f"{plan.update_gigabytes:.3g}")
    table.add_row("a rollout: keys, values, logits", "", "", f"{plan.rollout_gigabytes:.3g}")
    peak = "peak: models, and the larger of the two"
    table.add_row(peak, "", "", f"{plan.gigabytes:.3g}", style="bold")
    return table


def _tabulate_stages(plan: "RunPlan") -> Table:
    table = Table(title="Stages")
    for heading in ("stage", "kind", "learns", "steps", "turns", "most tokens"):
        table.add_column(heading)
    for stage in plan.stages:
        tokens = "" if stage.most_tokens is None else f"{stage.most_tokens:,}"
        learns = ", ".join(stage.learns)
        table.add_row(
            stage.name, stage.kind, learns, f"{stage.steps:,}", f"{stage.turns:,}", tokens
        )
    return table


def export(
    run: Annotated[Path, typer.Argument(help="Run directory of `waltzrl train`.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; an earlier export is replaced.")],
) -> None:
    """Write both agents of a run as models that any server loads.

    Those of the best step on data.validation, if the recipe has it, else those of the last.

    **Example**

    `waltzrl export runs/tiny agents`
    """
    from waltzrl.training.opening import export_agents, open_run

    export_agents(open_run(run), out)
    print(f"exported: {out}")
