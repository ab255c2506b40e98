"""A store for each test, on a database of its own."""

import pytest

from support.stores import ORACLES, OURS, opened


@pytest.fixture(params=[*OURS, "as-base-store", *ORACLES])
def any_store(request):
    """Run the test on our stores and on LangGraph's."""
    with opened(request.param, request) as store:
        yield store


@pytest.fixture(params=OURS)
def store(request):
    """Run the test on ours, on SQLite and on PostgreSQL."""
    with opened(request.param, request) as store:
        yield store
