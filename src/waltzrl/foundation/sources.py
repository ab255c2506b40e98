"""Where settings come from: layers of partial tables, and which of them decides a setting."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from waltzrl.foundation.texts import without_credentials
from waltzrl.foundation.validation import Table

DEFAULT = "default"
"""The origin of a setting that no source sets."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A partial table of settings, and where it comes from."""

    name: str
    """A file, the name of an environment variable, or an option."""
    table: Table
    is_variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as it applies."""

    key: str
    """Dotted, such as `upstream.url`."""
    value: object
    origin: str
    """The name of the source that decides it, or `default`."""


def merge_tables(base: Table, changes: Table) -> Table:
    """Return `base` with `changes`, which apply inside nested tables too."""
    table = dict(base)
    for key, value in changes.items():
        base_value = table.get(key)
        if isinstance(base_value, dict) and isinstance(value, dict):
            value = merge_tables(base_value, value)
        table[key] = value
    return table


def log_conflicts(sources: Sequence[Source]) -> None:
    """Log a warning where an environment variable overrides another source, or is overridden.

    Args:
        sources: in ascending order of priority.
    """
    values: dict[str, list[tuple[Source, object]]] = {}
    for source in sources:
        for key, value in list_leaves(source.table):
            values.setdefault(key, []).append((source, value))
    for key, settings in values.items():
        for (lower, old), (upper, new) in pairwise(settings):
            if old != new and (lower.is_variable or upper.is_variable):
                logger.warning(
                    "%s: %s = %s overrides %s from %s",
                    *(upper.name, key, _hide_credentials(new), _hide_credentials(old), lower.name),
                )


def explain_settings(table: Table, sources: Sequence[Source]) -> list[Setting]:
    """List each setting with its origin.

    Args:
        table: all settings as they apply, defaults included.
        sources: in ascending order of priority.
    """
    # Sources of higher priority come later, and so overwrite the names of lower ones.
    origins = {key: source.name for source in sources for key, _value in list_leaves(source.table)}
    return [
        Setting(key=key, value=_hide_credentials(value), origin=_find_origin(key, origins))
        for key, value in list_leaves(table)
    ]


def list_leaves(table: Table, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of every setting; an empty table is a value."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from list_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _find_origin(key: str, origins: dict[str, str]) -> str:
    """Return who set `key`, or a table that contains it."""
    while key not in origins:
        key, dot, _ = key.rpartition(".")
        if not dot:
            return DEFAULT
    return origins[key]


def _hide_credentials(value: object) -> object:
    return without_credentials(value) if isinstance(value, str) else value
