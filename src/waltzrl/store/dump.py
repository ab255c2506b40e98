"""Copies tables to files and back, between databases of either kind.

A table is a file of JSON lines: the names of its columns, then one list of values per row, by
primary key. So what was written on SQLite can be read into PostgreSQL, and the other way round.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, zip_longest
from pathlib import Path

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    TypeDecorator,
    func,
    insert,
    select,
    text,
)

from waltzrl.errors import InputError, StorageError
from waltzrl.store.database import reading

ROWS_AT_ONCE = 500


@contextmanager
def take_snapshot(engine: Engine) -> Iterator[Connection]:
    """Give a connection that sees the database as it is now, whatever others write meanwhile.

    Raises:
        StorageError: the database is unavailable.
    """
    with reading(engine) as connection:
        if engine.dialect.name == "postgresql":  # on SQLite every transaction is one
            connection.execution_options(isolation_level="REPEATABLE READ")
        yield connection


def write_table(connection: Connection, table: Table, path: Path) -> int:
    """Write a table to a file; return the number of its rows.

    Raises:
        OSError: the file cannot be written.
    """
    count = 0
    with path.open("wb") as file:
        file.write(msgspec.json.encode([str(column.name) for column in table.columns]) + b"\n")
        for row in _read_rows(connection, table):
            file.write(msgspec.json.encode(row) + b"\n")
            count += 1
    return count


def read_table(path: Path) -> tuple[list[str], Iterator[list[object]]]:
    """Return the names of a table's columns, and its rows.

    Raises:
        InputError: the file is damaged.
        OSError: it cannot be read.
    """
    lines = _read_lines(path)
    names = next(lines, None)
    if names is None:
        raise InputError(f"{path} is empty; the backup is damaged, use another")
    return [str(name) for name in names], lines


def fill_table(connection: Connection, table: Table, path: Path) -> None:
    """Fill an empty table from a file. Columns that the file lacks get their defaults.

    Raises:
        InputError: the file is damaged, or has columns that the table lacks.
        StorageError: the database is unavailable.
    """
    plain = _strip_types(table)
    names, rows = read_table(path)
    if unknown := set(names) - set(plain.columns.keys()):
        raise InputError(
            f"{path} has the unknown columns {', '.join(sorted(unknown))}; restore it with the "
            "waltzrl that wrote it, or a newer one"
        )
    while batch := list(islice(rows, ROWS_AT_ONCE)):
        connection.execute(insert(plain), [dict(zip(names, row, strict=True)) for row in batch])
    numbered = [c for c in table.primary_key.columns if c.autoincrement is not False]
    # PostgreSQL does not count rows that bring their numbers; the next insert would repeat one.
    if connection.dialect.name == "postgresql" and len(table.primary_key.columns) == 1:
        _advance_numbers(connection, table, numbered[0])


def check_table(connection: Connection, table: Table, path: Path) -> None:
    """Compare a table with the file that it was filled from, value by value.

    Raises:
        StorageError: they differ.
    """
    names, rows = read_table(path)
    stored = _read_rows(connection, table, names)
    # zip_longest, so that a row too many or too few differs from None.
    for number, (expected, found) in enumerate(zip_longest(rows, stored), start=1):
        if expected != found:
            raise StorageError(
                f"row {number} of {table.name} is not what {path} says; nothing was restored"
            )


def is_empty(connection: Connection, table: Table) -> bool:
    """Return whether a table has no rows."""
    return connection.execute(select(func.count()).select_from(table)).scalar_one() == 0


def _read_rows(
    connection: Connection, table: Table, names: Sequence[str] | None = None
) -> Iterator[list[object]]:
    plain = _strip_types(table)
    columns = [plain.columns[name] for name in names or plain.columns.keys()]
    # A fixed order, so that `check_table` can compare row by row.
    keys = [plain.columns[column.name] for column in table.primary_key.columns]
    query = select(*columns).order_by(*keys).execution_options(yield_per=ROWS_AT_ONCE)
    for row in connection.execute(query):
        yield list(row)


def _strip_types(table: Table) -> Table:
    """Return the table with values as the database stores them, not as we decode them."""
    stored = {
        column.name: column.type.impl if isinstance(column.type, TypeDecorator) else column.type
        for column in table.columns
    }
    return Table(table.name, MetaData(), *[Column(name, kind) for name, kind in stored.items()])


def _advance_numbers(connection: Connection, table: Table, column: Column[object]) -> None:
    """Let the numbers that PostgreSQL assigns go on after the highest of the table."""
    query = text("SELECT pg_get_serial_sequence(:table, :column)")
    named = {"table": table.name, "column": column.name}
    sequence = connection.execute(query, named).scalar()
    highest = connection.execute(select(func.max(column))).scalar()
    # A key that is a text has no sequence, and an empty table has no highest number.
    if sequence is not None and isinstance(highest, int):
        connection.execute(
            text("SELECT setval(:sequence, :highest)"), {"sequence": sequence, "highest": highest}
        )


def _read_lines(path: Path) -> Iterator[list[object]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield msgspec.json.decode(line, type=list)
            except msgspec.DecodeError as error:
                raise InputError(f"{path}:{number}: {error}; the backup is damaged") from None
