"""A recipe's plan, for people or for programs."""

from dataclasses import asdict

from rich.table import Table

from waltzrl.foundation.options import open_terminal, print_json
from waltzrl.training.opening import plan_training
from waltzrl.training.plan import RunPlan
from waltzrl.training.recipe import Recipe


def print_plan(recipe: Recipe, *, as_json: bool) -> None:
    """Print what the recipe would do."""
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


def _tabulate_memory(plan: RunPlan) -> Table | str:
    if plan.gigabytes is None:
        return "memory unknown: the base is not here and the recipe has no models.known_shape"
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


def _tabulate_stages(plan: RunPlan) -> Table:
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
