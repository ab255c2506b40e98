"""Locks that one holder at a time has, and that end with the process that holds them."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from waltzrl.store.database import reading


@contextmanager
def try_lock(engine: Engine, name: str) -> Iterator[bool]:
    """Try to hold a lock of a database for the duration of the block; wait for nobody.

    On SQLite it is an flock on a file beside the database, on PostgreSQL an advisory lock of a
    transaction. Both are released when the process ends, even if it is killed.

    Args:
        engine: of the database.
        name: of the lock.

    Yields:
        Whether it is held; False while anybody else holds it, in this process too.

    Raises:
        StorageError: the database is unavailable.
    """
    digest = sha256(name.encode("utf-8", "surrogatepass"))
    if engine.dialect.name == "postgresql":
        # The keys of advisory locks are signed 64-bit integers.
        key = {"key": int.from_bytes(digest.digest()[:8], signed=True)}
        with reading(engine) as connection:
            connection.detach()  # the pool has few, and locks are held for long
            # A lock of the transaction, which ends with the block: in PgBouncer's transaction mode
            # one of the session would stay on a server's connection that others use too.
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            query = text("SELECT pg_try_advisory_xact_lock(:key)")
            held = connection.execute(query, key).scalar()
            try:
                yield held is True
            finally:
                with suppress(DBAPIError):  # the server may have ended the connection
                    connection.rollback()
        return
    path = Path(f"{engine.url.database}.{digest.hexdigest()[:16]}.lock")
    descriptor = _try_lock_file(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            # Deleted while it is locked: after the close, another could hold the file that is
            # deleted.
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _try_lock_file(path: Path) -> int | None:
    """Return the descriptor of a locked file; None if somebody else has locked it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder deletes the file; a lock on a deleted file would exclude nobody.
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:  # its last holder has just deleted it
            pass
        os.close(descriptor)
