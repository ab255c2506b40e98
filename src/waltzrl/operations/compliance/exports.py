"""Reads the files of `waltzrl.evaluation.collecting.export`, and drops the rows of one subject."""

import io
import json
from collections.abc import Collection, Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

from waltzrl.errors import InputError, MissingExtraError
from waltzrl.foundation.files import write_bytes
from waltzrl.foundation.jsonl import read_json, read_objects, read_text

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
            yield from _read_array(path)
        case ".parquet":
            for batch in _read_parquet(path).to_batches():
                yield from batch.to_pylist()
        case _:
            for _, row in read_objects(path):
                yield row


def is_of(row: ExportRow, digest: str, requests: Collection[str]) -> bool:
    """Return whether a row is a subject's, or of a choice of one of the requests."""
    of_subject = bool(digest) and row.get("subject") == digest
    return of_subject or exchange_of(row).partition("/")[0] in requests


def exchange_of(record: ExportRow) -> str:
    """Return the id of the exchange of which a row, or a remembered record, was made."""
    names = ("interaction", "coaching_session_id", "id")
    return next((str(record[name]) for name in names if record.get(name)), "")


def drop_rows(path: Path, digest: str, requests: Collection[str] = frozenset()) -> int:
    """Rewrite an export without the rows of a subject, if it has any.

    Args:
        path: of the export.
        digest: of the subject; may be empty if there are requests.
        requests: ids of requests whose rows are dropped too.

    Returns:
        The number of dropped rows.

    Raises:
        InputError: the file is damaged or cannot be written; it stays unchanged.
        MissingExtraError: the file is Parquet, and pyarrow is missing.
    """
    assert digest or requests, "an empty digest would match rows without a subject"
    # The whole file is read first: a damaged one stays as it is.
    kept = [not is_of(row, digest, requests) for row in read_rows(path)]
    if not all(kept):
        write_bytes(path, _keep_rows(path, kept))
    return kept.count(False)


def _keep_rows(path: Path, kept: list[bool]) -> bytes:
    if path.suffix == ".parquet":
        return _keep_parquet_rows(path, kept)
    remaining = [json.dumps(row) for row in compress(read_rows(path), kept)]
    if path.suffix == ".json":
        return "[\n{}\n]\n".format(",\n".join(remaining)).encode()
    return "".join(f"{row}\n" for row in remaining).encode()


def _read_array(path: Path) -> Iterator[ExportRow]:
    rows = read_json(read_text(path), str(path))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: not one of our exports; need a JSON array of objects")
    yield from rows


def _read_parquet(path: Path) -> "pyarrow.Table":
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


def _keep_parquet_rows(path: Path, kept: list[bool]) -> bytes:
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(_read_parquet(path).filter(kept), file)
    return file.getvalue()
