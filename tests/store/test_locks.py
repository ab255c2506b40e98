"""A lock of a database has one holder, and ends with its process."""

import subprocess
import sys
from contextlib import closing

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
