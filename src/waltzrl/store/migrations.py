"""Creates the tables of a package.

Several packages keep their tables in one database. Each describes its own as a `TableGroup`, and
`prepare_tables` creates exactly the groups it is given: which package opens a database first, or
has been imported, makes no difference to what the database holds in the end.
"""

from dataclasses import dataclass

from sqlalchemy import Column, Engine, Integer, MetaData, Table, insert, select, text

from waltzrl.errors import StorageError
from waltzrl.store.database import writing
from waltzrl.store.notices import NOTICES

VERSION = 5
"""The version of the whole database; a database of another one is refused."""
SCHEMA_VERSION = Table("schema_version", MetaData(), Column("version", Integer, nullable=False))
"""One row."""
LOCK = 0x57414C545A
"""PostgreSQL's advisory lock of the process that creates tables."""


@dataclass(frozen=True, slots=True)
class TableGroup:
    """The tables of one package."""

    tables: MetaData


def prepare_tables(engine: Engine, *groups: TableGroup) -> None:
    """Create the missing tables of these groups, in one transaction.

    Raises:
        StorageError: the database is unavailable, or of another version.
    """
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":  # SQLite's write lock does the same
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        SCHEMA_VERSION.create(connection, checkfirst=True)
        version = connection.execute(select(SCHEMA_VERSION.c.version)).scalar()
        if version is None:
            connection.execute(insert(SCHEMA_VERSION).values(version=VERSION))
        elif version > VERSION:
            raise StorageError(
                f"{engine.url.render_as_string()} has version {version}, and this waltzrl knows "
                f"versions up to {VERSION}; install the newer waltzrl that it was used with"
            )
        elif version < VERSION:
            raise StorageError(
                f"{engine.url.render_as_string()} has version {version}, and this waltzrl needs "
                f"version {VERSION}; give it a new database, or open this one with the waltzrl "
                "that it was used with"
            )
        # Every group may give notices, in the transaction of its own change.
        NOTICES.create(connection, checkfirst=True)
        for group in groups:
            group.tables.create_all(connection)
