"""`waltzrl demo attack`: a pair alone against a pair that trained with an attacker."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from waltzrl.evaluation.commands.table import NARROWEST
from waltzrl.foundation.options import AsJson, open_terminal, print_json
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.foundation.workers import Workers

if TYPE_CHECKING:
    from waltzrl.evaluation.intervals import Estimate
    from waltzrl_demo.attack import AttackRow


def attack(
    seeds: Annotated[int, typer.Option(min=1, help="How many, from 0.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Jobs at a time, one core each.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder of the results and the work.")] = Path(
        "runs/attack"
    ),
    as_json: AsJson = False,
) -> None:
    """Train a pair alone and another against an attacker, then attack both anew, and compare.

    Takes about five minutes for a seed on two cores; the same command resumes, and more seeds
    are added to those that are there.

    **Example**

    `waltzrl demo attack --seeds 4`
    """
    from waltzrl.evaluation.study import open_study
    from waltzrl_demo import attack as parts

    with RunDirectory(out):
        open_study(out, parts.identify_study(parts.FULL))
        demos = [
            parts.AttackDemo(out / "work" / f"seed-{seed}", seed)
            for seed in range(seeds)
            if not parts.is_finished(out, seed)
        ]
        for demo in demos:
            demo.write_data()
        if demos:
            with Workers(processes, quiet=as_json) as workers:
                for jobs in zip(*(demo.rounds for demo in demos), strict=True):
                    workers.run([job for own in jobs for job in own])
        for demo in demos:
            parts.finish_seed(out, demo)
    rows, tokens = parts.tabulate(out, range(seeds)), parts.list_tokens(out, range(seeds))
    if as_json:
        print_json(parts.attack_table(rows, tokens, seeds))
    else:
        _print_attack_tables(rows, tokens)


def _print_attack_tables(rows: "Sequence[AttackRow]", tokens: Mapping[str, float]) -> None:
    table = Table("prompts", "%", *rows[0].arms, "change", "p", caption=_describe(tokens))
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
    open_terminal(NARROWEST).print(table)


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
