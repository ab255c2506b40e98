"""One key for all names in a memory: what is kept under a second one, `waltzrl erase` never finds.

The memory knows its key by a mark, the key's digest of nobody, which tells nothing of the key.
"""

from contextlib import suppress
from pathlib import Path

from sqlalchemy import Column, Engine, Integer, Table, Text, insert, select
from sqlalchemy.exc import IntegrityError

from waltzrl.errors import InputError
from waltzrl.storage.database import TABLES, reading, writing

SUBJECT_KEY = Table(
    "subject_key",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("mark", Text, nullable=False),
)
"""One row."""


def bind_key(engine: Engine, mark: str, file: Path) -> None:
    """Make a key the memory's own, unless it has one.

    Args:
        engine: of a memory whose tables are there.
        mark: the key's digest of nobody.
        file: of the key, for the message.

    Raises:
        InputError: it has another.
        StorageError: the database does not answer.
    """
    with suppress(IntegrityError), writing(engine) as connection:  # it has one already
        connection.execute(insert(SUBJECT_KEY).values(id=1, mark=mark))
    require_key(engine, mark, file)


def require_key(engine: Engine, mark: str, file: Path) -> None:
    """Refuse a key under which nobody would be found; see `bind_key` for what is raised."""
    with reading(engine) as connection:
        own = connection.execute(select(SUBJECT_KEY.c.mark)).scalar()
    if own not in (None, mark):
        raise InputError(
            f"{file} is not the key under which {engine.url.render_as_string()} keeps names; give "
            "each gateway and `waltzrl erase` the same memory.subject_key; where it is lost, begin "
            "a new memory"
        )
