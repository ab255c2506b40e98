"""The audit page: is the log what was written, and what was written last."""

from collections.abc import Sequence

from waltzrl.audit import Entry, LogFault, find, latest, verify
from waltzrl.console.visit import DeskVisit
from waltzrl.console.web import Replied
from waltzrl.errors import InputError
from waltzrl.storage.notices import last_notice, notices_after

NEWEST = 25


def show_audit(visit: DeskVisit) -> Replied:
    """Show the newest entries, or those of one request."""
    return _page(visit)


def verify_audit(visit: DeskVisit) -> Replied:
    """Check every record of this gateway's log, and show what was found."""
    audit = visit.source.audit
    if audit is None:
        return _page(visit)
    try:
        result = verify(audit.folder, audit.key)
    except FileNotFoundError:
        return _page(visit, result="There is no log yet.", sound=True)
    return _page(visit, result=str(result), sound=not isinstance(result, LogFault))


def _page(visit: DeskVisit, *, result: str = "", sound: bool = True) -> Replied:
    audit, record = visit.source.audit, visit.asked.query.get("record", "")
    engine = visit.source.memory.store.engine
    notices = notices_after(engine, last_notice(engine) - NEWEST)
    return visit.page(
        "audit.html",
        result=result,
        sound=sound,
        record=record,
        key="" if audit is None else str(audit.key),
        entries=[] if audit is None else _entries(visit, record)[::-1],
        told=_told,
        notices=notices[::-1],
    )


def _entries(visit: DeskVisit, record: str) -> Sequence[Entry]:
    assert visit.source.audit is not None
    folder = visit.source.audit.folder
    try:
        return find(folder, record) if record else latest(folder, NEWEST)
    except InputError:
        return []


def _told(entry: Entry) -> str:
    """Return what an entry says that is no decision."""
    if entry.unaudited:
        return f"{entry.unaudited} decisions were not logged"
    said = entry.notice or {}
    return " \N{MIDDLE DOT} ".join(f"{name} {value}" for name, value in said.items())
