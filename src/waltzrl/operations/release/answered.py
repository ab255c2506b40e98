"""Stores how many answers each user had, so that each counts once in a step of a release."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import Connection, Engine, bindparam, delete, insert, select, update

from waltzrl.foundation.files import Json
from waltzrl.operations.release.evidence import Answered
from waltzrl.operations.release.state import Observation
from waltzrl.operations.release.tables import ANSWERED, OBSERVATIONS
from waltzrl.store.database import reading, writing


def read_answered(
    connection: Connection, release_id: str, observations: Sequence[Observation]
) -> Answered:
    """Return the answers so far of the users in `observations`."""
    subjects = {observation.subject for observation in observations} - {""}
    query = select(ANSWERED).where(
        ANSWERED.c.release == release_id, ANSWERED.c.subject.in_(subjects)
    )
    rows = connection.execute(query) if subjects else ()
    return Counter({(row.arm, row.subject): row.answers for row in rows})


def store_answered(
    connection: Connection, release_id: str, before: Answered, after: Answered
) -> None:
    """Store the numbers that have grown."""
    # Not the names of the columns: SQLAlchemy reserves those for the values to set.
    named = (ANSWERED.c.release == bindparam("of"), ANSWERED.c.arm == bindparam("by"))
    grown = [key for key in after if after[key] > before[key]]
    if known := [
        {"of": release_id, "by": key[0], "whose": key[1], "answers": after[key]}
        for key in grown
        if before[key]
    ]:
        of_user = (*named, ANSWERED.c.subject == bindparam("whose"))
        connection.execute(update(ANSWERED).where(*of_user), known)
    if new := [
        {"release": release_id, "arm": key[0], "subject": key[1], "answers": after[key]}
        for key in grown
        if not before[key]
    ]:
        connection.execute(insert(ANSWERED), new)


def start_step(connection: Connection, release_id: str) -> None:
    """Let every user count again."""
    connection.execute(delete(ANSWERED).where(ANSWERED.c.release == release_id))


def yield_counted(engine: Engine, subject: str) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Yield table and row of what releases count of a user; an empty digest names nobody."""
    for table in (ANSWERED, OBSERVATIONS) if subject else ():
        names = [column.name for column in table.columns if column.name != "number"]
        query = select(*(table.c[name] for name in names)).where(table.c.subject == subject)
        with reading(engine) as connection:
            for row in connection.execute(query).mappings():
                yield str(table.name), {str(name): value for name, value in row.items()}


def forget_subject(engine: Engine, subject: str) -> None:
    """Delete the digest of an erased user; an empty one names nobody."""
    if not subject:
        return
    with writing(engine) as connection:
        for table in (ANSWERED, OBSERVATIONS):
            connection.execute(delete(table).where(table.c.subject == subject))
