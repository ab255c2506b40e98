"""What the commands of demos that compare arms over seeds have in common."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from waltzrl.evaluation.commands.table import NARROWEST
from waltzrl.foundation.options import open_terminal, print_json
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.foundation.workers import Workers

if TYPE_CHECKING:
    from waltzrl.evaluation.intervals import Estimate
    from waltzrl.evaluation.study import StudyIdentity
    from waltzrl_demo.seeds import ArmRow, SeedDemo

Seeds = Annotated[int, typer.Option(min=1, help="How many, from 0.")]
Processes = Annotated[int, typer.Option(min=1, help="Jobs at a time, one core each.")]


def finish_seeds(
    folder: Path,
    seeds: int,
    identity: "StudyIdentity",
    open_demo: "Callable[[Path, int], SeedDemo]",
    workers: Workers,
) -> None:
    """Train and measure the seeds from 0 that have no results yet.

    Args:
        folder: of the results, and of the work of each seed.
        seeds: how many.
        identity: what the folder is of.
        open_demo: opens the work of a seed in a folder.
        workers: run the jobs.
    """
    from waltzrl.evaluation.study import open_study, seed_file
    from waltzrl_demo.seeds import run_seeds

    with RunDirectory(folder):
        open_study(folder, identity)
        demos = [
            open_demo(folder / "work" / f"seed-{seed}", seed)
            for seed in range(seeds)
            if not seed_file(folder, seed).exists()
        ]
        run_seeds(folder, demos, workers)


def show_arms(
    rows: "Sequence[ArmRow]", tokens: Mapping[str, float], seeds: int, *, as_json: bool
) -> None:
    """Print a table for each two arms, or all rows as JSON."""
    from waltzrl_demo.seeds import table_as_json

    if as_json:
        print_json(table_as_json(rows, tokens, seeds))
        return
    tables = [list(own) for _, own in groupby(rows, key=lambda row: tuple(row.arms))]
    for own in tables:
        caption = _describe(tokens) if own is tables[-1] else None
        open_terminal(NARROWEST).print(_make_table(own, caption))


def _make_table(rows: "Sequence[ArmRow]", caption: str | None) -> Table:
    table = Table("prompts", "%", *rows[0].arms, "change", "p", caption=caption)
    shown = ""
    for row in rows:
        cells = [render_points(each) for each in row.arms.values()]
        change, p_value = "-", "-"
        if row.change is not None:
            change = render_points(row.change.change, sign="+")
            p_value = f"{row.change.sign_p_value:.2g}"
        name = "" if row.prompts == shown else row.prompts
        shown = row.prompts
        label = row.metric if row.metric == "capability" else row.metric.upper()
        table.add_row(name, label, *cells, change, p_value, end_section=label in {"F1"})
    return table


def _describe(tokens: Mapping[str, float]) -> str:
    sampled = ", ".join(f"{name}: {count:,.0f}" for name, count in tokens.items())
    return f"Tokens sampled in training, by all roles: {sampled}."


def render_points(estimate: "Estimate", sign: str = "") -> str:
    """Return a share, or a change of one, in percent with its interval."""
    if estimate.value is None:
        return "-"
    value = f"{100 * estimate.value:{sign}.1f}"
    if estimate.low is None or estimate.high is None:
        return value
    # Student's interval of a share may reach beyond it.
    low, high = (each if sign else min(1, max(0, each)) for each in (estimate.low, estimate.high))
    return f"{value} ({100 * low:{sign}.1f} to {100 * high:{sign}.1f})"
