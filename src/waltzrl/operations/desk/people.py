"""The people page: finds what is kept of a person by the client's own name for its user.

The memory knows people by a keyed digest of that name. Each search is a notice to every gateway's
audit log: who searched, for which digest, and how much was found; never the name.
"""

from starlette.responses import Response

from waltzrl.operations.desk.queue import list_path
from waltzrl.operations.desk.request import PageRequest
from waltzrl.store.database import writing
from waltzrl.store.memory.erasure import kept_of
from waltzrl.store.notices import give_notice

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
    memory = request.source.memory
    subject, engine = memory.digest(name), memory.store.engine
    kept = kept_of(engine, subject)
    records = sum(each.records for each in kept)
    with writing(engine) as connection:
        by = request.session.key.name
        give_notice(connection, "person_search", {"by": by, "subject": subject, "records": records})
    return request.page(
        "people.html",
        may=True,
        subject=subject,
        kept=kept,
        collaborations=list_path({"subject": subject}),
    )
