"""`waltzrl access`: write a copy of everything that is kept of a person."""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.foundation.options import AsJson, print_json
from waltzrl.operations.commands.erase import (
    DEFAULT_KEY,
    UNKNOWN,
    Audit,
    Memory,
    RequestId,
    Subject,
    SubjectKey,
    audit_logs,
)

if TYPE_CHECKING:
    from waltzrl.operations.compliance.access import AccessResult


def access(  # noqa: PLR0913, PLR0917 - each parameter is an option
    memory: Memory,
    out: Annotated[Path, typer.Option(help="A new folder, readable by its owner only.")],
    subject: Subject = "",
    request: RequestId = "",
    subject_key: SubjectKey = DEFAULT_KEY,
    audit: Audit = None,
    contents_days: Annotated[
        float, typer.Option(help="The gateway's audit.contents_days, for expiry dates.")
    ] = 200.0,
    as_json: AsJson = False,
) -> None:
    """Write a person's copy: a page to read, and every record as JSON Lines.

    It has what `waltzrl erase` would erase, what that would leave, what was redacted, and when it
    expires. Exits with 3, and writes nothing, if nothing is kept.

    **Example**

    `waltzrl access --subject user-17 --memory sqlite:///runs/memory.db --audit runs/audit --out to`
    """
    from waltzrl.operations.compliance.access import write_access
    from waltzrl.operations.compliance.subject import RecordsOf, open_places

    logs = audit_logs(audit)
    whose = RecordsOf(subject=subject, request=request)
    with open_places(whose, memory, subject_key, logs) as places:
        result = write_access(places, out, contents_days)
    print_json(asdict(result)) if as_json else print(_format_result(result, out, logs))
    raise typer.Exit(0 if result.records else UNKNOWN)


def _format_result(result: "AccessResult", out: Path, logs: Collection[Path]) -> str:
    lines = [f"{count:>8}  found in {where}" for where, count in result.found.items()]
    lines += [
        f"{count:>8}  in {where}; an erasure leaves it" for where, count in result.stays.items()
    ]
    if not lines:
        lines = ["nothing found: this subject or request is unknown here; nothing was written"]
    if not logs:
        lines.append(
            "no --audit was given; audit logs, and contents beside them, were not searched"
        )
    lines += [f"missing export: {path}" for path in result.missing]
    lines += [f"also in {copy}" for copy in result.copies]
    if result.records:
        lines.append(
            f"written: {out / 'index.html'}; it is personal data: delete it when handed over"
        )
    return "\n".join(lines)
