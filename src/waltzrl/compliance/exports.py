"""Files of `waltzrl.collector.export`, without the rows of one subject."""

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
    """Yield the rows of a file.

    Raises:
        InputError: the file is damaged.
        MissingExtraError: it is Parquet, and pyarrow is missing.
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
    """Rewrite a file without the rows of a subject, when it has any.

    Args:
        path: of the file.
        digest: of the subject; never empty.

    Returns:
        How many rows were dropped.

    Raises:
        InputError: the file is damaged or cannot be written; it stays as it is.
        MissingExtraError: it is Parquet, and pyarrow is missing.
    """
    assert digest, "rows of nobody stay"
    dropped = sum(row.get("subject") == digest for row in read_rows(path))
    if dropped:
        write_bytes(path, _without(path, digest))
    return dropped


def _without(path: Path, digest: str) -> bytes:
    if path.suffix == ".parquet":
        return _parquet_without(path, digest)
    kept = [json.dumps(row) for row in read_rows(path) if row.get("subject") != digest]
    if path.suffix == ".json":
        return "[\n{}\n]\n".format(",\n".join(kept)).encode()
    return "".join(f"{row}\n" for row in kept).encode()


def _array(path: Path) -> Iterator[ExportRow]:
    rows = read_json(read_text(path), str(path))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: need a JSON array of objects; it is none of our exports")
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
        raise InputError(f"{path}: no Parquet ({error}); restore it or delete it") from None


def _parquet_without(path: Path, digest: str) -> bytes:
    from pyarrow import parquet

    table = _parquet(path)
    stays = [row != digest for row in table.column("subject").to_pylist()]
    file = io.BytesIO()
    parquet.write_table(table.filter(stays), file)
    return file.getvalue()
