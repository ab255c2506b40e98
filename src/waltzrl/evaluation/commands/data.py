"""`waltzrl data`: which public sets there are, and where they are had."""

from typing import Annotated

import typer
from rich.table import Table

from waltzrl.errors import InputError
from waltzrl.evaluation.data import SETS
from waltzrl.evaluation.data.importers import find_set
from waltzrl.foundation.options import AsJson, open_terminal, print_json

NARROWEST = 100
"""Columns that the table needs."""

data = typer.Typer(
    help="Public sets: where their files are had.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@data.callback()
def public_sets() -> None:
    """Public sets: where their files are had."""


@data.command("fetch-list")
def fetch_list(
    names: Annotated[
        list[str] | None, typer.Argument(help="Sets, such as xstest; all when none is named.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where the files of public sets are published, and under which licence.

    Nothing is downloaded: some sets ask for an agreement first, and several forbid commercial use.

    **Examples**

    `waltzrl data fetch-list`

    `waltzrl data fetch-list wildjailbreak or-bench --json`
    """
    rows = []
    for name in names or SETS:
        public_set = find_set(name)
        if public_set is None:
            raise InputError(f"unknown set {name!r}; known are {', '.join(SETS)}")
        rows.append((name, public_set.page, public_set.licence))
    if as_json:
        fields = ("set", "page", "licence")
        print_json([dict(zip(fields, row, strict=True)) for row in rows])
        return
    table = Table("set", "page", "licence")
    for row in rows:
        table.add_row(*row)
    open_terminal(NARROWEST).print(table)
