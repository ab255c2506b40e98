"""`waltzrl collect`: exports what was served, to study and to learn from."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from waltzrl.foundation.options import AsJson, open_terminal, print_json

if TYPE_CHECKING:
    from waltzrl.evaluation.collecting.opening import CollectionResult


def collect(  # noqa: PLR0913, PLR0917 - each parameter is an option
    out: Annotated[Path, typer.Argument(help="File to write: .json, .jsonl or .parquet.")],
    memory: Annotated[str, typer.Option(help="URL of the memory: the gateway's memory.url.")],
    held_out: Annotated[  # `memory:URL` as a held-out set has the same 10 %
        float, typer.Option(min=10, max=100, help="Percentage of users to hold out.")
    ] = 10.0,
    prompts: Annotated[bool, typer.Option(help="Write prompts to learn from, no rounds.")] = False,
    demonstrations: Annotated[
        bool, typer.Option(help="Write the replies that people corrected, no rounds.")
    ] = False,
    people_only: Annotated[
        bool, typer.Option("--people-only", help="Write only what a person labelled.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write one row for each round of served exchanges; see docs/collecting.md.

    **Examples**

    `waltzrl collect rounds.parquet --memory sqlite:///runs/memory.db`

    `waltzrl collect prompts.jsonl --memory sqlite:///runs/memory.db --prompts --people-only`

    `waltzrl collect corrected.jsonl --memory sqlite:///runs/memory.db --demonstrations`
    """
    from waltzrl.evaluation.collecting.opening import (
        export_demonstrations,
        export_prompts,
        export_samples,
    )
    from waltzrl.evaluation.collecting.selection import Selection

    if prompts and demonstrations:
        raise typer.BadParameter("give --prompts or --demonstrations, one file each")
    selection = Selection(held_out_percentage=held_out)
    if demonstrations:  # a person wrote each
        counted, left_out = _split_result(export_demonstrations(memory, out, selection))
    else:
        write = export_prompts if prompts else export_samples
        counted, left_out = _split_result(write(memory, out, selection, people_only=people_only))
    if as_json:
        print_json({"file": str(out), **counted, "left_out": left_out})
        return
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    reasons = {f"left out: {name.replace('_', ' ')}": count for name, count in left_out.items()}
    for name, value in (_list_counts(counted) | reasons).items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    open_terminal().print(table)
    print(f"collected: {out}")


def _split_result(result: "CollectionResult[Any]") -> tuple[dict[str, Any], dict[str, int]]:
    """Return what was counted, and reason -> what was left out."""
    return asdict(result.counted), dict(result.left_out)


def _list_counts(counted: dict[str, Any]) -> dict[str, object]:
    """Return the counts as lines of a table: one for each source of labels and each error."""
    lines = dict(counted)
    for source, count in lines.pop("labelled_by", {}).items():
        lines[f"labelled by: {source}"] = count
    for question, error in lines.pop("judge_errors", {}).items():
        for kind in ("missed", "false_alarms"):
            bounds = error[kind]
            lines[f"judge on {question} replies: {kind.replace('_', ' ')}"] = (
                f"unknown, {error['labels']} labels"
                if bounds is None
                else f"{bounds[0]:.1%} to {bounds[1]:.1%} of {error['labels']} labels"
            )
    return lines
