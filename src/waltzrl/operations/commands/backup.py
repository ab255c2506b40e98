"""`waltzrl backup`: copy a gateway's memory and audit log, check the copy, restore or move it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.foundation.options import Settings

if TYPE_CHECKING:
    from waltzrl.gateway.settings import GatewayRecipe
    from waltzrl.operations.backup import Manifest

backup = typer.Typer(
    help="Back up what a gateway keeps, and restore it.\n\n"
    "**Example**\n\n`waltzrl backup create backups/monday --recipe gateway.toml`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
Folder = Annotated[Path, typer.Argument(help="Folder of the backup.")]
Recipe = Annotated[Path | None, typer.Option(help="TOML file of the gateway.")]
NO_UPSTREAM: dict[str, object] = {"upstream": {"url": "http://localhost:8000/v1"}}
"""A recipe needs an upstream; none is asked."""


@backup.command()
def create(folder: Folder, recipe: Recipe = None, settings: Settings = None) -> None:
    """Copy the memory, releases, audit log and keys that the recipe names into a new folder.

    The gateway may go on. The folder holds keys and texts of users: guard it as you guard them.

    **Examples**

    `waltzrl backup create backups/monday --recipe gateway.toml`

    `waltzrl backup create backups/monday --set memory.url=sqlite:///runs/memory.db`
    """
    from waltzrl.operations.backup import create_backup

    print(
        _summarize_backup(
            create_backup(_load_recipe(recipe, settings), folder), f"written to {folder}"
        )
    )


@backup.command()
def check(folder: Folder) -> None:
    """Check that a backup is whole: every file is there and unaltered.

    **Example**

    `waltzrl backup check backups/monday`
    """
    from waltzrl.operations.backup import read_backup

    print(_summarize_backup(read_backup(folder), f"whole in {folder}"))


@backup.command()
def restore(folder: Folder, recipe: Recipe = None, settings: Settings = None) -> None:
    """Restore a backup to where the recipe names, which must be empty, and compare it there.

    The database may be of another kind: so a memory moves from SQLite to PostgreSQL.

    **Example**

    `waltzrl backup restore backups/monday --recipe gateway.toml
    --set memory.url=postgresql://waltzrl@db/waltzrl`
    """
    from waltzrl.operations.backup import restore_backup

    print(
        _summarize_backup(
            restore_backup(_load_recipe(recipe, settings), folder), "restored and compared"
        )
    )


def _load_recipe(recipe: Path | None, settings: list[str] | None) -> "GatewayRecipe":
    from waltzrl.gateway.settings import load_gateway

    return load_gateway(recipe, {} if recipe else NO_UPSTREAM, settings or [], os.environ)


def _summarize_backup(manifest: "Manifest", outcome: str) -> str:
    records = "" if manifest.records is None else f" and {manifest.records} audit records"
    return f"{sum(manifest.rows.values())} rows{records} of {manifest.created}, {outcome}"
