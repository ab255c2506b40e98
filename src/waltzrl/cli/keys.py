"""`waltzrl keys`: who may use the gateway."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from waltzrl.serving.keys import DeskRole, add_key, read_keys, revoke_keys

KeyFile = Annotated[Path, typer.Option("--file", help="TOML file that holds the hashes.")]

keys = typer.Typer(help="Make, list and revoke API keys of the gateway.", no_args_is_help=True)


@keys.command()
def add(  # noqa: PLR0913, PLR0917 - each parameter is an option
    name: Annotated[str, typer.Argument(help="Whose key it is; several may have one name.")],
    file: KeyFile,
    requests_per_minute: Annotated[int | None, typer.Option(help="No limit when absent.")] = None,
    burst: Annotated[int, typer.Option(help="Requests that may come at once.")] = 10,
    may_see_drafts: Annotated[
        bool, typer.Option("--may-see-drafts", help="May ask for withheld drafts too.")
    ] = False,
    role: Annotated[DeskRole | None, typer.Option(help="Opens the desk in this role.")] = None,
    expires_in_days: Annotated[float | None, typer.Option(help="Never when absent.")] = None,
) -> None:
    """Make a key and print it, once; only its hash is kept.

    To rotate, add a second key of the same name, move the clients, and revoke the first by its id.
    """
    policy = {
        "name": name,
        "requests_per_minute": requests_per_minute,
        "burst": burst,
        "may_see_drafts": may_see_drafts,
        "role": role,
        "expires": expires_in_days and datetime.now(UTC) + timedelta(days=expires_in_days),
    }
    print(add_key(file, policy))
    print(f"shown once; {file} keeps its hash, and a running gateway takes it", file=sys.stderr)


@keys.command("list")
def list_keys(file: KeyFile) -> None:
    """List every key, without the keys themselves."""
    table = Table("name", "id", "state", "created", "requests/minute", "drafts", "desk", box=None)
    for key in read_keys(file):
        rate = str(key.requests_per_minute or "no limit")
        drafts = "yes" if key.may_see_drafts else "no"
        shown = (f"{key.created:%Y-%m-%d}", rate, drafts, key.role or "no")
        table.add_row(key.name, key.id, key.state, *shown)
    Console().print(table)


@keys.command()
def revoke(
    which: Annotated[str, typer.Argument(help="A name, for all its keys, or the id of one.")],
    file: KeyFile,
) -> None:
    """Disable keys; a running gateway refuses them within a second."""
    for key in revoke_keys(file, which):
        print(f"{key.name} ({key.id}) is revoked")
