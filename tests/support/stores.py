"""The stores that must agree: ours on both databases, and LangGraph's own as oracles."""

import sqlite3
from contextlib import contextmanager

from langgraph.store import base as langgraph
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore

from waltzrl.store.database import open_database
from waltzrl.store.memory import items as ours
from waltzrl.store.memory.store import MemoryStore
from waltzrl_integrations.langgraph import as_base_store

OURS = ("sqlite", "postgres")
ORACLES = ("langgraph-memory", "langgraph-sqlite", "langgraph-postgres")


@contextmanager
def our_store(url, scrub=str):
    engine = open_database(url)
    yield MemoryStore(engine, scrub=scrub)
    engine.dispose()


@contextmanager
def opened(name, request):
    """Open a store on a database of its own."""
    match name:
        case "sqlite" | "postgres":
            with our_store(request.getfixturevalue(f"{name}_url")) as store:
                yield store
        case "langgraph-memory":
            yield InMemoryStore()
        case "langgraph-sqlite":
            file = request.getfixturevalue("tmp_path") / "langgraph.db"
            connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
            store = SqliteStore(connection)
            store.setup()
            yield store
            connection.close()
        case "langgraph-postgres":
            url = request.getfixturevalue("postgres_url")
            with PostgresStore.from_conn_string(url, ttl={"omit_expired": True}) as store:
                store.setup()
                yield store
        case "as-base-store":
            with our_store(request.getfixturevalue("sqlite_url")) as store:
                yield as_base_store(store)


def op_classes(store):
    """Return the GetOp and the PutOp that a store's `batch` takes."""
    module = langgraph if isinstance(store, langgraph.BaseStore) else ours
    return module.GetOp, module.PutOp
