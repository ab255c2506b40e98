"""Strict validation of settings, with errors of one line."""

import math
import re
import tomllib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from waltzrl.errors import RecipeError
from waltzrl.foundation.jsonl import read_text

Table = dict[str, object]
Settings = TypeVar("Settings")
Synonyms = Mapping[str, Sequence[str]]
"""Keys, and the names in lower case that others have for each; a name may be that of several."""

NO_SYNONYMS: Synonyms = {}

UNKNOWN = "unexpected_keyword_argument"
"""Pydantic's name for the error of an unknown key."""
KINDS = {"path_type": "a path", "dict_type": "a table", "tuple_type": "a list"}
"""The types that pydantic's errors mean, in the words of TOML."""
ALTERNATIVES = {"steps": "epochs", "epochs": "steps"}
"""Keys of which a table has one: an override with one of them replaces the other."""
PRIORITY = {UNKNOWN: 0, "value_error": 1}
"""The errors that explain a mistake best: for a union pydantic reports those of every branch."""


def read_table(path: Path) -> Table:
    """Read a TOML file.

    Raises:
        InputError: it cannot be read.
        RecipeError: it is not TOML.
    """
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not TOML: {error}") from None


def validate_table(
    kind: type[Settings], table: Table, source: str, synonyms: Synonyms = NO_SYNONYMS
) -> Settings:
    """Validate a table as a dataclass, including nested dataclasses.

    Args:
        kind: the dataclass.
        table: its fields; nested dataclasses are tables.
        source: the file or the option, for errors.
        synonyms: what others call the keys, to be suggested for it.

    Raises:
        RecipeError: a key is unknown or missing, or a value is invalid or of the wrong type.
    """
    try:
        # Without `forbid` pydantic ignores the unknown keys of a dataclass.
        return adapter_of(kind).validate_python(table, extra="forbid")
    except ValidationError as error:
        first = min(
            error.errors(), key=lambda details: PRIORITY.get(details["type"], len(PRIORITY))
        )
        raise RecipeError(f"{source}: {_explain_error(kind, table, first, synonyms)}") from None


def adapter_of(kind: type[Settings]) -> TypeAdapter[Settings]:
    """Return what validates and writes a dataclass; it is made once, because that takes long."""
    adapter: TypeAdapter[Settings] = _make_adapter(cast("Hashable", kind))
    return adapter


_make_adapter = cache(TypeAdapter)


def require_finite(table: Table, source: str) -> None:
    """Check that no number in the table is inf or nan, which TOML has.

    Args:
        table: with all overrides.
        source: the file, for errors.

    Raises:
        RecipeError: one is; names its key.
    """
    for key, number in _yield_numbers(table):
        if not math.isfinite(number):
            raise RecipeError(f"{source}: {key}: got {number}, need a finite number")


