"""Brings a database to the form that this version of the code works with.

Every room's tables are created as they are now, unless they are there. What a table cannot say, and
what changed since, is an ordered list of steps; the table `schema_version` knows how many were
taken. All of it is one transaction, which only one process has at a time.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    Table,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine.interfaces import ReflectedColumn

from waltzrl.errors import StorageError
from waltzrl.storage.database import TABLES, writing

SCHEMA = Table("schema_version", TABLES, Column("version", Integer, nullable=False))
"""One row: how far the migrations have come."""
LOCK = 0x57414C545A
"""PostgreSQL's advisory lock of whoever migrates."""


def _index_words(connection: Connection) -> None:
    """Version 2: full text. On SQLite triggers keep it in step, whoever writes to the items."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            "CREATE INDEX items_words ON items USING gin (to_tsvector('simple'::regconfig, words))"
        )
        return
    added = "INSERT INTO item_words (rowid, words) VALUES (new.id, new.words);"
    removed = (
        "INSERT INTO item_words (item_words, rowid, words) VALUES ('delete', old.id, old.words);"
    )
    for statement in (
        "CREATE VIRTUAL TABLE item_words USING fts5 (words, content='items', content_rowid='id', "
        "tokenize='unicode61 remove_diacritics 0')",
        f"CREATE TRIGGER items_added AFTER INSERT ON items BEGIN {added} END",
        f"CREATE TRIGGER items_removed AFTER DELETE ON items BEGIN {removed} END",
        "CREATE TRIGGER items_reworded AFTER UPDATE OF words ON items WHEN old.words <> new.words "
        f"BEGIN {removed} {added} END",
        "INSERT INTO item_words (item_words) VALUES ('rebuild')",
    ):
        connection.exec_driver_sql(statement)


def _drop_vectors(connection: Connection) -> None:
    """Version 3: on SQLite, which enforces no foreign keys, a trigger ends an item's vector."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(
            "CREATE TRIGGER items_unembedded AFTER DELETE ON items "
            "BEGIN DELETE FROM item_vectors WHERE item = old.id; END"
        )


def _forget_counted(connection: Connection) -> None:
    """Version 4: observations of releases wait to be counted, and are kept no longer."""
    if "counted" not in {column["name"] for column in _columns(connection, "observations")}:
        return
    for statement in (
        "DROP INDEX uncounted_observations",
        "DELETE FROM observations WHERE counted",
        "ALTER TABLE observations DROP COLUMN counted",
    ):
        connection.exec_driver_sql(statement)


def _columns(connection: Connection, table: str) -> Sequence[ReflectedColumn]:
    found = inspect(connection)
    return found.get_columns(table) if found.has_table(table) else ()


STEPS: tuple[Callable[[Connection], None], ...] = (_index_words, _drop_vectors, _forget_counted)
"""Step i leads from version i + 1, which the tables alone are, to version i + 2."""
LATEST = len(STEPS) + 1


def prepare(engine: Engine) -> None:
    """Create the tables of all rooms that were imported, and take the steps that are left.

    Raises:
        StorageError: the database cannot be reached, or a newer version of waltzrl has changed it.
    """
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        TABLES.create_all(connection)
        version = connection.execute(select(SCHEMA.c.version)).scalar()
        if version is None:
            version = 1
            connection.execute(insert(SCHEMA).values(version=version))
        if version > LATEST:
            raise StorageError(
                f"{engine.url.render_as_string()} has version {version}, and this waltzrl knows "
                f"versions up to {LATEST}; install the newer waltzrl that it was used with"
            )
        for step in STEPS[version - 1 :]:
            step(connection)
        if version < LATEST:
            connection.execute(update(SCHEMA).values(version=LATEST))
