"""Creates the tables of a package, and brings those of the version before up to date.

Several packages keep their tables in one database. Each describes its own as a `TableGroup`, and
`prepare_tables` creates exactly the groups it is given: which package opens a database first, or
has been imported, makes no difference to what the database holds in the end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    insert,
    select,
    text,
    update,
)

from waltzrl.errors import StorageError
from waltzrl.store.database import writing
from waltzrl.store.notices import NOTICES

VERSION = 6
"""The version of the whole database; raise it with a change that older versions of waltzrl cannot
work with."""
OLDEST = 5
"""The oldest version whose rows the migrations bring up to date."""
SCHEMA_VERSION = Table("schema_version", MetaData(), Column("version", Integer, nullable=False))
"""One row."""
MIGRATIONS = Table("migrations", MetaData(), Column("name", Text, primary_key=True))
"""The migrations that were run. A group may be opened after another has raised the version, so the
version does not say which were."""
# The ASCII codes of WALTZ.
LOCK = 0x57414C545A
"""PostgreSQL's advisory lock of the process that creates tables."""


@dataclass(frozen=True, slots=True)
class TableGroup:
    """The tables of one package."""

    tables: MetaData
    migrations: Mapping[str, Callable[[Connection], None]] = field(default_factory=dict)
    """Name -> a function that brings rows of an older version up to date, and leaves others as they
    are. Each is run once on a database, in order."""


def prepare_tables(engine: Engine, *groups: TableGroup) -> None:
    """Create missing tables and run the missing migrations of these groups, in one transaction.

    Raises:
        StorageError: the database is unavailable, or of a version that this waltzrl does not know.
    """
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":  # SQLite's write lock does the same
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        SCHEMA_VERSION.create(connection, checkfirst=True)
        version = connection.execute(select(SCHEMA_VERSION.c.version)).scalar()
        if version is None:
            connection.execute(insert(SCHEMA_VERSION).values(version=VERSION))
        else:
            check_version(engine.url.render_as_string(), version)
            # From now on a waltzrl that knows older versions only refuses the database.
            connection.execute(update(SCHEMA_VERSION).values(version=VERSION))
        # Every group may give notices, in the transaction of its own change.
        NOTICES.create(connection, checkfirst=True)
        MIGRATIONS.create(connection, checkfirst=True)
        done = set(connection.execute(select(MIGRATIONS.c.name)).scalars())
        for group in groups:
            group.tables.create_all(connection)
            for name, migrate in group.migrations.items():
                if name not in done:
                    migrate(connection)
                    connection.execute(insert(MIGRATIONS).values(name=name))


def check_version(place: str, version: int) -> None:
    """Check that this waltzrl can read a database of a version, or a copy of one.

    Raises:
        StorageError: it cannot; names the place.
    """
    if not OLDEST <= version <= VERSION:
        raise StorageError(
            f"{place} is of version {version} of the database, and this waltzrl reads versions "
            f"{OLDEST} to {VERSION}; use the waltzrl that wrote it, or a new database"
        )
