"""Published tables as rows of text: csv, tsv, json (a list of objects) and jsonl."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from waltzrl.errors import InputError
from waltzrl.foundation.jsonl import read_json, read_objects, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row; column names ignore case, and empty cells are empty texts."""

    cells: Mapping[str, str]
    """Lower-case column name to text."""
    where: str
    """File and line, for errors."""

    def __getitem__(self, column: str) -> str:
        """Return the cell.

        Raises:
            InputError: there is no such column.
        """
        return self.first(column)

    def first(self, *columns: str) -> str:
        """Return the first of these cells that is not blank, or an empty text.

        Raises:
            InputError: none of the columns exists.
        """
        known = [column.lower() for column in columns if column.lower() in self.cells]
        if not known:
            needed = " or ".join(repr(column) for column in columns)
            raise InputError(f"{self.where}: no column {needed}; it has {', '.join(self.cells)}")
        return next((cell for name in known if (cell := self.cells[name].strip())), "")


def read_rows(path: Path, columns: tuple[str, ...] = ()) -> Iterator[TableRow]:
    """Read a table, by the ending of its name.

    Args:
        path: the file as its authors publish it.
        columns: names of a csv's columns when the file has no header line.

    Raises:
        InputError: the file cannot be read, or its ending is not one of ours.
    """
    match path.suffix.lower():
        case ".csv":
            return _read_delimited(path, ",", columns)
        case ".tsv":
            return _read_delimited(path, "\t", columns)
        case ".jsonl":
            return (_make_row(fields, f"{path}:{line}") for line, fields in read_objects(path))
        case ".json":
            return _json_list(path)
        case ending:
            raise InputError(
                f"{path}: cannot read {ending or 'a file without ending'}; "
                "need .csv, .tsv, .json or .jsonl (convert parquet to .jsonl first)"
            )


def _read_delimited(path: Path, delimiter: str, columns: tuple[str, ...]) -> Iterator[TableRow]:
    # csv needs line ends as they are, because a quoted cell may hold some.
    text = io.StringIO(read_text(path), newline="")
    csv.field_size_limit(sys.maxsize)  # of the whole process; a cell may be a long document
    lines = csv.reader(text, delimiter=delimiter, strict=True)
    header = [column.lower() for column in columns]
    begins = 1
    try:
        for cells in lines:
            where = f"{path}:{begins}"
            # A quoted cell may span lines: the number of the row is not that of its line.
            begins = lines.line_num + 1
            if not header:
                header = [name.strip().lower() for name in cells]
            elif cells:
                if len(cells) != len(header):
                    raise InputError(f"{where}: {len(cells)} columns, need {len(header)}")
                yield TableRow(cells=dict(zip(header, cells, strict=True)), where=where)
    except csv.Error as error:
        raise InputError(f"{path}:{begins}: not a readable table: {error}") from None


def _json_list(path: Path) -> Iterator[TableRow]:
    items = read_json(read_text(path), str(path))
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InputError(f"{path}: need a JSON list of objects")
    for number, item in enumerate(items, start=1):
        yield _make_row(item, f"{path}: item {number}")


def _make_row(fields: Mapping[str, object], where: str) -> TableRow:
    return TableRow(
        cells={name.lower(): _render_cell(value) for name, value in fields.items()}, where=where
    )


def _render_cell(value: object) -> str:
    """Write a JSON value as a cell; an object of flags becomes the names of those that are set."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(name for name, flag in value.items() if flag is True)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
