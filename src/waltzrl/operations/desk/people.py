"""The people page: finds what is kept of a person by the client's own name for its user.

The memory knows people by a keyed digest of that name, and each audit log by another. Each search
is a notice to every gateway's audit log: who searched, for which digest of the memory, and how much
is kept under it; never the name.
"""

from starlette.responses import Response

from waltzrl.errors import InputError
from waltzrl.operations.desk.queue import list_path, with_query
from waltzrl.operations.desk.request import PageRequest, page_error, redirect_to
from waltzrl.store.database import writing
from waltzrl.store.memory.erasure import KeptOf, count_kept
from waltzrl.store.notices import give_notice

AUDIT = "/desk/audit"
MAX_NAME = 500
"""Characters."""


def show_people(request: PageRequest) -> Response:
    """Ask for a name; roles that may not search are told so."""
    return request.page("people.html", may=request.session.may("operator"), subject="", kept=[])


def find_person(request: PageRequest) -> Response:
    """Show what is kept under the digest of a name, and write down that somebody looked.

    Raises:
        RequestError: 403 for all but operators, who may tell which person a pseudonym is.
    """
    request.require("operator")
    name = request.form.get("name", "")[:MAX_NAME]
    if not name:
        return show_people(request)
    subject, kept = _search_name(request, name)
    return request.page(
        "people.html",
        may=True,
        subject=subject,
        kept=kept,
        collaborations=list_path({"subject": subject}),
    )


def find_entries(request: PageRequest) -> Response:
    """Lead to a person's entries in this gateway's audit log, and write down that somebody looked.

    Raises:
        RequestError: 403 for all but operators, or 409 where the log's key cannot be read.
    """
    request.require("operator")
    audit, name = request.source.audit, request.form.get("name", "")[:MAX_NAME]
    if audit is None or not name:
        return redirect_to(AUDIT)
    try:
        subject = audit.digest(name)
    except InputError as error:
        raise page_error(409, str(error)) from error
    _search_name(request, name)
    return redirect_to(with_query(AUDIT, {"subject": subject}))


def _search_name(request: PageRequest, name: str) -> tuple[str, list[KeptOf]]:
    """Return the memory's digest of a name and what is kept under it; give the notice."""
    memory = request.memory
    subject, engine = memory.digest(name), memory.store.engine
    kept = count_kept(engine, subject)
    records = sum(each.records for each in kept)
    with writing(engine) as connection:
        by = request.name
        give_notice(connection, "person_search", {"by": by, "subject": subject, "records": records})
    return subject, kept
