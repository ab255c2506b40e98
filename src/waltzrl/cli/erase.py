"""`waltzrl erase`: erase a person, and check that nothing is left."""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from waltzrl.compliance.erasure import ErasureResult

Audit = Annotated[
    list[str] | None,
    typer.Option(metavar="FOLDER[=KEY]", help="An audit log with contents; repeatable."),
]


def erase(  # noqa: PLR0913, PLR0917 - each parameter is an option
    subject: Annotated[str, typer.Option(help="The client's own name for its user.")],
    memory: Annotated[str, typer.Option(help="URL of the memory, such as sqlite:///FILE.")],
    subject_key: Annotated[Path, typer.Option(help="Key of the memory's digests.")] = Path(
        "runs/memory.key"
    ),
    audit: Audit = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the records, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a person from memory, exports and audit contents; exits with 1 if anything is left.

    **Example**

    `waltzrl erase --subject user-17 --memory sqlite:///runs/memory.db --audit runs/audit`
    """
    from waltzrl.compliance.erasure import erase_records, find_records, open_targets

    logs = {Path(folder): Path(key) if key else None for folder, key in map(_log, audit or [])}
    with open_targets(subject, memory, subject_key, logs) as targets:
        if not (dry_run or yes):
            typer.confirm(
                f"Erase all {find_records(targets).records} records for good?", abort=True, err=True
            )
        erasure = find_records(targets) if dry_run else erase_records(targets)
    print_json(asdict(erasure)) if as_json else print(_report(erasure, logs, dry_run=dry_run))
    raise typer.Exit(1 if erasure.left else 0)


def _log(given: str) -> tuple[str, str]:
    folder, _, key = given.partition("=")
    return folder, key


def _report(erasure: "ErasureResult", logs: Collection[Path], *, dry_run: bool) -> str:
    done = "found" if dry_run else "erased"
    lines = [f"{count:>8}  {done} in {where}" for where, count in erasure.found.items()]
    if not lines:
        lines = ["no records of this subject; check its name and the memory's key"]
    if not logs:
        lines.append("no --audit was given; contents beside audit logs were not searched")
    lines += [f"missing export: {path}" for path in erasure.missing]
    lines += [f"STILL PRESENT: {trace}" for trace in erasure.left]
    if erasure.found and not (dry_run or erasure.left):
        lines.append("checked again: nothing is left")
    return "\n".join(lines)
