"""A lock of a database has one holder, and ends with its process."""

import subprocess
import sys
from contextlib import ExitStack, closing

import pytest
from sqlalchemy import text

from support.timing import wait_until
from waltzrl.store.database import open_database, reading
from waltzrl.store.locks import try_lock

HOLDER = """
import sys, time
from waltzrl.store.database import open_database
from waltzrl.store.locks import try_lock
with try_lock(open_database(sys.argv[1]), "x") as held:
    print(held, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def engine(database_url):
    engine = open_database(database_url)
    yield engine
    engine.dispose()


def is_free(engine):
    with try_lock(engine, "x") as held:
        return held


def test_one_holder_at_a_time(engine, tmp_path):
    for _ in range(2):
        with try_lock(engine, "x") as held, try_lock(engine, "y") as other:
            assert (held, other) == (True, True)
            assert not is_free(engine)
    with pytest.raises(ValueError, match="mine"), try_lock(engine, "x"):
        raise ValueError("mine")
    assert is_free(engine)
    assert list(tmp_path.glob("*.lock")) == []


@pytest.mark.promise("Routed tasks", "The lock of a plan ends with its process")
def test_the_lock_of_a_process_that_is_killed_is_free(engine, database_url):
    command = [sys.executable, "-c", HOLDER, database_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        with closing(process.stdout) as output:
            assert output.readline() == b"True\n"
        assert not is_free(engine)
        process.kill()
    wait_until(lambda: is_free(engine))


def test_a_pooler_of_transactions_keeps_the_connection_of_a_lock(postgres_url):
    engine = open_database(postgres_url)
    with try_lock(engine, "x"), reading(engine) as connection:
        query = """SELECT state FROM pg_stat_activity JOIN pg_locks USING (pid)
            WHERE locktype = 'advisory' AND datname = current_database()"""
        states = connection.execute(text(query)).scalars().all()
    assert states == ["idle in transaction"]
    engine.dispose()


def test_more_locks_are_held_than_the_pool_has_connections(postgres_url):
    engine = open_database(postgres_url)
    with ExitStack() as stack:
        assert all(stack.enter_context(try_lock(engine, str(number))) for number in range(20))
        assert is_free(engine)
    engine.dispose()


def fail_without_connections(engine):
    query = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()"""
    with reading(engine) as connection:
        assert connection.execute(text(query)).scalars().all() == [True]
    raise ValueError("mine")


def test_a_lock_whose_connection_the_server_ends_hides_no_error(postgres_url):
    engine = open_database(postgres_url)
    with pytest.raises(ValueError, match="mine"), try_lock(engine, "x"):
        fail_without_connections(engine)
    assert is_free(engine)
    engine.dispose()
