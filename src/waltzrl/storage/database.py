"""One database for all that replicas share: SQLite for one machine, PostgreSQL for many."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from waltzrl.errors import InputError, MissingExtraError, StorageError

try:
    from sqlalchemy import Connection, Engine, MetaData, create_engine, event, make_url
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.exc import (
        ArgumentError,
        DataError,
        DBAPIError,
        IntegrityError,
        ProgrammingError,
    )
    from sqlalchemy.exc import TimeoutError as NoConnectionError
    from sqlalchemy.pool import ConnectionPoolEntry
except ModuleNotFoundError as missing:
    raise MissingExtraError("the memory", "SQLAlchemy", "flywheel") from missing

__all__ = [
    "BUSY_MILLISECONDS",
    "NOTICE_SILENCE",
    "TABLES",
    "Engine",
    "existing_database",
    "open_database",
    "reading",
    "writing",
]

TABLES = MetaData()
"""Every room that keeps something there defines its tables here."""
BUSY_MILLISECONDS = 5000
"""How long one writer of SQLite waits for another."""
NOTICE_SILENCE = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""libpq's parameters: a PostgreSQL that vanished without a word is given up after some seconds, for
a gateway that waits for it hears of no rollback. What the address says itself counts more."""


def open_database(url: str) -> Engine:
    """Return an engine; nothing is asked of the database yet.

    Args:
        url: `sqlite:///runs/memory.db`, `postgresql://user@host/name`, or a file's path.

    Raises:
        InputError: the URL is none, or names another kind of database.
        MissingExtraError: it is PostgreSQL and its driver is missing.
    """
    try:
        address = make_url(url if "://" in url else f"sqlite:///{url}")
    except ArgumentError:
        raise InputError(
            f"{url!r} is no address of a database; say sqlite:///runs/memory.db or "
            "postgresql://user@host/name"
        ) from None
    match address.get_backend_name():
        case "sqlite":
            return _sqlite(None if address.host else address.database)  # sqlite://folder/file
        case "postgresql" | "postgres":
            try:
                return create_engine(
                    address.set(drivername="postgresql+psycopg"),
                    connect_args={**NOTICE_SILENCE, **address.query},
                    pool_pre_ping=True,
                    pool_size=4,
                    json_serializer=_to_json,
                    json_deserializer=msgspec.json.decode,
                )
            except ModuleNotFoundError as missing:
                raise MissingExtraError("PostgreSQL", "psycopg", "postgres") from missing
        case other:
            raise InputError(f"the memory runs on sqlite or postgresql, not {other}")


def existing_database(url: str) -> Engine:
    """Return the engine of a database that a gateway made; none is made here.

    Raises:
        InputError: the URL is none, or its file is not there.
    """
    engine = open_database(url)
    file = engine.url.database or ""
    if engine.dialect.name == "sqlite" and not Path(file).is_file():
        raise InputError(f"{file} is not there; give the gateway's memory.url")
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Give a connection in a transaction that may write, and that is whole or never happened.

    On SQLite it takes the writer's turn at once, so that what it reads stays true until it ends.

    Raises:
        StorageError: the database does not take it.
    """
    with (
        _answering(engine),
        engine.connect().execution_options(writes=True) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Give a connection to read by; it waits for no writer.

    Raises:
        StorageError: the database does not answer.
    """
    with _answering(engine), engine.connect() as connection:
        yield connection


@contextmanager
def _answering(engine: Engine) -> Iterator[None]:
    """Say in our words that a database failed; what it refuses by its rules passes unchanged."""
    try:
        yield
    except (DataError, IntegrityError, ProgrammingError):
        raise
    except (DBAPIError, NoConnectionError) as failed:
        cause = failed.orig if isinstance(failed, DBAPIError) else failed
        reason = str(cause).partition("\n")[0]
        raise StorageError(
            f"the database {engine.url.render_as_string()} failed: {reason}; see that it is up, "
            "has room, and that no other program keeps it locked"
        ) from failed


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _sqlite(file: str | None) -> Engine:
    if not file or file == ":memory:":
        raise InputError("the memory needs a file: say sqlite:///runs/memory.db")
    engine = create_engine(
        f"sqlite:///{file}", json_serializer=_to_json, json_deserializer=msgspec.json.decode
    )
    event.listen(engine, "do_connect", lambda *_: _make_private(Path(file)))
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def _make_private(file: Path) -> None:
    """Make the file for its owner only, unless it is there; those beside it have its mode."""
    with suppress(OSError):  # whoever connects is told
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _set_up(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None  # SQLAlchemy's "begin" event begins transactions
    for pragma in (
        f"busy_timeout={BUSY_MILLISECONDS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "secure_delete=ON",  # what is deleted is overwritten
    ):
        connection.execute(f"PRAGMA {pragma}")
