"""`waltzrl audit`: verify a log, show decisions, prove one."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from waltzrl.audit import LogFault, find, latest, one_line, one_page, prove, verify
from waltzrl.audit.note import NoteError, PublicKey
from waltzrl.cli.options import AsJson, print_json
from waltzrl.errors import InputError

audit = typer.Typer(
    help="Verify and read the gateway's audit log.\n\n"
    "**Example**\n\n`waltzrl audit verify audit --key audit.key.pub`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Folder = Annotated[Path, typer.Argument(help="Folder that the gateway logs to.")]
RecordId = Annotated[str, typer.Argument(metavar="ID", help="Id of the request.")]
LATEST = 20


@audit.command("verify")
def verify_log(
    folder: Folder,
    key: Annotated[str, typer.Option(help="Public key of the log, or its file.")],
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoints that were kept elsewhere.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the first record that was changed, dropped, moved or cut; exits with 1 if there is one.

    **Example**

    `waltzrl audit verify audit --key audit.key.pub --checkpoint /mnt/elsewhere/checkpoints`
    """
    result = verify(folder, _public_key(key), checkpoint)
    if as_json:
        print_json(asdict(result))
    else:
        print(result)
    raise typer.Exit(1 if isinstance(result, LogFault) else 0)


@audit.command()
def show(
    folder: Folder,
    record_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Of a request.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the decisions on a request or, without an id, the newest ones.

    **Example**

    `waltzrl audit show audit req-17`
    """
    entries = latest(folder, LATEST) if record_id is None else find(folder, record_id)
    if as_json:
        print_json(msgspec.to_builtins(entries))
    else:
        print("\n".join(map(one_line if record_id is None else one_page, entries)))


@audit.command("prove")
def prove_record(folder: Folder, record_id: RecordId) -> None:
    """Print JSON that proves that a decision is in the log, without revealing others.

    **Example**

    `waltzrl audit prove audit req-17`
    """
    print_json([asdict(proof) for proof in prove(folder, record_id)])


def _public_key(given: str) -> PublicKey:
    """Parse a key, or read it from a file."""
    try:
        return PublicKey.parse(given if "+" in given else Path(given).read_text(encoding="utf-8"))
    except (NoteError, OSError) as error:
        raise InputError(f"{error}; the public key is in the file that ends in .pub") from None
