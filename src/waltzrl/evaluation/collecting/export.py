"""Writes samples, prompts and demonstrations to files, completely or not at all.

The files are JSON, JSON Lines or Parquet. Each row has the digest of its user at the top, as
`subject`, so that a user's rows can be erased.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import inspect

from waltzrl.errors import InputError, MissingExtraError
from waltzrl.evaluation.collecting.demonstrations import DemonstrationRow
from waltzrl.evaluation.collecting.selection import PromptRow
from waltzrl.foundation.files import write_bytes
from waltzrl.store.memory.schemas import TrainingSample

if TYPE_CHECKING:
    import pyarrow

Row: TypeAlias = TrainingSample | PromptRow | DemonstrationRow

_ARROW_NAMES = {inspect.IntType: "int64", inspect.FloatType: "double", inspect.BoolType: "bool"}


def export(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows, replacing any file; only its owner may read a new file.

    Args:
        path: ends in .json, .jsonl or .parquet.
        rows: at least one, all of one kind.

    Raises:
        InputError: the name has another ending, or the file cannot be written.
        MissingExtraError: it is Parquet, and pyarrow is not installed.
    """
    match require_format(path):
        case ".json":
            data = b"[\n" + b",\n".join(map(msgspec.json.encode, rows)) + b"\n]\n"
        case ".jsonl":
            data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        case _:
            data = _encode_parquet(rows)
    write_bytes(path, data, private=True)


def require_format(path: Path) -> str:
    """Return the ending of an export.

    Raises:
        InputError: it is not supported.
    """
    if path.suffix not in (".json", ".jsonl", ".parquet"):
        raise InputError(f"{path}: use a name that ends in .json, .jsonl or .parquet")
    return path.suffix


def _encode_parquet(rows: Sequence[Row]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as missing:
        raise MissingExtraError("Parquet", "pyarrow", "parquet") from missing
    schema = pyarrow.schema(_list_columns(inspect.type_info(type(rows[0]))))
    table = pyarrow.Table.from_pylist([msgspec.to_builtins(row) for row in rows], schema)
    file = BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def _list_columns(kind: inspect.Type) -> list[tuple[str, "pyarrow.DataType"]]:
    assert isinstance(kind, inspect.StructType | inspect.DataclassType)
    return [(field.encode_name, _find_column_type(field.type)) for field in kind.fields]


def _find_column_type(kind: inspect.Type) -> "pyarrow.DataType":
    """Return the column type of a field; every column may be null."""
    import pyarrow

    match kind:
        case inspect.UnionType(types=types):
            (not_none,) = (kind for kind in types if not isinstance(kind, inspect.NoneType))
            return _find_column_type(not_none)
        case inspect.VarTupleType(item_type=item):
            return pyarrow.list_(_find_column_type(item))
        case inspect.StructType() | inspect.DataclassType():
            return pyarrow.struct(_list_columns(kind))
        case _:
            # A Literal is a text here.
            return pyarrow.type_for_alias(_ARROW_NAMES.get(type(kind), "string"))
