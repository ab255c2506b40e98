"""`waltzrl keys`: manage the API keys of the gateway."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from waltzrl.errors import InputError
from waltzrl.foundation.options import open_terminal
from waltzrl.gateway.keys import (
    Author,
    DeskRole,
    Key,
    MediaPolicy,
    add_key,
    read_keys,
    revoke_keys,
)

KeyFile = Annotated[Path, typer.Option("--file", help="TOML file with the hashes.")]

NARROWEST = 120
"""The number of columns that the table needs."""

keys = typer.Typer(
    help="Create, list and revoke API keys of the gateway.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@keys.command()
def add(  # noqa: PLR0913, PLR0917 - each parameter is an option
    name: Annotated[str, typer.Argument(help="Owner; several keys may have the same.")],
    file: KeyFile,
    requests_per_minute: Annotated[int | None, typer.Option(help="Default: no limit.")] = None,
    burst: Annotated[int, typer.Option(help="Requests allowed at once.")] = 10,
    tokens_per_day: Annotated[
        int | None, typer.Option(help="All agents together, until midnight UTC. Default: no limit.")
    ] = None,
    usd_per_day: Annotated[
        float | None, typer.Option(help="US dollars. Default: no limit.")
    ] = None,
    may_see_drafts: Annotated[
        bool, typer.Option("--may-see-drafts", help="May request withheld drafts.")
    ] = False,
    may_probe: Annotated[
        bool, typer.Option("--may-probe", help="May send probes, which the memory leaves out.")
    ] = False,
    role: Annotated[DeskRole | None, typer.Option(help="Role in the review console.")] = None,
    system_turns: Annotated[
        Author, typer.Option(help="Who writes its system turns and tools; rules search a tenant's.")
    ] = "tenant",
    media: Annotated[
        MediaPolicy, typer.Option(help="Images, audio and files: unseen, refused, or reviewed.")
    ] = "pass",
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy that it may ask for, the first its own; may be repeated."),
    ] = None,
    allow_field: Annotated[
        list[str] | None, typer.Option(help="Field of requests to pass on; may be repeated.")
    ] = None,
    expires_in_days: Annotated[float | None, typer.Option(help="Default: never.")] = None,
) -> None:
    """Create a key and print it once; only its hash is stored.

    To rotate, add a second key of the same name, move the clients, and revoke the first by its id.

    **Example**

    `waltzrl keys add mobile-app --file keys.toml --requests-per-minute 60`
    """
    settings = {
        "name": name,
        "requests_per_minute": requests_per_minute,
        "burst": burst,
        "tokens_per_day": tokens_per_day,
        "usd_per_day": usd_per_day,
        "may_see_drafts": may_see_drafts,
        "may_probe": may_probe,
        "role": role,
        "system_turns": system_turns,
        "media": media,
        "policies": policy or [],
        "allow_fields": allow_field or [],
        "expires": None if expires_in_days is None else _work_out_expiry(expires_in_days),
    }
    print(add_key(file, settings))
    print(f"shown once; its hash is in {file}, and a running gateway accepts it", file=sys.stderr)


def _work_out_expiry(days: float) -> datetime:
    """Return the time in so many days.

    Raises:
        InputError: they are not above 0, or too many.
    """
    try:
        if days > 0:
            return datetime.now(UTC) + timedelta(days=days)
    except OverflowError:
        pass
    raise InputError(f"--expires-in-days: got {days:g}, need days above 0, such as 90")


@keys.command("list")
def list_keys(file: KeyFile) -> None:
    """List all keys, without their secrets.

    **Example**

    `waltzrl keys list --file keys.toml`
    """
    headings = ("name", "id", "state", "created", "requests/minute", "budget/day", "drafts")
    table = Table(*headings, "probes", "desk", "system", "policies", box=None)
    for key in read_keys(file):
        table.add_row(
            key.name,
            key.id,
            key.state,
            f"{key.created:%Y-%m-%d}",
            str(key.requests_per_minute or "no limit"),
            _render_budget(key),
            "yes" if key.may_see_drafts else "no",
            "yes" if key.may_probe else "no",
            key.role or "no",
            key.system_turns,
            ", ".join(key.policies),
        )
    open_terminal(NARROWEST).print(table)


def _render_budget(key: Key) -> str:
    tokens = None if key.tokens_per_day is None else f"{key.tokens_per_day:,} tokens"
    usd = None if key.usd_per_day is None else f"USD {key.usd_per_day:g}"
    return ", ".join(each for each in (tokens, usd) if each is not None) or "no limit"


@keys.command()
def revoke(
    which: Annotated[str, typer.Argument(help="A name, for all its keys, or the id of one key.")],
    file: KeyFile,
) -> None:
    """Revoke keys; a running gateway rejects them within a second.

    **Example**

    `waltzrl keys revoke mobile-app --file keys.toml`
    """
    for key in revoke_keys(file, which):
        print(f"{key.name} ({key.id}) is revoked")
