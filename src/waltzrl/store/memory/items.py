"""Items and operations of the store, in the shapes of LangGraph's BaseStore 4.x."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from waltzrl.errors import InputError
from waltzrl.foundation.files import Json as Json

Namespace: TypeAlias = tuple[str, ...]
Filter: TypeAlias = Mapping[str, Json]
"""Field -> what it must equal, or `{"$gt": 4, "$lte": 9}`; a missing field counts as null."""
Index: TypeAlias = Literal[False] | list[str] | None
"""Paths whose texts full-text search covers, such as `turns[*].content`; None is all texts, False
none."""

MAX_PAGE = 2**31
"""More items than any database can pass over."""
LONGEST_NAME = 600
"""Characters of a namespace and a key together; PostgreSQL cannot index longer ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A stored value, also as a search found it."""

    namespace: Namespace
    key: str
    value: dict[str, Json]
    created_at: datetime
    """UTC."""
    updated_at: datetime
    score: float | None = None
    """How well it fits the words of a search: higher is better, on a scale of the database's own;
    None without words."""


@dataclass(frozen=True, slots=True)
class GetOp:
    """Get one item."""

    namespace: Namespace
    key: str
    refresh_ttl: bool = True


@dataclass(frozen=True, slots=True)
class SearchOp:
    """Search a namespace and all below it."""

    namespace_prefix: Namespace
    filter: Filter | None = None
    limit: int = 10
    offset: int = 0
    query: str | None = None
    """Words of which an item must contain at least one; the best match comes first."""
    refresh_ttl: bool = True


@dataclass(frozen=True, slots=True)
class PutOp:
    """Store or replace an item; without a value, delete it."""

    namespace: Namespace
    key: str
    value: Mapping[str, Json] | None
    index: Index = None
    ttl: float | None = None
    """Minutes without being read after which the item expires."""
    expires_at: float | None = None
    """Seconds since the epoch at which the item expires, read or not; not part of LangGraph."""


@dataclass(frozen=True, slots=True)
class MatchCondition:
    """What a namespace must begin or end with; `*` stands for any label."""

    match_type: Literal["prefix", "suffix"]
    path: Namespace

    def holds_for(self, namespace: Namespace) -> bool:
        length = len(self.path)
        part = namespace[:length] if self.match_type == "prefix" else namespace[-length:]
        return len(namespace) >= length and all(
            pattern in ("*", label) for pattern, label in zip(self.path, part, strict=False)
        )


@dataclass(frozen=True, slots=True)
class ListNamespacesOp:
    """List namespaces, cut off at `max_depth` labels."""

    match_conditions: tuple[MatchCondition, ...] | None = None
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


Op: TypeAlias = GetOp | SearchOp | PutOp | ListNamespacesOp
Result: TypeAlias = Item | list[Item] | list[Namespace] | None


def check_operation(op: Op) -> None:
    """Check that the names of an operation can be stored unambiguously, and its page.

    Raises:
        InputError: a namespace is not a tuple; a label is empty, or has a period or a NUL; a key
            has a NUL; a value is not an object; a limit or an offset is out of range.
    """
    match op:
        case GetOp(namespace, key):
            _check_names(namespace, key)
        case PutOp(namespace, key):
            if not namespace or namespace[0] == "langgraph":
                raise InputError(
                    "a namespace needs a label, and a first one other than 'langgraph'; "
                    f"got {namespace}"
                )
            _check_names(namespace, key)
            if not isinstance(op.value, Mapping | None):
                raise InputError(
                    f"a value must be an object, got {type(op.value).__qualname__}; "
                    'use {"text": ...}'
                )
        case SearchOp(namespace_prefix=prefix):
            _check_names(prefix)
            _check_page(op.limit, op.offset)
        case ListNamespacesOp(match_conditions=conditions):
            for condition in conditions or ():
                _check_names(condition.path)
            _check_page(op.limit, op.offset)


def _check_names(namespace: Namespace, key: str = "") -> None:
    if not isinstance(namespace, tuple):  # ("users") is a string, whose letters would be labels
        raise InputError(
            f'a namespace must be a tuple of labels such as ("users",), got {namespace!r}'
        )
    for label in namespace:
        if not isinstance(label, str) or not label or "." in label or not _is_storable(label):
            raise InputError(
                f"{label!r} cannot be a label of a namespace; use text without periods and NULs"
            )
    if not _is_storable(key):
        raise InputError(f"{key!r} cannot be a key; use text without NULs")
    if len(".".join(namespace)) + len(key) > LONGEST_NAME:
        raise InputError(
            f"the namespace and the key that begins with {key[:20]!r} have more than "
            f"{LONGEST_NAME} characters together; shorten them, or use a digest"
        )


def _is_storable(name: str) -> bool:
    return "\0" not in name and not any("\ud800" <= letter <= "\udfff" for letter in name)


def _check_page(limit: int, offset: int) -> None:
    if not (0 <= limit < MAX_PAGE and 0 <= offset < MAX_PAGE):
        raise InputError(
            f"limit and offset must be 0 or more, and below {MAX_PAGE}; got {limit} and {offset}"
        )
