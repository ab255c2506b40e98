import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from waltzrl.errors import StorageError
from waltzrl.store.database import open_database
from waltzrl.store.memory.erasure import (
    compact_files,
    erase_subject,
    find_remembered,
    find_remembered_of_others,
    list_exports,
    note_export,
)
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.notices import notices_after

RARE = "qxylophonist"


@pytest.fixture
def store(database_url):
    engine = open_database(database_url)
    yield MemoryStore(engine, scrub=lambda text: text)
    engine.dispose()


@pytest.fixture
def sqlite_store(sqlite_url):
    engine = open_database(sqlite_url)
    yield MemoryStore(engine, scrub=lambda text: text)
    engine.dispose()


def fill(store):
    for number in range(3):
        for who, word in (("ada", RARE), ("bob", "pianist")):
            value = {"subject": who, "text": f"A {word} plays, {number} times."}
            store.put(("notes", who), str(number), value)
    store.put(("notes",), "nobody", {"text": "Nobody plays."})


def count(store, table):
    with store.engine.connect() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar()


def bytes_of(store):
    path = Path(store.engine.url.database)
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


def test_a_subject_is_erased_from_every_namespace(store):
    fill(store)
    store.put(("other",), "n", {"subject": "ada", "text": "once more"})
    assert erase_subject(store.engine, "ada") == {"notes.ada": 3, "other": 1}
    assert count(store, "items") == 4
    assert store.search((), query=RARE) == []
    assert len(store.search((), query="pianist")) == 3
    assert erase_subject(store.engine, "ada") == {}


def test_an_erasure_tells_how_much_it_was_and_where(store):
    fill(store)
    erase_subject(store.engine, "ada", {"exports": 7})
    (notice,) = notices_after(store.engine, 0)
    assert (notice.kind, notice.body) == ("erasure", {"subject": "ada", "memory": 3, "exports": 7})


def test_nobody_is_no_subject(store):
    fill(store)
    with pytest.raises(AssertionError):
        erase_subject(store.engine, "")
    assert count(store, "items") == 7


def test_what_is_remembered_is_either_the_subjects_or_others(store):
    fill(store)
    hers, theirs = (
        list(of(store.engine, "ada")) for of in (find_remembered, find_remembered_of_others)
    )
    assert {one.namespace for one in hers} == {"notes.ada"}
    assert {one.namespace for one in theirs} == {"notes.bob", "notes"}
    assert (len(hers), len(theirs)) == (3, 4)


def test_compacting_leaves_nothing_of_deleted_rows_in_the_files(sqlite_store):
    fill(sqlite_store)
    path = sqlite_store.engine.url.database
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("DELETE FROM items WHERE subject = 'ada'")
    connection.close()
    assert RARE.encode() in bytes_of(sqlite_store)
    compact_files(sqlite_store.engine)
    assert RARE.encode() not in bytes_of(sqlite_store)
    assert b"pianist" in bytes_of(sqlite_store)
    assert [item.key for item in sqlite_store.search((), query="pianist")] == ["2", "1", "0"]


def test_the_words_of_a_search_are_erased_too(sqlite_store):
    fill(sqlite_store)
    with sqlite_store.engine.connect() as connection:
        kept = "SELECT block FROM item_words_data"
        assert RARE.encode() in b"".join(connection.execute(text(kept)).scalars())
    erase_subject(sqlite_store.engine, "ada")
    compact_files(sqlite_store.engine)
    assert RARE.encode() not in bytes_of(sqlite_store)


def test_a_reader_who_does_not_end_is_told_of(sqlite_store):
    fill(sqlite_store)
    reader = sqlite3.connect(sqlite_store.engine.url.database, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM items").fetchone()
    erase_subject(sqlite_store.engine, "ada")
    borrowed = sqlite_store.engine.raw_connection()
    borrowed.driver_connection.execute("PRAGMA busy_timeout = 1")
    borrowed.close()
    with pytest.raises(StorageError, match=r"could not be compacted: .*run this again"):
        compact_files(sqlite_store.engine)
    reader.execute("ROLLBACK")
    reader.close()
    compact_files(sqlite_store.engine)
    assert RARE.encode() not in bytes_of(sqlite_store)


def test_files_with_what_was_remembered_are_noted_once_each(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path("a.jsonl"), tmp_path / "b.json", tmp_path / "a.jsonl"):
        note_export(store.engine, path)
    assert list_exports(store.engine) == [tmp_path / "b.json", tmp_path / "a.jsonl"]
