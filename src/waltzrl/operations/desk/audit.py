"""The audit page: whether the log is intact, and what was written last."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from starlette.responses import Response

from waltzrl.agents.rules import CATEGORIES
from waltzrl.errors import InputError
from waltzrl.operations.desk.queue import path_of, with_query
from waltzrl.operations.desk.request import PageRequest, read_number
from waltzrl.store.audit.query import Query, moment, newest
from waltzrl.store.audit.reading import explain_decision, find, one_page
from waltzrl.store.audit.record import Entry
from waltzrl.store.audit.verify import LogFault, verify
from waltzrl.store.notices import newest_notices

NEWEST = 25
TEXTS = {
    "since": "from (2026-11-30, or 2h ago: 2h)",
    "until": "until",
    "who": "key",
    "subject": "user (pseudonym)",
    "rule": "rule or pack",
    "bundle": "bundle",
    "policy": "policy",
    "model": "model",
}
"""Fields of a query that are typed, and what the form calls them."""
CHOICES = {"decision": ("draft", "revised", "refused", "error"), "category": CATEGORIES}
"""Fields of a query with their values."""


def verify_audit(request: PageRequest) -> Response:
    """Check every record of this gateway's log, and show the result."""
    audit = request.source.audit
    if audit is None:
        return show_audit(request)
    try:
        result = verify(audit.folder, audit.key)
    except FileNotFoundError:
        return show_audit(request, result="There is no log yet.", intact=True)
    return show_audit(request, result=str(result), intact=not isinstance(result, LogFault))


def show_audit(request: PageRequest, *, result: str = "", intact: bool = True) -> Response:
    """Show the newest entries, or those of one request, below the result of a verification."""
    audit, record = request.source.audit, request.query.get("record", "").strip()
    entries: Sequence[Entry] = []
    problem, query = "", Query()
    try:
        query = _read_query(request)
    except InputError as error:
        problem = str(error)
    if audit is not None and not problem:
        with suppress(InputError):  # nothing is logged yet, or nothing of this request
            entries = find(audit.folder, record) if record else newest(audit.folder, query, NEWEST)
    entries = [entry for entry in entries if query.matches(entry)]
    engine, fields = request.memory.store.engine, _read_fields(request)
    is_full = not record and len(entries) == NEWEST
    older = {**fields, "before": str(entries[0].seq)} if is_full else {}
    return request.page(
        "audit.html",
        result=result,
        intact=intact,
        record=record,
        fields=fields,
        texts=TEXTS,
        choices={name: [(value, value) for value in values] for name, values in CHOICES.items()},
        problem=problem,
        key="" if audit is None else str(audit.key),
        entries=entries[::-1],
        whole=[(entry.seq, one_page(entry), _link_collaboration(entry)) for entry in entries]
        if record
        else [],
        why=explain_decision,
        describe=describe_entry,
        older=with_query("/desk/audit", older) if older else "",
        notices=newest_notices(engine, NEWEST, but=("label",)),
        label_notices=newest_notices(engine, NEWEST, of=("label",)),
    )


def _read_fields(request: PageRequest) -> dict[str, str]:
    return {
        name: request.query[name].strip() for name in (*TEXTS, *CHOICES) if name in request.query
    }


def _read_query(request: PageRequest) -> Query:
    """Return which entries the address asks for, with the fields of `waltzrl audit show`.

    Raises:
        InputError: a field is unknown, a time cannot be read, or a value is none of its list.
    """
    fields, now = _read_fields(request), datetime.fromtimestamp(request.now, UTC)
    for name in request.query:
        if name not in (*TEXTS, *CHOICES, "record", "before"):
            raise InputError(f"{name!r} is no filter; use {', '.join((*TEXTS, *CHOICES))}")
    for name, values in CHOICES.items():
        if fields.get(name, values[0]) not in values:
            raise InputError(f"{name} cannot be {fields[name]!r}; use {', '.join(values)}")
    for name in ("since", "until"):
        if name in fields:
            fields[name] = moment(fields[name], now)
    return Query(before=read_number(request.query.get("before", "")), **fields)


def _link_collaboration(entry: Entry) -> str:
    """Return the address of the collaboration of a decision; it may be kept no longer."""
    record = entry.decision
    return "" if record is None else path_of(record.exchange_id or record.id)


def describe_entry(entry: Entry) -> str:
    """Describe an entry that is no decision."""
    if entry.unaudited:
        return f"{entry.unaudited} decisions were not logged"
    notice = entry.notice or {}
    return " \N{MIDDLE DOT} ".join(f"{name} {value}" for name, value in notice.items())
