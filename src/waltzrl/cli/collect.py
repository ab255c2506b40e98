"""`waltzrl collect`: exports what was served, to study and to learn from."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from waltzrl.cli.options import AsJson, print_json, terminal


def collect(
    out: Annotated[Path, typer.Argument(help="File to write: .json, .jsonl or .parquet.")],
    memory: Annotated[str, typer.Option(help="URL of the memory: the gateway's memory.url.")],
    held_out: Annotated[  # `memory:URL` as a held-out set has the same 10 %
        float, typer.Option(min=10, max=100, help="Percentage of users to hold out.")
    ] = 10.0,
    prompts: Annotated[bool, typer.Option(help="Write prompts to learn from, no rounds.")] = False,
    demonstrations: Annotated[
        bool, typer.Option(help="Write the replies that people corrected, no rounds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write one row for each round of served exchanges; see docs/collecting.md.

    **Examples**

    `waltzrl collect rounds.parquet --memory sqlite:///runs/memory.db`

    `waltzrl collect prompts.jsonl --memory sqlite:///runs/memory.db --prompts`

    `waltzrl collect corrected.jsonl --memory sqlite:///runs/memory.db --demonstrations`
    """
    from waltzrl.build.collecting import export_demonstrations, export_prompts, export_samples
    from waltzrl.collector import Selection

    if prompts and demonstrations:
        raise typer.BadParameter("give --prompts or --demonstrations, one file each")
    kind = export_demonstrations if demonstrations else export_samples
    write = export_prompts if prompts else kind
    result = write(memory, out, Selection(held_out_percentage=held_out))
    counted, left_out = asdict(result.counted), dict(result.left_out)
    if as_json:
        print_json({"file": str(out), **counted, "left_out": left_out})
        return
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    reasons = {f"left out: {name.replace('_', ' ')}": count for name, count in left_out.items()}
    for name, value in (counted | reasons).items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    terminal().print(table)
    print(f"collected: {out}")
