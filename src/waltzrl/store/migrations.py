"""Creates the tables of a package, and brings those of older versions up to date.

Several packages keep their tables in one database. Each describes its own as a `TableGroup`, and
`prepare_tables` creates exactly the groups it is given: which package opens a database first, or
has been imported, makes no difference to what the database holds in the end.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    insert,
    select,
    text,
    update,
)

from waltzrl.errors import StorageError
from waltzrl.store.database import writing
from waltzrl.store.notices import NOTICES

VERSION = 5
"""The version of the whole database; raise it with a change that older versions of waltzrl cannot
work with."""
SCHEMA_VERSION = Table("schema_version", MetaData(), Column("version", Integer, nullable=False))
"""One row."""
LOCK = 0x57414C545A
"""PostgreSQL's advisory lock of the process that migrates."""


@dataclass(frozen=True, slots=True)
class TableGroup:
    """The tables of one package."""

    tables: MetaData
    steps: tuple[Callable[[Connection], None], ...] = ()
    """Run in order at every opening, on new tables too. Each looks at what is there and changes
    only what is not as it should be: the group may be older than the database's version says."""


def prepare_tables(engine: Engine, *groups: TableGroup) -> None:
    """Create missing tables and run the steps of these groups, in one transaction.

    Raises:
        StorageError: the database is unavailable, or a newer version of waltzrl has changed it.
    """
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":  # SQLite's write lock does the same
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        SCHEMA_VERSION.create(connection, checkfirst=True)
        version = connection.execute(select(SCHEMA_VERSION.c.version)).scalar()
        if version is not None and version > VERSION:
            raise StorageError(
                f"{engine.url.render_as_string()} has version {version}, and this waltzrl knows "
                f"versions up to {VERSION}; install the newer waltzrl that it was used with"
            )
        # Every group may give notices, in the transaction of its own change.
        NOTICES.create(connection, checkfirst=True)
        for group in groups:
            group.tables.create_all(connection)
            for step in group.steps:
                step(connection)
        if version is None:
            connection.execute(insert(SCHEMA_VERSION).values(version=VERSION))
        # Last, in the same transaction: a version never stands for steps that did not run.
        elif version < VERSION:
            connection.execute(update(SCHEMA_VERSION).values(version=VERSION))
