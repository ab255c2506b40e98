"""Reads the files of `waltzrl.collector.export`, and drops the rows of one subject."""

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from waltzrl.data.jsonl import read_json, read_objects, read_text
from waltzrl.errors import InputError, MissingExtraError
from waltzrl.telemetry.files import write_bytes

if TYPE_CHECKING:
    import pyarrow

ExportRow = Mapping[str, object]


def read_rows(path: Path) -> Iterator[ExportRow]:
    """Yield the rows of an export.

    Raises:
        InputError: the file is damaged.
        MissingExtraError: the file is Parquet, and pyarrow is missing.
    """
    match path.suffix:
        case ".json":
            yield from _array(path)
        case ".parquet":
            for batch in _parquet(path).to_batches():
                yield from batch.to_pylist()
        case _:
            for _, row in read_objects(path):
                yield row


def drop_rows(path: Path, digest: str) -> int:
    """Rewrite an export without the rows of a subject, if it has any.

    Args:
        path: of the export.
        digest: of the subject; never empty.

    Returns:
        The number of dropped rows.

    Raises:
        InputError: the file is damaged or cannot be written; it stays unchanged.
        MissingExtraError: the file is Parquet, and pyarrow is missing.
    """
    assert digest, "an empty digest would match rows without a subject"
    dropped = sum(row.get("subject") == digest for row in read_rows(path))
    if dropped:
        write_bytes(path, _without(path, digest))
    return dropped


def _without(path: Path, digest: str) -> bytes:
    if path.suffix == ".parquet":
        return _parquet_without(path, digest)
    remaining = [json.dumps(row) for row in read_rows(path) if row.get("subject") != digest]
    if path.suffix == ".json":
        return "[\n{}\n]\n".format(",\n".join(remaining)).encode()
    return "".join(f"{row}\n" for row in remaining).encode()


def _array(path: Path) -> Iterator[ExportRow]:
    rows = read_json(read_text(path), str(path))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: not one of our exports; need a JSON array of objects")
    yield from rows


def _parquet(path: Path) -> "pyarrow.Table":
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as missing:
        raise MissingExtraError("Parquet", "pyarrow", "parquet") from missing
    try:
        return parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(
            f"{path}: not valid Parquet ({error}); restore or delete the file"
        ) from None


def _parquet_without(path: Path, digest: str) -> bytes:
    from pyarrow import parquet

    table = _parquet(path)
    keep = [subject != digest for subject in table.column("subject").to_pylist()]
    file = io.BytesIO()
    parquet.write_table(table.filter(keep), file)
    return file.getvalue()