def _yield_numbers(value: object, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield every float with its dotted key; an item of a list goes by its name, if it has one."""
    if isinstance(value, float):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _yield_numbers(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for item in value:
            name = item.get("name") if isinstance(item, Mapping) else None
            yield from _yield_numbers(item, f"{key}.{name}" if name else key)


# A part of a dotted key: in quotes, or without a dot. Before the equals sign there is nothing else.
KEY_PART = re.compile(r'"([^"]+)"|([^".=]*[^".=\s][^".=]*)')
OVERRIDE = re.compile(
    rf"\s*((?:{KEY_PART.pattern})(?:\.(?:{KEY_PART.pattern}))*)\s*=(?P<value>.*)", re.DOTALL
)


def with_overrides(table: Table, overrides: Sequence[str]) -> Table:
    """Set each `key=value` in the table, in order, and return it.

    The key is dotted, with quotes around a part that has a dot: `prices."gpt-4.1"={input=2}`. An
    item of a list is selected by its name: `stages.joint.steps=100`. The value is TOML, or else
    plain text. `steps` replace the `epochs` of a stage, and the other way round.

    Raises:
        RecipeError: the table does not exist, or the equals sign is missing.
    """
    for override in overrides:
        _apply_override(table, override)
    return table


def _apply_override(table: Table, override: str) -> None:
    given = OVERRIDE.fullmatch(override)
    if given is None:
        raise RecipeError(f"--set {override}: need key=value, such as models.rank=8")
    *path, last = [quoted or bare.strip() for quoted, bare in KEY_PART.findall(given[1])]
    inner: object = table
    for part in path:
        if isinstance(inner, list):
            tables = (item for item in inner if isinstance(item, dict))
            inner = next((item for item in tables if item.get("name") == part), None)
        elif isinstance(inner, dict):
            inner = inner.setdefault(part, {})
        if not isinstance(inner, dict | list):
            raise RecipeError(f"--set {override}: there is no table {part!r} to set this in")
    if not isinstance(inner, dict):
        raise RecipeError(f"--set {override}: name the stage, as in stages.<name>.{last}=...")
    inner.pop(ALTERNATIVES.get(last), None)
    inner[last] = _parse_value(given["value"])


def _parse_value(text: str) -> object:
    try:
        # TOML has no parser for a value alone.
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _explain_error(kind: object, table: Table, error: ErrorDetails, synonyms: Synonyms) -> str:
    """Name the invalid key and the valid values, in one line."""
    known = sorted(set(yield_keys(kind)))
    # Pydantic adds the names of types in a union to the location; keep only parts of keys.
    words = {word for key in known for word in key.split(".")}
    location = [part for part in error["loc"] if isinstance(part, str)]
    given = _find_given(table, error["loc"])
    named = [part for part in location if part in words or part in given]
    general = [part for part in location if part in words]
    key = ".".join(named)
    if error["type"] == UNKNOWN:
        *table_of, name = named if named[-1:] == location[-1:] else [*named, location[-1]]
        kinds = [part for part in table_of if part in words]
        found = _find_meant(".".join([*kinds, name]), known, synonyms)
        return _explain_unknown(
            table_of, name, [_replace_table(each, kinds, table_of) for each in found]
        )
    if error["type"] in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        return f"{key} is missing; write it in the recipe or give --set {key}=..."
    # The stages of a training recipe are the only union with a tag.
    if error["type"].startswith("union_tag"):
        return f"{key}: each needs kind = 'imitation' or kind = 'reinforcement'"
    if error["type"] == "value_error":
        # The message names keys of its own table; say which, where there are several of the kind.
        return ("" if named == general else f"{key}: ") + error["msg"].removeprefix("Value error, ")
    if error["type"] == "dataclass_type":
        example = next(name for name in known if name.startswith(f"{'.'.join(general)}."))
        example = _replace_table(example, general, named)
        return f"{key}: got {error['input']!r}, need a table of keys such as {example}"
    words_of_error = error["msg"].removeprefix("Input should be ")
    words_of_error = words_of_error.replace("String should match pattern", "a text of the form")
    needed = KINDS.get(error["type"], words_of_error)
    return f"{key}: got {error['input']!r}, need {needed}"


def _explain_unknown(table: Sequence[str], name: str, meant: Sequence[str]) -> str:
    unknown = ".".join([*table, name])
    if table and name[:1].isdigit():  # no key begins so: a name was cut at its dot
        *outer, begun = table
        quoted = ".".join([*outer, f'"{begun}.{name}"'])
        return f"unknown key {unknown!r}; a name with a dot needs quotes: {quoted}"
    advice = f"did you mean {' and '.join(map(repr, meant))}?" if meant else "delete it"
    return f"unknown key {unknown!r}; {advice}"


def _find_given(table: Table, location: Sequence[str | int]) -> set[str]:
    """Return the parts of a location that are keys of the table, such as the name of a policy."""
    given = set()
    inner: object = table
    for part in location:
        if isinstance(inner, Mapping) and part in inner:
            given.add(str(part))
            inner = inner[part]
        elif isinstance(inner, list) and isinstance(part, int) and part < len(inner):
            inner = inner[part]
    return given


def _replace_table(key: str, table: Sequence[str], other: Sequence[str]) -> str:
    """Return a key that is in one table as the key of another."""
    prefix = f"{'.'.join(table)}."
    return f"{'.'.join(other)}.{key.removeprefix(prefix)}" if key.startswith(prefix) else key


def _find_meant(key: str, known: Sequence[str], synonyms: Synonyms) -> list[str]:
    """Return the keys of the same meaning as an unknown one, or else the one spelt most alike."""
    name = key.rpartition(".")[2].lower().replace("-", "_")
    if meant := [ours for ours, others in synonyms.items() if name in others]:
        return meant
    # The table that holds the unknown key is close to it, and no help; nor is the key itself, which
    # another kind of stage may have.
    others = [each for each in known if not f"{key}.".startswith(f"{each}.")]
    return get_close_matches(key, others, n=1)


def yield_keys(kind: object, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key below a type, without the indexes of list items."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            yield f"{prefix}{field.name}"
            yield from yield_keys(hints[field.name], f"{prefix}{field.name}.")
    elif get_origin(kind) in {Annotated, Union, UnionType, tuple, Mapping}:
        for argument in get_args(kind):
            yield from yield_keys(argument, prefix)
