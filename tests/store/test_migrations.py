"""Databases of every version, and processes that start at the same time."""

import sqlite3
import subprocess
import sys

import pytest
from sqlalchemy import inspect, select, text, update

from support.databases import add_vectors_of_0_1
from waltzrl.errors import StorageError
from waltzrl.operations.release.book import ReleaseBook, take_observations
from waltzrl.operations.release.state import Observation
from waltzrl.operations.release.tables import RELEASE
from waltzrl.store.database import open_database, reading, writing
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.memory.tables import MEMORY
from waltzrl.store.migrations import SCHEMA_VERSION, VERSION, prepare_tables

VERSION_1 = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (1);
CREATE TABLE items (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, key TEXT NOT NULL, value JSON NOT NULL,
    words TEXT NOT NULL, created_at FLOAT NOT NULL, updated_at FLOAT NOT NULL, expires_at FLOAT,
    ttl FLOAT, request_hash TEXT, subject TEXT, interaction TEXT, label TEXT, category TEXT,
    bundle TEXT, "release" TEXT, arm TEXT, decision TEXT, time FLOAT, stage FLOAT, safe BOOLEAN,
    UNIQUE (namespace, key)
);
INSERT INTO items (namespace, key, value, words, created_at, updated_at)
VALUES ('notes', 'old', '{"text": "Tea!"}', 'tea', 1.0, 1.0);
"""


def version(engine):
    with reading(engine) as connection:
        return connection.execute(select(SCHEMA_VERSION.c.version)).scalars().all()


def test_a_new_database_has_all_tables_and_the_latest_version(database_url):
    engine = open_database(database_url)
    prepare_tables(engine, MEMORY, RELEASE)
    prepare_tables(engine, MEMORY, RELEASE)
    tables = {"schema_version", "notices", *MEMORY.tables.tables, *RELEASE.tables.tables}
    assert tables <= set(inspect(engine).get_table_names())
    assert "item_vectors" not in inspect(engine).get_table_names()
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


def test_a_database_of_version_1_is_brought_up_to_date(tmp_path):
    file = tmp_path / "memory.db"
    connection = sqlite3.connect(file)
    connection.executescript(VERSION_1)
    connection.close()
    store = MemoryStore(open_database(str(file)), scrub=str)
    assert store.get(("notes",), "old").value == {"text": "Tea!"}
    assert [item.key for item in store.search(("notes",), query="tea")] == ["old"]
    store.delete(("notes",), "old")
    assert store.search(("notes",), query="tea") == []
    assert version(store.engine) == [VERSION]
    store.engine.dispose()


def test_vectors_of_version_2_go_with_their_items_too(sqlite_url):
    store = MemoryStore(open_database(sqlite_url), scrub=str)
    store.put(("notes",), "old", {"text": "Tea!"})
    add_vectors_of_0_1(store.engine)
    with writing(store.engine) as connection:
        connection.exec_driver_sql("DROP TRIGGER items_unembedded")
        connection.exec_driver_sql("UPDATE schema_version SET version = 2")
    MemoryStore(store.engine, scrub=str).delete(("notes",), "old")
    with reading(store.engine) as connection:
        assert connection.execute(text("SELECT count(*) FROM item_vectors")).scalar() == 0
    assert version(store.engine) == [VERSION]
    store.engine.dispose()


def test_the_release_book_alone_brings_a_database_of_version_1_up_to_date(tmp_path):
    file = tmp_path / "memory.db"
    with sqlite3.connect(file) as connection:
        connection.executescript(VERSION_1)
    connection.close()
    engine = open_database(str(file))
    assert ReleaseBook(engine).view() is None
    store = MemoryStore(engine, scrub=str)
    assert [item.key for item in store.search(("notes",), query="tea")] == ["old"]
    engine.dispose()


def test_what_version_3_has_counted_is_forgotten_and_what_waits_is_counted(database_url):
    engine = open_database(database_url)
    prepare_tables(engine, MEMORY, RELEASE)
    with writing(engine) as connection:
        for statement in (
            "UPDATE schema_version SET version = 3",
            "ALTER TABLE observations ADD COLUMN counted BOOLEAN NOT NULL DEFAULT false",
            "CREATE INDEX uncounted_observations ON observations (release) WHERE counted = false",
            "INSERT INTO observations (release, arm, outcomes, counted) "
            """VALUES ('r', 'serving', '{"error":true}', true),"""
            """ ('r', 'serving', '{"error":false}', false)""",
        ):
            connection.exec_driver_sql(statement)
    prepare_tables(engine, MEMORY, RELEASE)
    with writing(engine) as connection:
        waits = Observation(release="r", arm="serving", outcomes={"error": False})
        assert take_observations(connection, "r") == [waits]
    assert version(engine) == [VERSION]
    engine.dispose()


def test_a_database_from_a_newer_version_is_refused(database_url):
    engine = open_database(database_url)
    prepare_tables(engine, MEMORY, RELEASE)
    with writing(engine) as connection:
        connection.execute(update(SCHEMA_VERSION).values(version=VERSION + 1))
    with pytest.raises(StorageError, match=f"version {VERSION + 1}.*newer waltzrl"):
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


def test_observations_of_version_5_that_wait_are_of_nobody_and_not_rejudged(database_url):
    engine = open_database(database_url)
    prepare_tables(engine, RELEASE)
    with writing(engine) as connection:
        for statement in (
            "DROP TABLE answered",
            "ALTER TABLE observations DROP COLUMN rejudged",
            "ALTER TABLE observations DROP COLUMN subject",
            "INSERT INTO observations (release, arm, outcomes) "
            """VALUES ('r', 'serving', '{"error":false}')""",
        ):
            connection.exec_driver_sql(statement)
    prepare_tables(engine, RELEASE)
    with writing(engine) as connection:
        waits = Observation(release="r", arm="serving", outcomes={"error": False})
        assert take_observations(connection, "r") == [waits]
    engine.dispose()
