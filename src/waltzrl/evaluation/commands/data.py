"""`waltzrl data`: which public sets there are, and where they are had."""

from typing import Annotated

import typer
from rich.table import Table

from waltzrl.evaluation.data.importers.sets import SETS, require_set
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
    sets = {name: require_set(name) for name in names or SETS}
    if as_json:
        print_json(
            [{"set": name, "page": one.page, "licence": one.licence} for name, one in sets.items()]
        )
        return
    table = Table("set", "page", "licence")
    for name, one in sets.items():
        table.add_row(name, one.page, one.licence)
    open_terminal(NARROWEST).print(table)
