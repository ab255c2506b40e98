"""`waltzrl keys`: the API keys of the gateway."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from waltzrl.serving.keys import DeskRole, add_key, read_keys, revoke_keys

KeyFile = Annotated[Path, typer.Option("--file", help="TOML file of the keys' hashes.")]

keys = typer.Typer(
    help="Create, list and revoke API keys of the gateway.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@keys.command()
def add(  # noqa: PLR0913, PLR0917 - each parameter is an option
    name: Annotated[str, typer.Argument(help="Owner of the key; several keys may share a name.")],
    file: KeyFile,
    requests_per_minute: Annotated[int | None, typer.Option(help="No limit by default.")] = None,
    burst: Annotated[int, typer.Option(help="Most requests at once.")] = 10,
    may_see_drafts: Annotated[
        bool, typer.Option("--may-see-drafts", help="Allow the client to request withheld drafts.")
    ] = False,
    role: Annotated[
        DeskRole | None, typer.Option(help="Role in the review desk; none by default.")
    ] = None,
    expires_in_days: Annotated[float | None, typer.Option(help="Never by default.")] = None,
) -> None:
    """Create a key and print it once; only its hash is stored.

    To rotate, add a second key of the same name, move the clients, and revoke the first by its id.

    **Example**

    `waltzrl keys add mobile-app --file keys.toml --requests-per-minute 60`
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
    print(
        f"the key is shown only once; {file} has its hash, and running gateways load it",
        file=sys.stderr,
    )


@keys.command("list")
def list_keys(file: KeyFile) -> None:
    """List all keys, without their secrets.

    **Example**

    `waltzrl keys list --file keys.toml`
    """
    table = Table("name", "id", "state", "created", "requests/minute", "drafts", "desk", box=None)
    for key in read_keys(file):
        rate = str(key.requests_per_minute or "no limit")
        drafts = "yes" if key.may_see_drafts else "no"
        shown = (f"{key.created:%Y-%m-%d}", rate, drafts, key.role or "no")
        table.add_row(key.name, key.id, key.state, *shown)
    Console().print(table)


@keys.command()
def revoke(
    which: Annotated[str, typer.Argument(help="A name, for all its keys, or a key's id.")],
    file: KeyFile,
) -> None:
    """Revoke keys; running gateways reject them within a second.

    **Example**

    `waltzrl keys revoke mobile-app --file keys.toml`
    """
    for key in revoke_keys(file, which):
        print(f"{key.name} ({key.id}) is revoked")
