"""`waltzrl erase`: erase a person, and check that nothing is left."""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.foundation.options import AsJson, print_json

if TYPE_CHECKING:
    from waltzrl.operations.compliance.erasure import ErasureResult

UNKNOWN = 3
"""Exit status."""
Audit = Annotated[
    list[str] | None,
    typer.Option(metavar="FOLDER[=KEY]", help="An audit log with contents; repeatable."),
]


Memory = Annotated[str, typer.Option(help="URL of the memory, such as sqlite:///FILE.")]
Subject = Annotated[str, typer.Option(help="The client's own name for its user.")]
RequestId = Annotated[str, typer.Option(help="Id of one request, ours or the client's.")]
SubjectKey = Annotated[Path, typer.Option(help="Key of the memory's digests.")]
DEFAULT_KEY = Path("runs/memory.key")


def erase(  # noqa: PLR0913, PLR0917 - each parameter is an option
    memory: Memory,
    subject: Subject = "",
    request: RequestId = "",
    words: Annotated[str, typer.Option(help="Words of the person, of requests by nobody.")] = "",
    subject_key: SubjectKey = DEFAULT_KEY,
    audit: Audit = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the records, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a person from memory, exports and audit contents.

    Exits with 1 if anything is left, and with 3 if nothing was found: the subject is unknown.

    **Example**

    `waltzrl erase --subject user-17 --memory sqlite:///runs/memory.db --audit runs/audit`
    """
    from waltzrl.operations.compliance.erasure import erase_records, find_records
    from waltzrl.operations.compliance.subject import RecordsOf, open_places

    logs = audit_logs(audit)
    whose = RecordsOf(subject=subject, request=request, words=words)
    with open_places(whose, memory, subject_key, logs) as places:
        if not (dry_run or yes):
            typer.confirm(
                f"Erase all {find_records(places).records} records for good?", abort=True, err=True
            )
        erasure = find_records(places) if dry_run else erase_records(places)
    print_json(asdict(erasure)) if as_json else print(
        _format_erasure(erasure, logs, dry_run=dry_run)
    )
    raise typer.Exit(1 if erasure.left else 0 if erasure.records else UNKNOWN)


def audit_logs(given: list[str] | None) -> dict[Path, Path | None]:
    """Read `FOLDER[=KEY]` of each log; None stands for FOLDER.key."""
    parts = [(log, "", "") if Path(log).is_dir() else log.partition("=") for log in given or []]
    return {Path(folder): Path(key) if key else None for folder, _, key in parts}


def _format_erasure(erasure: "ErasureResult", logs: Collection[Path], *, dry_run: bool) -> str:
    done = "found" if dry_run else "erased"
    lines = [f"{count:>8}  {done} in {where}" for where, count in erasure.found.items()]
    if not lines:
        lines = ["nothing found: this subject, request or quotation is unknown here"]
    if not logs:
        lines.append("no --audit was given; contents beside audit logs were not searched")
    lines += [f"missing export: {path}" for path in erasure.missing]
    lines += [f"STILL PRESENT: {trace}" for trace in erasure.left]
    if erasure.found and not (dry_run or erasure.left):
        lines.append("checked again: nothing is left")
    return "\n".join(lines)
