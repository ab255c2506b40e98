"""Sites of two people, on SQLite and on PostgreSQL."""

from contextlib import contextmanager

import pytest

from support.small_erasures import Site
from waltzrl.store.database import open_database


@contextmanager
def opened(folder, url):
    engine = open_database(url)
    yield Site(folder, url, folder / "log", engine)
    engine.dispose()


@pytest.fixture
def site(tmp_path, database_url):
    with opened(tmp_path, database_url) as site:
        yield site


@pytest.fixture
def sqlite_site(tmp_path, sqlite_url):
    with opened(tmp_path, sqlite_url) as site:
        yield site


@pytest.fixture
def postgres_site(tmp_path, postgres_url):
    with opened(tmp_path, postgres_url) as site:
        yield site
