"""What a database is created with, what an older one becomes, and starts at the same time."""

import json
import subprocess
import sys

import msgspec
import pytest
from sqlalchemy import Text, func, inspect, select, text, type_coerce, update

from support.small_evaluations import REFUSAL, labelled, said
from support.small_releases import BAD, GOOD, begun, seen, short_plan
from support.stores import our_store
from waltzrl.errors import StorageError
from waltzrl.operations.backup_tables import dump_tables, fill_tables
from waltzrl.operations.release.book import ReleaseBook, take_observations
from waltzrl.operations.release.state import Observation
from waltzrl.operations.release.tables import RELEASE, JsonColumn
from waltzrl.store.database import open_database, reading, writing
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.schemas import COACHING, EVALUATIONS
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.memory.tables import MEMORY
from waltzrl.store.memory.workqueues import QUEUES, WorkQueue, find_queue
from waltzrl.store.migrations import MIGRATIONS, OLDEST, SCHEMA_VERSION, VERSION, prepare_tables


def version(engine):
    with reading(engine) as connection:
        return connection.execute(select(SCHEMA_VERSION.c.version)).scalars().all()


def test_a_new_database_has_all_tables_and_the_latest_version(database_url):
    engine = open_database(database_url)
    prepare_tables(engine, MEMORY, RELEASE)
    prepare_tables(engine, MEMORY, RELEASE)
    tables = {
        "schema_version",
        "migrations",
        "notices",
        *MEMORY.tables.tables,
        *RELEASE.tables.tables,
    }
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
    assert tables - shadow_tables == {
        *("schema_version", "migrations", "notices"),
        *group.tables.tables,
    }
    engine.dispose()


@pytest.mark.parametrize("foreign", [OLDEST - 1, VERSION + 1])
def test_a_database_of_a_version_that_is_not_known_is_refused(database_url, foreign):
    engine = open_database(database_url)
    prepare_tables(engine, MEMORY, RELEASE)
    with writing(engine) as connection:
        connection.execute(update(SCHEMA_VERSION).values(version=foreign))
    message = (
        f" is of version {foreign} of the database, and this waltzrl reads versions {OLDEST} to "
        f"{VERSION}; use the waltzrl that wrote it, or a new database"
    )
    with pytest.raises(StorageError, match=message):
        prepare_tables(engine, MEMORY, RELEASE)
    engine.dispose()


OLD_WORDS = {
    '"overrefusal_limit"': '"needless_limit"',
    '"overrefusal":': '"needless":',
    '"judge": "overrefusal"': '"judge": "needless"',
    '"overrefusal"': '"needless_refusal"',
    '"over-refusal"': '"needless refusal"',
}


def in_old_words(written):
    """Return JSON as version 5 of the database held it."""
    for word, old in OLD_WORDS.items():
        written = written.replace(word, old)
    return written


def remember_in_old_words(store, namespace, key, value):
    written = json.dumps(msgspec.to_builtins(value))
    assert in_old_words(written) != written
    store.put(namespace, key, json.loads(in_old_words(written)))


def make_version_5(engine):
    with writing(engine) as connection:
        MIGRATIONS.drop(connection)
        connection.execute(update(SCHEMA_VERSION).values(version=5))


LABELLED = labelled(
    said(REFUSAL, asked="Was it a needless refusal?"),
    reply="overrefusal",
    decision="revised",
    reason="over-refusal",
)
WITHDRAWN = msgspec.structs.replace(LABELLED, id="r2").labelled(
    LabelEvent(by="ada", action="withdraw", time=2.0)
)
QUEUE = WorkQueue(
    name="q", filters={"judge": "overrefusal", "label": "overrefusal", "sort": "risk"}
)


def test_over_refusals_in_a_memory_of_version_5_get_their_one_name(database_url):
    with our_store(database_url) as store:
        for evaluation in (LABELLED, WITHDRAWN):
            remember_in_old_words(store, EVALUATIONS, evaluation.id, evaluation)
        remember_in_old_words(store, QUEUES, "q", QUEUE)
        store.put(("notes",), "a", {"label": "needless_refusal"})
        make_version_5(store.engine)
    with our_store(database_url) as store:
        memory = SafetyMemory(store, str, {}, {})
        assert list(memory.every_evaluation()) == [LABELLED, WITHDRAWN]
        assert memory.evaluations(limit=9, label="overrefusal") == [LABELLED]
        assert find_queue(store, "q") == QUEUE
        assert store.get(("notes",), "a").value == {"label": "needless_refusal"}
        assert version(store.engine) == [VERSION]


def test_coaching_sessions_without_a_time_in_its_column_get_it_and_are_swept(database_url):
    with our_store(database_url) as store:
        store.put(COACHING, "r1", {"timestamp": 1000.0})
        store.put(COACHING, "r2", {"timestamp": 1000.0 + 86_400})
        with writing(store.engine) as connection:
            MIGRATIONS.drop(connection)
    with our_store(database_url) as store:
        memory = SafetyMemory(store, str, {"coaching": 1}, {})
        assert memory.sweep(1001.0 + 86_400) == 1
        assert store.get(COACHING, "r1") is None
        assert store.get(COACHING, "r2") is not None


def test_over_refusals_in_releases_of_version_5_get_their_one_name(database_url):
    engine = open_database(database_url)
    book = ReleaseBook(engine)
    release = begun(book, short_plan(10))
    twice = Observation(release=release.id, arm="shadow", outcomes=BAD, rejudged=GOOD)
    book.observe([*seen(release, "serving", GOOD, 5), *seen(release, "shadow", BAD, 5), twice])
    book.tick({}, release.since)
    book.observe([twice])
    view = book.view()
    assert "overrefusal_limit" in view.decision.e_values
    with writing(engine) as connection:
        for table in RELEASE.tables.sorted_tables:
            for column in table.columns:
                if isinstance(column.type, JsonColumn):
                    stored = type_coerce(column, Text)
                    for word, old in OLD_WORDS.items():
                        renamed = {column.name: func.replace(stored, word, old)}
                        connection.execute(update(table).values(renamed))
    make_version_5(engine)
    with pytest.raises(msgspec.ValidationError):
        book.view()
    with writing(engine) as connection:
        for table in ("bundles", "releases"):  # version 5 had no policies
            connection.execute(text(f"ALTER TABLE {table} DROP COLUMN policy"))
    prepare_tables(engine, MEMORY)  # raises the version, and leaves releases as they are
    assert version(engine) == [VERSION]
    book = ReleaseBook(engine)
    assert book.view() == view
    with writing(engine) as connection:
        assert take_observations(connection, release.id) == [twice]
    engine.dispose()


def test_a_copy_of_version_5_is_restored_in_the_present_words(tmp_path, database_url):
    with our_store(f"sqlite:///{tmp_path}/old.db") as store:
        SafetyMemory(store, str, {}, {}).store_safety_evaluation(LABELLED)
        ReleaseBook(store.engine)
    _, rows = dump_tables(f"sqlite:///{tmp_path}/old.db", tmp_path)
    items = tmp_path / "items.jsonl"
    items.write_text(in_old_words(items.read_text()))
    fill_tables(database_url, tmp_path, rows, version=5)
    with our_store(database_url) as store:
        assert SafetyMemory(store, str, {}, {}).evaluations(limit=9, label="overrefusal") == [
            LABELLED
        ]
    with pytest.raises(StorageError, match="is of version 4 of the database"):
        fill_tables(database_url, tmp_path, rows, version=4)


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
