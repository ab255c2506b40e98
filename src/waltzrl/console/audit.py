"""The audit page: whether the log is intact, and what was written last."""

from collections.abc import Sequence

from starlette.responses import Response

from waltzrl.audit import Entry, LogFault, Query, find, newest, verify
from waltzrl.console.request import PageRequest
from waltzrl.errors import InputError
from waltzrl.storage.notices import last_notice, notices_after

NEWEST = 25


def show_audit(request: PageRequest) -> Response:
    """Show the newest entries, or those of one request."""
    return _audit_page(request)


def verify_audit(request: PageRequest) -> Response:
    """Check every record of this gateway's log, and show the result."""
    audit = request.source.audit
    if audit is None:
        return _audit_page(request)
    try:
        result = verify(audit.folder, audit.key)
    except FileNotFoundError:
        return _audit_page(request, result="There is no log yet.", intact=True)
    return _audit_page(request, result=str(result), intact=not isinstance(result, LogFault))


def _audit_page(request: PageRequest, *, result: str = "", intact: bool = True) -> Response:
    audit, record = request.source.audit, request.query.get("record", "")
    entries: Sequence[Entry] = []
    if audit is not None:
        try:
            entries = (
                find(audit.folder, record) if record else newest(audit.folder, Query(), NEWEST)
            )
        except InputError:  # nothing is logged yet
            entries = []
    engine = request.source.memory.store.engine
    notices = notices_after(engine, last_notice(engine) - NEWEST)
    return request.page(
        "audit.html",
        result=result,
        intact=intact,
        record=record,
        key="" if audit is None else str(audit.key),
        entries=entries[::-1],
        describe=describe,
        notices=notices[::-1],
    )


def describe(entry: Entry) -> str:
    """Describe an entry that is no decision."""
    if entry.unaudited:
        return f"{entry.unaudited} decisions were not logged"
    notice = entry.notice or {}
    return " \N{MIDDLE DOT} ".join(f"{name} {value}" for name, value in notice.items())
