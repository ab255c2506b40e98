"""The tables of a memory and of its releases, copied to files and back.

They are read in one transaction while gateways write. What was copied from SQLite can be filled
into PostgreSQL, which moves a memory.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Table

from waltzrl.errors import InputError
from waltzrl.operations.release.tables import RELEASE
from waltzrl.store.database import existing_database, open_database, writing
from waltzrl.store.dump import check_table, fill_table, is_empty, take_snapshot, write_table
from waltzrl.store.memory.erasure import note_export, withdraw_export
from waltzrl.store.memory.tables import MEMORY
from waltzrl.store.migrations import VERSION, check_version, prepare_tables
from waltzrl.store.notices import NOTICES


def list_tables() -> list[Table]:
    """Return the tables of a database that hold what cannot be made again."""
    groups = (MEMORY.tables, RELEASE.tables, NOTICES.metadata)
    return [table for group in groups for table in group.sorted_tables]


@contextmanager
def announce_backup(url: str, manifest: Path) -> Iterator[None]:
    """Let `waltzrl erase` know of the backup with this manifest, unless the block fails.

    Raises:
        StorageError: the database is unavailable.
    """
    engine = existing_database(url)
    try:
        prepare_tables(engine, MEMORY, RELEASE)
        note_export(engine, manifest)
        try:
            yield
        except BaseException:
            withdraw_export(engine, manifest)
            raise
    finally:
        engine.dispose()


def dump_tables(url: str, folder: Path) -> tuple[int, dict[str, int]]:
    """Copy a database to files; return its version, and the number of rows of each table.

    Raises:
        StorageError: the database is unavailable.
    """
    engine = existing_database(url)
    try:
        with take_snapshot(engine) as connection:
            return VERSION, {
                table.name: write_table(connection, table, folder / f"{table.name}.jsonl")
                for table in list_tables()
            }
    finally:
        engine.dispose()


def fill_tables(url: str, folder: Path, rows: Mapping[str, int], version: int) -> None:
    """Fill an empty database from files, and compare it with them.

    Args:
        url: of the database, which is made where there is none.
        folder: holds the files.
        rows: by the table that was copied.
        version: of the database that was copied.

    Raises:
        InputError: the database is not empty, or a file is damaged.
        StorageError: the database is unavailable, or does not hold what was filled in, or the files
            are of a version that this waltzrl cannot read.
    """
    check_version(str(folder), version)
    engine = open_database(url)
    try:
        prepare_tables(engine, MEMORY, RELEASE)
        with writing(engine) as connection:
            for table in list_tables():
                if not is_empty(connection, table):
                    raise InputError(
                        f"{engine.url.render_as_string()} is not empty: it has {table.name}; "
                        "restore into a new database"
                    )
                if table.name in rows:
                    path = folder / f"{table.name}.jsonl"
                    fill_table(connection, table, path)
                    check_table(connection, table, path)
            # `prepare_tables` has run them on the empty tables and noted them as done.
            for group in (MEMORY, RELEASE):
                for migrate in group.migrations.values():
                    migrate(connection)
    finally:
        engine.dispose()
