"""The door through which settings come in: checked to the last key, explained in one line."""

import logging
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from waltzrl.errors import RecipeError

logger = logging.getLogger(__name__)

Table = dict[str, object]
Settings = TypeVar("Settings")

UNKNOWN = "unexpected_keyword_argument"
"""How pydantic calls a key that no dataclass has."""
KINDS = {"path_type": "a path", "dict_type": "a table", "tuple_type": "a list"}
"""What TOML calls what pydantic misses."""
RENAMED = {
    "data.lessons": "data.demonstrations",
    "keeping": "checkpointing",
    "rules_mend_refusals": "rules_flag_overrefusals",
    "budget_ms": "review_timeout_ms",
}
"""Keys of version 0.1 that have another name now; the old ones go with the next version."""
REMOVED = {
    "stages.optimizer.bf16": (
        False,
        "optimizer.bf16 is set by compute.dtype, which holds for all stages",
    ),
}
"""Keys of version 0.1 that are gone: the only value they could have, which is ignored because the
recipes of old runs contain it, and the error for any other value."""
TOLD_FIRST = {UNKNOWN: 0, "value_error": 1}
"""Of several errors, in every branch of a union, these say best what is wrong."""


def validated(kind: type[Settings], table: Table, source: str) -> Settings:
    """Make a dataclass, and those inside it, of what was read.

    Keys of the last version are accepted under their old names, with a warning.

    Args:
        kind: the dataclass.
        table: its fields; inner dataclasses are tables.
        source: names the file, or the option, in errors.

    Raises:
        RecipeError: a key is unknown or missing, or a value is of the wrong type or impossible.
    """
    try:
        return TypeAdapter(kind).validate_python(current_keys(table, source), extra="forbid")
    except ValidationError as error:
        told = sorted(error.errors(), key=lambda one: TOLD_FIRST.get(one["type"], len(TOLD_FIRST)))
        raise RecipeError(f"{source}: {_explain(kind, told[0])}") from None


def current_keys(table: Table, source: str) -> Table:
    """Return the table of an older version with the keys of this one.

    Raises:
        RecipeError: a key is there under both its names, or a removed one would change something.
    """
    for old, new in RENAMED.items():
        *path, key = old.split(".")
        inner: object = table
        for part in path:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or key not in inner:
            continue
        if (name := new.rpartition(".")[2]) in inner:
            raise RecipeError(f"{source}: {old} is the old name of {new}; delete one of them")
        logger.warning("%s: %s is now called %s; the old name goes with 0.3", source, old, new)
        inner[name] = inner.pop(key)
    for dotted, (default, message) in REMOVED.items():
        *path, key = dotted.split(".")
        for inner in _tables(table, path):
            if inner.pop(key, default) != default:
                raise RecipeError(f"{source}: {message}")
    return table


def _tables(value: object, path: Sequence[str]) -> Iterator[Table]:
    """Yield every table at the end of a path of keys, through all items of lists."""
    if isinstance(value, list):
        for item in value:
            yield from _tables(item, path)
    elif isinstance(value, dict):
        if path:
            yield from _tables(value.get(path[0]), path[1:])
        else:
            yield value


def with_overrides(table: Table, overrides: Sequence[str]) -> Table:
    """Set each `key=value` in the table, in order, and return it.

    The key is dotted; an item of a list goes by its name: `stages.joint.steps=100`. The value is
    TOML, or a plain text where it is not.

    Raises:
        RecipeError: there is no such table, or no equals sign.
    """
    for override in overrides:
        _override(table, override)
    return table


def _override(table: Table, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise RecipeError(f"--set {override}: need key=value, such as models.rank=8")
    *path, last = key.strip().split(".")
    inner: object = table
    for part in path:
        if isinstance(inner, list):
            inner = next((one for one in inner if one.get("name") == part), None)
        elif isinstance(inner, dict):
            inner = inner.setdefault(part, {})
        if not isinstance(inner, dict | list):
            raise RecipeError(f"--set {override}: there is no table {part!r} to set this in")
    if not isinstance(inner, dict):
        raise RecipeError(f"--set {override}: name the stage, as in stages.<name>.{last}=...")
    inner[last] = _value(text)


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _explain(kind: object, error: ErrorDetails) -> str:
    """Say which key is wrong and what would be right, in one line."""
    known = sorted(set(_keys(kind)))
    words = {word for key in known for word in key.split(".")}
    place = [part for part in error["loc"] if isinstance(part, str)]
    if error["type"] == UNKNOWN:
        key = ".".join([*(part for part in place[:-1] if part in words), place[-1]])
        close = get_close_matches(key, [k for k in known if not key.startswith(f"{k}.")], n=1)
        return f"unknown key {key!r}; " + (f"did you mean {close[0]!r}?" if close else "delete it")
    key = ".".join(part for part in place if part in words)
    if error["type"] in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        return f"{key} is missing; write it in the recipe or give --set {key}=..."
    if error["type"].startswith("union_tag"):
        return f"{key}: each needs kind = 'imitation' or kind = 'reinforcement'"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    if error["type"] == "dataclass_type":
        inside = next(one for one in known if one.startswith(f"{key}."))
        return f"{key}: got {error['input']!r}, need a table of keys such as {inside}"
    needed = KINDS.get(error["type"], error["msg"].removeprefix("Input should be "))
    return f"{key}: got {error['input']!r}, need {needed}"


def _keys(kind: object, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key below a type, without the places of list items."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind, include_extras=True)
        for one in fields(kind):
            yield f"{prefix}{one.name}"
            yield from _keys(hints[one.name], f"{prefix}{one.name}.")
    elif get_origin(kind) in {Annotated, Union, UnionType, tuple}:
        for argument in get_args(kind):
            yield from _keys(argument, prefix)
