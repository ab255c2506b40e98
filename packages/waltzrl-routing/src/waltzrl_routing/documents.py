"""TOML and JSON documents of tasks, agents and plans: one version, one kind of error."""

import tomllib
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from waltzrl.errors import InputError
from waltzrl.foundation.jsonl import read_json, read_text

VERSION = 1
"""The version of every document; one of another version is refused."""


class Document(Protocol):
    @property
    def version(self) -> int: ...


Read = TypeVar("Read", bound=Document)


def read_document(path: Path, kind: type[Read]) -> Read:
    """Read a file: TOML if its name ends in `.toml`, JSON otherwise.

    Raises:
        InputError: the file cannot be read; names the file, and the place in it.
    """
    text = read_text(path)
    if path.suffix != ".toml":
        return convert_document(read_json(text, str(path)), kind, str(path))
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from None
    return convert_document(table, kind, str(path))


def convert_document(value: object, kind: type[Read], source: str) -> Read:
    """Check the values of a document; `source` names it in errors.

    Raises:
        InputError: a key is unknown or missing, a value is invalid, or the version is not ours.
    """
    if isinstance(value, dict) and value.get("version", VERSION) != VERSION:
        raise InputError(
            f"{source}: version {value['version']!r} is not known; write version = {VERSION}, or "
            "install the waltzrl that wrote it"
        )
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, InputError) as error:
        # msgspec calls the document `$`, which says nothing to whoever wrote it.
        raise InputError(f"{source}: {error}".replace("`$.", "`")) from None
