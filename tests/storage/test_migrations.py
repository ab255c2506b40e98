"""Databases of every version, and processes that start at the same time."""

import sqlite3
import subprocess
import sys

import pytest
from sqlalchemy import inspect, select, update

from waltzrl.errors import StorageError
from waltzrl.memory.store import MemoryStore
from waltzrl.release.observations import take
from waltzrl.release.state import Observation
from waltzrl.storage.database import TABLES, open_database, reading, writing
from waltzrl.storage.migrations import LATEST, SCHEMA, prepare

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
        return connection.execute(select(SCHEMA.c.version)).scalars().all()


def test_a_new_database_has_all_tables_and_the_latest_version(database_url):
    engine = open_database(database_url)
    prepare(engine)
    prepare(engine)
    assert set(TABLES.tables) <= set(inspect(engine).get_table_names())
    assert version(engine) == [LATEST]
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
    assert version(store.engine) == [LATEST]
    store.engine.dispose()


def test_what_version_3_has_counted_is_forgotten_and_what_waits_is_counted(database_url):
    engine = open_database(database_url)
    prepare(engine)
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
    prepare(engine)
    with writing(engine) as connection:
        waits = Observation(release="r", arm="serving", outcomes={"error": False})
        assert take(connection, "r") == [waits]
    assert version(engine) == [LATEST]
    engine.dispose()


def test_a_database_from_a_newer_version_is_refused(database_url):
    engine = open_database(database_url)
    prepare(engine)
    with writing(engine) as connection:
        connection.execute(update(SCHEMA).values(version=LATEST + 1))
    with pytest.raises(StorageError, match=f"version {LATEST + 1}.*newer waltzrl"):
        prepare(engine)
    engine.dispose()


def test_processes_that_start_at_once_do_not_disturb_each_other(database_url):
    script = (
        "import sys; from waltzrl.storage.database import open_database; "
        "from waltzrl.memory.store import MemoryStore; sys.stdin.read(); "
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
    assert version(engine) == [LATEST]
    assert len(MemoryStore(engine, scrub=str).search(("a",))) == 2
    engine.dispose()
