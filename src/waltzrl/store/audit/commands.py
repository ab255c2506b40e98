"""`waltzrl audit`: verify a log, show decisions, prove one."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from waltzrl.errors import InputError
from waltzrl.foundation.options import SERVE, AsJson, print_json
from waltzrl.store.audit.keys import default_key
from waltzrl.store.audit.note import NoteError, PublicKey
from waltzrl.store.audit.output import (
    print_counts,
    print_csv,
    print_entries,
    print_lines,
    print_request,
)
from waltzrl.store.audit.query import (
    Query,
    moment,
    newest,
    select,
    subject_digest,
    table_rows,
    tally,
)
from waltzrl.store.audit.reading import find, prove
from waltzrl.store.audit.verify import LogFault, verify

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
def show(  # noqa: PLR0913, PLR0917 - each parameter is an option
    folder: Folder,
    record_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Of a request, ours or the client's.")
    ] = None,
    since: Annotated[
        str, typer.Option(help="From this time on: ISO 8601 (UTC), or back from now: 2h, 7d.")
    ] = "",
    until: Annotated[str, typer.Option(help="Before this time.")] = "",
    who: Annotated[str, typer.Option(help="Name of the API key.")] = "",
    subject: Annotated[str, typer.Option(help="The client's name for its user.")] = "",
    key: Annotated[
        Path | None,
        typer.Option(help="Private key of the log, to find a subject; default FOLDER.key."),
    ] = None,
    rule: Annotated[str, typer.Option(help="A rule, or a pack of rules.")] = "",
    category: Annotated[str, typer.Option(help="Of an unsafe reply, such as weapons.")] = "",
    decision: Annotated[
        Literal["draft", "revised", "refused", "error"] | None,
        typer.Option(help="What was returned."),
    ] = None,
    bundle: Annotated[str, typer.Option(help="Id of the bundle that served.")] = "",
    policy: Annotated[str, typer.Option(help="Name of the policy that served.")] = "",
    model: Annotated[str, typer.Option(help="That the client asked for.")] = "",
    count: Annotated[
        str, typer.Option(metavar="FIELDS", help="Count the decisions by fields: decision,rule.")
    ] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="The newest so many; default 20, all with --csv and --json."),
    ] = None,
    before: Annotated[
        int | None, typer.Option(help="Only records before this number: the next page.")
    ] = None,
    contents: Annotated[
        bool, typer.Option("--contents", help="Show the texts too, where they are kept.")
    ] = False,
) -> None:
    """Show decisions: those on a request, those that match, or the newest ones; or count them.

    **Examples**

    `waltzrl audit show audit req-17 --contents` shows why a request was decided so, and its texts.

    `waltzrl audit show audit --since 7d --decision refused --who search-team`

    `waltzrl audit show audit --since 2026-11-01 --until 2026-12-01 --count decision,rule`

    `waltzrl audit show audit --subject user-17 --csv > user-17.csv`
    """
    now = datetime.now(UTC)
    private_key = key or default_key(folder)
    query = Query(
        since=since and moment(since, now),
        until=until and moment(until, now),
        before=before,
        who=who,
        subject=subject and subject_digest(private_key, subject),
        rule=rule,
        category=category,
        decision=decision or "",
        bundle=bundle,
        policy=policy,
        model=model,
    )
    fields = [name.strip() for name in count.split(",")] if count else []
    if record_id is not None:
        entries = [entry for entry in find(folder, record_id) if query.matches(entry)]
        print_request(folder, private_key, entries, contents=contents, as_json=as_json)
        return
    if limit is None and not (count or as_csv or as_json):
        limit = LATEST
    selected = select(folder, query) if limit is None else iter(newest(folder, query, limit))
    if fields:
        print_counts(tally(selected, fields), fields, as_csv=as_csv, as_json=as_json)
    elif as_csv:
        print_csv(table_rows(selected))
    elif as_json:
        print_entries(selected)
    else:
        print_lines(list(selected), limit)


@audit.command("prove")
def prove_record(folder: Folder, record_id: RecordId) -> None:
    """Print JSON that proves that a decision is in the log, without revealing others.

    **Example**

    `waltzrl audit prove audit req-17`
    """
    print_json([asdict(proof) for proof in prove(folder, record_id)])


def _public_key(given: str) -> PublicKey:
    """Parse a key, or read it from a file."""
    path = Path(given)
    try:
        is_key = "+" in given and not path.exists()
        return PublicKey.parse(given if is_key else path.read_text(encoding="utf-8"))
    except (NoteError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{error}; the public key is in the file that ends in .pub") from None


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.add_typer(audit, name="audit", rich_help_panel=SERVE)
