"""Gives evaluations of a queue to people, so that two never work on the same one.

A row of `LEASES` is one evaluation that somebody has open. It is taken by one conditional insert,
which of several callers at once only one can make, on SQLite and on PostgreSQL, and it ends by
itself, so that what somebody left open comes back to the queue.
"""

import time

from msgspec import structs
from sqlalchemy import Connection, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from waltzrl.store.memory.queue import QueueSelection, keys_in, read_queue
from waltzrl.store.memory.tables import LEASES

SECONDS = 1800.0
"""The time for which an evaluation stays with a person who does not label it."""
TRIED = 5
"""Evaluations that are read at a time, because others may take the first ones meanwhile."""


def take_next(connection: Connection, selection: QueueSelection, after: str = "") -> str | None:
    """Give `selection.rater` the next evaluation that needs a label and that nobody else has.

    Args:
        connection: in a transaction that writes.
        selection: the queue; `needs` says how many people label each.
        after: id of the one that the person leaves; it is free again, and comes last.

    Returns:
        Its id; None when there is none.
    """
    assert selection.rater, "a lease is somebody's"
    free = structs.replace(selection, free=True)
    # Before the search: a person who leaves the last one of a queue may be given it again.
    end_lease(connection, after, selection.rater)
    connection.execute(delete(LEASES).where(LEASES.c.ends <= time.time()))
    for start in dict.fromkeys((after, "")):  # what was left out before comes at the end
        here = start
        while queued := read_queue(connection, free, limit=TRIED, after=here):
            for id_ in (row.evaluation.id for row in queued):
                if not _take_lease(connection, id_, selection.rater):
                    continue
                # who had it may have labelled it since it was read
                if keys_in(connection, structs.replace(selection, ids=(id_,))):
                    return id_
                end_lease(connection, id_, selection.rater)
            here = queued[-1].evaluation.id
    return None


def end_lease(connection: Connection, id_: str, person: str) -> None:
    """End a person's lease, if they have it."""
    mine = (LEASES.c.evaluation == id_, LEASES.c.person == person)
    connection.execute(delete(LEASES).where(*mine))


def find_holder(connection: Connection, id_: str) -> str | None:
    """Return who has an evaluation; None when nobody has."""
    query = select(LEASES.c.person).where(LEASES.c.evaluation == id_, LEASES.c.ends > time.time())
    return connection.scalar(query)


def _take_lease(connection: Connection, id_: str, person: str) -> bool:
    """Lease an evaluation unless somebody else has it; return whether the person has it now."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    now = time.time()
    row = {"evaluation": id_, "person": person, "ends": now + SECONDS}
    taken = insert(LEASES).values(row)
    statement = taken.on_conflict_do_update(
        index_elements=["evaluation"],
        set_={"person": taken.excluded.person, "ends": taken.excluded.ends},
        # The condition is checked by the database while it holds the row, so two takers cannot both
        # win.
        where=or_(LEASES.c.ends <= now, LEASES.c.person == person),
    ).returning(LEASES.c.evaluation)
    return connection.scalar(statement) is not None
