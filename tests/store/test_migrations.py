"""What a database is created with, and processes that start at the same time."""

import subprocess
import sys

import pytest
from sqlalchemy import inspect, select, text, update

from waltzrl.errors import StorageError
from waltzrl.operations.release.tables import RELEASE
from waltzrl.store.database import open_database, reading, writing
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.memory.tables import MEMORY
from waltzrl.store.migrations import SCHEMA_VERSION, VERSION, prepare_tables


def version(engine):
    with reading(engine) as connection:
        return connection.execute(select(SCHEMA_VERSION.c.version)).scalars().all()


def test_a_new_database_has_all_tables_and_the_latest_version(database_url):
    engine = open_database(database_url)
    prepare_tables(engine, MEMORY, RELEASE)
    prepare_tables(engine, MEMORY, RELEASE)
    tables = {"schema_version", "notices", *MEMORY.tables.tables, *RELEASE.tables.tables}
    assert tables <= set(inspect(engine).get_table_names())
    assert version(engine) == [VERSION]
    engine.dispose()


OPENING = {
    "memory": "from waltzrl.store.memory.store import MemoryStore; MemoryStore(engine, scrub=str)",
    "release": "from waltzrl.operations.release.book import ReleaseBook; ReleaseBook(engine)",
}


def schema(url):
    """Return a database's tables with their columns and indexes, and the names of all else."""
    engine = open_database(url)
    found = inspect(engine)
    tables = {
        table: (
            [(column["name"], str(column["type"])) for column in found.get_columns(table)],
            sorted(index["name"] for index in found.get_indexes(table)),
        )
        for table in found.get_table_names()
    }
    source = "sqlite_master" if engine.dialect.name == "sqlite" else "pg_indexes"
    name = "name" if engine.dialect.name == "sqlite" else "indexname"
    with reading(engine) as connection:
        tables["all"] = set(connection.execute(text(f"SELECT {name} FROM {source}")).scalars())
    engine.dispose()
    return tables


def open_in_a_process(url, *packages):
    """Open a database in a process for each package, which imports no other."""
    for package in packages:
        script = (
            "import sys; from waltzrl.store.database import open_database; "
            f"engine = open_database(sys.argv[1]); {OPENING[package]}"
        )
        subprocess.run([sys.executable, "-c", script, url], check=True)


@pytest.mark.parametrize("order", [("memory", "release"), ("release", "memory")])
def test_the_schema_is_whole_whichever_package_opens_a_database_first(database_url, order):
    open_in_a_process(database_url, *order)
    one_by_one = schema(database_url)
    engine = open_database(database_url)
    with writing(engine) as connection:
        for group in (MEMORY, RELEASE):
            group.tables.drop_all(connection)
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("DROP TABLE item_words")
    prepare_tables(engine, MEMORY, RELEASE)
    engine.dispose()
    assert one_by_one == schema(database_url)


@pytest.mark.parametrize(("package", "group"), [("memory", MEMORY), ("release", RELEASE)])
def test_a_package_creates_its_own_tables_and_no_others(database_url, package, group):
    open_in_a_process(database_url, package)
    engine = open_database(database_url)
    tables = set(inspect(engine).get_table_names())
    shadow_tables = {name for name in tables if name.startswith("item_words")}
    assert tables - shadow_tables == {"schema_version", "notices", *group.tables.tables}
    engine.dispose()


def test_a_database_from_a_newer_version_is_refused(database_url):
    engine = open_database(database_url)
    prepare_tables(engine, MEMORY, RELEASE)
    with writing(engine) as connection:
        connection.execute(update(SCHEMA_VERSION).values(version=VERSION + 1))
    with pytest.raises(StorageError, match=f"version {VERSION + 1}.*newer waltzrl"):
        prepare_tables(engine, MEMORY, RELEASE)
    engine.dispose()


def test_a_database_of_an_older_version_is_refused(database_url):
    engine = open_database(database_url)
    prepare_tables(engine, MEMORY, RELEASE)
    with writing(engine) as connection:
        connection.execute(update(SCHEMA_VERSION).values(version=VERSION - 1))
    message = f"has version {VERSION - 1}, and this waltzrl needs version {VERSION}; give it a new"
    with pytest.raises(StorageError, match=message):
        prepare_tables(engine, MEMORY, RELEASE)
    engine.dispose()


def test_processes_that_start_at_once_do_not_disturb_each_other(database_url):
    script = (
        "import sys; from waltzrl.store.database import open_database; "
        "from waltzrl.store.memory.store import MemoryStore; sys.stdin.read(); "
        "MemoryStore(open_database(sys.argv[1]), scrub=str).put(('a',), sys.argv[2], {})"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script, database_url, name],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    for process in both:
        process.stdin.close()
    assert [(process.wait(), process.stderr.read()) for process in both] == [(0, ""), (0, "")]
    for process in both:
        process.stderr.close()
    engine = open_database(database_url)
    assert version(engine) == [VERSION]
    assert len(MemoryStore(engine, scrub=str).search(("a",))) == 2
    engine.dispose()
