"""Databases that are locked, broken, down, or came back."""

import socket

import psycopg
import pytest
from sqlalchemy import text

from support.stores import our_store
from waltzrl.errors import InputError, StorageError
from waltzrl.store.database import KEEPALIVE, open_database, writing
from waltzrl.store.memory.store import MemoryStore


def test_a_locked_database_says_so(sqlite_url):
    with our_store(sqlite_url) as store:
        hasty = open_database(sqlite_url)
        with hasty.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout=10")
        with writing(store.engine):
            with pytest.raises(StorageError, match=r"memory\.db.*locked"), writing(hasty):
                pass
            assert store.get(("a",), "b") is None
        hasty.dispose()


def test_a_file_that_is_no_database_says_so(tmp_path):
    file = tmp_path / "memory.db"
    file.write_bytes(b"not a database, but long enough to be looked at" * 50)
    with pytest.raises(StorageError, match="not a database"):
        MemoryStore(open_database(f"sqlite:///{file}"), scrub=str)


def test_a_server_that_is_down_is_named_without_its_password():
    engine = open_database("postgresql://waltz:hunter2@127.0.0.1:1/memory")
    with pytest.raises(StorageError, match="127") as raised:
        MemoryStore(engine, scrub=str)
    assert "hunter2" not in str(raised.value)


def test_a_server_that_says_nothing_at_all_is_given_up_after_seconds():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://waltz@127.0.0.1:{silent.getsockname()[1]}/memory"
        engine = open_database(f"{address}?connect_timeout=2")
        with pytest.raises(StorageError, match="timeout"):
            MemoryStore(engine, scrub=str)


def test_every_connection_has_keepalives(postgres_url):
    with our_store(postgres_url) as store, store.engine.connect() as connection:
        found = connection.connection.driver_connection.info.get_parameters()
    assert KEEPALIVE.items() <= found.items()


def test_connections_that_a_server_closed_are_replaced(postgres_url):
    with our_store(postgres_url) as store:
        store.put(("a",), "b", {})
        closing = text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        other = open_database(postgres_url)
        with other.connect() as connection:
            connection.execute(closing)
        other.dispose()
        assert store.get(("a",), "b") is not None


def test_connections_of_a_time_when_nothing_could_be_written_are_replaced(postgres_url):
    with our_store(postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        store.engine.dispose()
        with pytest.raises(StorageError, match="read-only transaction"):
            store.put(("a",), "b", {})
        admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        store.put(("a",), "b", {})
        assert store.get(("a",), "b") is not None


def test_connections_to_a_file_that_was_deleted_or_replaced_are_replaced(tmp_path):
    place, kept = tmp_path / "memory.db", tmp_path / "kept"
    with our_store(f"sqlite:///{place}") as store:
        store.put(("a",), "b", {})
        store.engine.dispose()
        kept.write_bytes(place.read_bytes())
        store.put(("a",), "lost", {})
        for file in (place, *tmp_path.glob("memory.db-*")):
            file.unlink()
        with pytest.raises(StorageError, match="no such table"):
            store.put(("a",), "c", {})
        kept.replace(place)
        store.put(("a",), "c", {})
    with our_store(f"sqlite:///{place}") as store:
        assert {item.key for item in store.search(("a",))} == {"b", "c"}


def test_a_memory_whose_folder_cannot_be_read_is_unavailable(tmp_path):
    folder = tmp_path / "runs"
    with our_store(f"sqlite:///{folder}/memory.db") as store:
        store.put(("a",), "b", {})
        folder.rename(tmp_path / "moved")
        folder.touch()
        with pytest.raises(StorageError, match="unable to open"):
            store.put(("a",), "c", {})


@pytest.mark.promise("Legal duties", "GDPR 32: security")
def test_the_files_of_a_memory_are_their_owners_only(tmp_path):
    store = MemoryStore(open_database(f"sqlite:///{tmp_path}/memory.db"), scrub=str)
    store.put(("a",), "b", {})
    files = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert files == dict.fromkeys(("memory.db", "memory.db-wal", "memory.db-shm"), 0o600)
    store.engine.dispose()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite://runs/memory.db", "use sqlite:///"),
        ("mysql://host/name", "sqlite or postgresql, got mysql"),
        ("://", "not a database URL"),
        ("postgresql://host:port/name", "'postgresql://host:port/name' is not a database URL"),
        ("postgresql://waltz:hunter2@host:port/name", "'host:port/name' is not a database URL"),
    ],
)
def test_what_is_no_database_of_ours_is_refused_with_a_reason(url, said):
    with pytest.raises(InputError, match=said) as raised:
        open_database(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("parameter", ["schema=public", "connect_timeout=soon"])
def test_a_parameter_that_is_none_of_the_drivers_is_named(parameter):
    engine = open_database(f"postgresql://waltz@127.0.0.1:1/memory?{parameter}")
    with pytest.raises(StorageError, match=parameter.partition("=")[0]):
        MemoryStore(engine, scrub=str)


def test_postgresql_goes_by_its_short_name_too():
    assert open_database("postgres://u@h/n").url == open_database("postgresql://u@h/n").url


def test_no_connection_knows_statements_that_another_prepared(postgres_url):
    engine = open_database(postgres_url)
    with writing(engine) as connection:
        for number in range(20):
            connection.execute(text("SELECT CAST(:number AS integer)"), {"number": number})
        prepared = connection.execute(text("SELECT count(*) FROM pg_prepared_statements"))
        assert prepared.scalar() == 0
    engine.dispose()
