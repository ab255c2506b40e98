"""Files and folders that are whole or not there, and disk errors that a person can act on."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from waltzrl.errors import InputError

Json: TypeAlias = "str | float | bool | Sequence[Json] | Mapping[str, Json] | None"


def write_bytes(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace the file in one step: a reader, or a crash, meets the old content or the new.

    Args:
        path: of the file; one that is there keeps its mode.
        data: its content.
        private: whether a new one is for its owner only.

    Raises:
        InputError: the folder cannot be written to, or the disk is full.
    """
    beside = path.with_name(f".{path.name}.part")
    with explained(path):
        try:
            beside.touch(mode=0o600 if private else 0o666)
            if path.exists():
                beside.chmod(path.stat().st_mode)
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        sync(path.parent)


def write_json(path: Path, value: Json) -> None:
    """Replace the file by the value as indented JSON with sorted keys; see `write_bytes`."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a hidden folder to fill, which takes the name `path`, and its place, when all is well.

    Raises:
        InputError: the folder cannot be written to, or the disk is full; nothing is left behind.
    """
    beside = path.with_name(f".{path.name}.part")
    with explained(path):
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        try:
            yield beside
            shutil.rmtree(path, ignore_errors=True)
            beside.rename(path)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until the file's content, or the folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a growing file without the last one if a crash has torn it.

    Each line keeps its line break, so that the lengths add up to where writing goes on.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an operating system's error while writing to `path` into an InputError of one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot write {path}: {reason}; free space there or choose another folder"
        ) from error
