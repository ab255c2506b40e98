"""What the commands of demos that compare arms over seeds have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from waltzrl.evaluation.commands.table import NARROWEST
from waltzrl.foundation.options import open_terminal, print_json

if TYPE_CHECKING:
    from waltzrl.evaluation.intervals import Estimate
    from waltzrl_demo.seeds import ArmRow

Seeds = Annotated[int, typer.Option(min=1, help="How many, from 0.")]
Processes = Annotated[int, typer.Option(min=1, help="Jobs at a time, one core each.")]


def show_arms(
    rows: "Sequence[ArmRow]", tokens: Mapping[str, float], seeds: int, *, as_json: bool
) -> None:
    """Print a table for each two arms, or all rows as JSON."""
    if as_json:
        print_json({"seeds": seeds, "rows": [asdict(row) for row in rows], "tokens": dict(tokens)})
        return
    tables = [list(own) for _, own in groupby(rows, key=lambda row: tuple(row.arms))]
    for own in tables:
        caption = _describe(tokens) if own is tables[-1] else None
        open_terminal(NARROWEST).print(_make_table(own, caption))


def _make_table(rows: "Sequence[ArmRow]", caption: str | None) -> Table:
    table = Table("prompts", "%", *rows[0].arms, "change", "p", caption=caption)
    shown = ""
    for row in rows:
        cells = [render_share(each) for each in row.arms.values()]
        change, p_value = "-", "-"
        if row.change is not None:
            change = render_change(row.change.change)
            p_value = f"{row.change.sign_p_value:.2g}"
        name = "" if row.prompts == shown else row.prompts
        shown = row.prompts
        label = row.metric if row.metric == "capability" else row.metric.upper()
        table.add_row(name, label, *cells, change, p_value, end_section=label in {"F1"})
    return table


def _describe(tokens: Mapping[str, float]) -> str:
    sampled = ", ".join(f"{name}: {count:,.0f}" for name, count in tokens.items())
    return f"Tokens sampled in training, by all roles: {sampled}."


def render_share(estimate: "Estimate") -> str:
    """Return a share in percent; Student's interval of one may reach beyond it."""
    from waltzrl.evaluation.metrics import render_percent
    from waltzrl.evaluation.study_tables import render_cell

    return render_cell(
        estimate, lambda value: render_percent(value if value is None else min(1, max(0, value)))
    )


def render_change(estimate: "Estimate") -> str:
    """Return a change of a share in points, with its sign."""
    from waltzrl.evaluation.study_tables import render_cell, render_points

    return render_cell(estimate, render_points)
