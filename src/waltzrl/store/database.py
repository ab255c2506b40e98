"""One database for all replicas: SQLite for a single machine, PostgreSQL for several."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from waltzrl.errors import InputError, MissingExtraError, StorageError

try:
    from sqlalchemy import Connection, Row, create_engine, event, make_url
    from sqlalchemy import Engine as Engine
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.exc import (
        ArgumentError,
        DataError,
        DBAPIError,
        DisconnectionError,
        IntegrityError,
        ProgrammingError,
    )
    from sqlalchemy.exc import TimeoutError as NoConnectionError
    from sqlalchemy.pool import ConnectionPoolEntry
except ModuleNotFoundError as missing:
    raise MissingExtraError("the memory", "SQLAlchemy", "flywheel") from missing

from waltzrl.store.hashing import SQLITE_FUNCTION, hash_number

Record = TypeVar("Record")

BUSY_MILLISECONDS = 5000
"""The time that a writer of SQLite waits for another."""
KEEPALIVE = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""Parameters of libpq that drop a silent connection within seconds; otherwise a gateway would miss
a rollback for as long as it waits for a reply. Parameters in the URL take precedence."""


def open_database(url: str) -> Engine:
    """Return an engine; it connects on first use.

    Args:
        url: `sqlite:///runs/memory.db`, `postgresql://user@host/name`, or the path of a file.

    Raises:
        InputError: the URL is invalid, or names another kind of database.
        MissingExtraError: it is PostgreSQL and its driver is not installed.
    """
    try:
        address = make_url(url if "://" in url else f"sqlite:///{url}")
    except (ArgumentError, ValueError):
        shown = url.rpartition("@")[2]  # without a password
        raise InputError(
            f"{shown!r} is not a database URL; use sqlite:///runs/memory.db or "
            "postgresql://user@host/name"
        ) from None
    match address.get_backend_name():
        case "sqlite":
            # SQLAlchemy reads `sqlite://folder/file`, one slash short, as a host.
            return _open_sqlite(None if address.host else address.database)
        case "postgresql" | "postgres":
            try:
                return create_engine(
                    address.set(drivername="postgresql+psycopg"),
                    # PgBouncer may give each transaction another connection of the server, which
                    # does not know what an earlier one prepared.
                    connect_args={**KEEPALIVE, "prepare_threshold": None, **address.query},
                    # The server may have been restarted since a connection was pooled.
                    pool_pre_ping=True,
                    pool_size=4,
                    json_serializer=_to_json,
                    json_deserializer=msgspec.json.decode,
                )
            except ModuleNotFoundError as missing:
                raise MissingExtraError("PostgreSQL", "psycopg", "postgres") from missing
        case other:
            raise InputError(f"the database must be sqlite or postgresql, got {other}")


def existing_database(url: str) -> Engine:
    """Return the engine of a database that exists.

    Raises:
        InputError: the URL is invalid, or its file is missing.
    """
    engine = open_database(url)
    file = engine.url.database or ""
    if engine.dialect.name == "sqlite" and not Path(file).is_file():
        raise InputError(f"{file} does not exist; give the gateway's memory.url")
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Give a connection in a transaction that may write; an exception rolls it back.

    On SQLite it takes the write lock at once, so that what it reads stays true until it ends.

    Raises:
        StorageError: the database is unavailable.
    """
    with (
        _storage_errors(engine),
        # `_begin_transaction` reads the option; PostgreSQL needs no such thing.
        engine.connect().execution_options(writes=True) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Give a connection to read from; it waits for no writer.

    Raises:
        StorageError: the database is unavailable.
    """
    with _storage_errors(engine), engine.connect() as connection:
        yield connection


@contextmanager
def _storage_errors(engine: Engine) -> Iterator[None]:
    """Turn failures of the database into a StorageError; violated constraints pass unchanged."""
    try:
        yield
    # Faults of the statement, which callers must not retry like a failing database.
    except (DataError, IntegrityError):
        raise
    except (DBAPIError, NoConnectionError) as error:
        if isinstance(error, ProgrammingError) and error.statement is not None:
            raise  # without a statement it is of the URL
        if isinstance(error, DBAPIError):
            # After a failover a kept connection may lead to a server that no longer writes.
            engine.dispose()
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = str(cause).partition("\n")[0]
        raise StorageError(
            f"the database {engine.url.render_as_string()} failed: {reason}; check that it is up, "
            "has free space, and is not locked by another program"
        ) from error


def decode_row(row: Row[tuple[object, ...]], kind: type[Record]) -> Record:
    """Return a row as a record of some kind, whose fields with defaults it may lack.

    Raises:
        msgspec.ValidationError: it has no value of the right type for a field.
    """
    return msgspec.convert(row._mapping, kind)


def canonical_json(text: str) -> str:
    """Return one text for all texts of a value that PostgreSQL's JSONB takes for equal.

    SQLite has this as the function `waltzrl_canonical_json`.
    """
    return json.dumps(json.loads(text, parse_float=_parse_number), sort_keys=True)


def _parse_number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _open_sqlite(file: str | None) -> Engine:
    if not file or file == ":memory:":
        raise InputError("SQLite needs a file: use sqlite:///runs/memory.db")
    place = Path(file)
    engine = create_engine(
        f"sqlite:///{file}", json_serializer=_to_json, json_deserializer=msgspec.json.decode
    )
    # A listener that returns None lets SQLAlchemy connect as usual.
    event.listen(engine, "do_connect", lambda *_: _create_private_file(place))
    event.listen(engine, "connect", _configure_connection)

    def remember_file(_: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        entry.info["file"] = place.stat()

    def require_file(_: DBAPIConnection, entry: ConnectionPoolEntry, __: object) -> None:
        # A connection goes on with a file that was deleted or replaced, and what it writes is lost.
        with suppress(OSError):  # connecting again reports it
            if os.path.samestat(entry.info["file"], place.stat()):
                return
        raise DisconnectionError  # for which the pool connects again

    event.listen(engine, "connect", remember_file)
    event.listen(engine, "checkout", require_file)
    event.listen(engine, "begin", _begin_transaction)
    return engine


def _create_private_file(file: Path) -> None:
    """Create a missing file for its owner only; SQLite gives its side files the same mode."""
    with suppress(OSError):  # connecting reports the error
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)


def _begin_transaction(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    # A plain BEGIN that writes later fails at once when another writer was faster in between.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _configure_connection(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None  # SQLAlchemy's "begin" event begins transactions
    # With WAL readers wait for no writer; `NORMAL` may then lose the last commits in a power
    # failure, but never damages the file.
    for pragma in (
        f"busy_timeout={BUSY_MILLISECONDS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "secure_delete=ON",  # deleted content is overwritten with zeros
    ):
        connection.execute(f"PRAGMA {pragma}")
    connection.create_function(SQLITE_FUNCTION, 1, hash_number, deterministic=True)
    connection.create_function("waltzrl_canonical_json", 1, canonical_json, deterministic=True)
