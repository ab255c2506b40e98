"""A filter as SQL: by its column where the field has one, else in the JSON.

A missing field is null. Numbers are ordered by value, texts by code points; nothing else is
ordered, and nothing is smaller or larger than something of another type.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import ColumnElement, and_, func, literal, or_, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql import operators

from waltzrl.errors import InputError
from waltzrl.memory.items import Filter, Json
from waltzrl.memory.scrubbing import storable
from waltzrl.memory.tables import FIELDS, ITEMS

Condition = ColumnElement[bool]
_ORDERS: Mapping[str, operators.OperatorType] = {
    "$gt": operators.gt,
    "$gte": operators.ge,
    "$lt": operators.lt,
    "$lte": operators.le,
}


def conditions(wanted: Filter, dialect: str) -> list[Condition]:
    """Return what must hold of an item.

    Raises:
        InputError: an operator or a field's name is none, or cannot be applied to its operand.
    """
    return [
        one
        for field, value in wanted.items()
        for one in _of([storable(field)], _sent(value), dialect)
    ]


def _sent(value: Json) -> Json:
    """Return what may be sent to a database: texts as they would have been kept."""
    match value:
        case str():
            return storable(value)
        case Mapping():
            return {storable(name): _sent(one) for name, one in value.items()}
        case list() | tuple():
            return [_sent(one) for one in value]
        case int() if abs(value) >= 2**63:
            raise InputError(f"a filter's whole numbers have less than 64 bits, {value} has more")
        case _:
            return value


def _of(path: Sequence[str], wanted: Json, dialect: str) -> Iterator[Condition]:
    if any(letter in '"\\' or letter < " " for letter in path[-1]):
        raise InputError(f"the field {path[-1]!r} cannot be filtered by: it has quotes in its name")
    if not isinstance(wanted, Mapping):
        yield _equals(path, wanted, dialect)
        return
    for name, operand in wanted.items():
        if not name.startswith("$"):
            yield from _of([*path, name], operand, dialect)
        elif name == "$eq":
            yield _equals(path, operand, dialect)
        elif name == "$ne":
            yield _equals(path, operand, dialect).is_not(true())
        else:
            yield _compares(path, name, operand, dialect)


def _equals(path: Sequence[str], value: Json, dialect: str) -> Condition:
    if len(path) == 1 and path[0] in FIELDS and FIELDS[path[0]].holds(value):
        return ITEMS.c[path[0]] == value
    if dialect == "postgresql":
        return func.coalesce(_jsonb(path), literal(None, JSONB)) == literal(value, JSONB)
    return _equals_on_sqlite(_sqlite_path(path), value)


def _equals_on_sqlite(place: str, value: Json) -> Condition:
    kind: ColumnElement[str] = func.json_type(ITEMS.c.value, place)
    inside: ColumnElement[object] = func.json_extract(ITEMS.c.value, place)
    match value:
        case None:
            return or_(kind.is_(None), kind == "null")
        case bool():
            return kind == ("true" if value else "false")
        case int() | float():
            return and_(kind.in_(("integer", "real")), inside == value)
        case str():
            return and_(kind == "text", inside == value)
        case _:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            return and_(kind.in_(("array", "object")), inside == text)


def _compares(path: Sequence[str], name: str, value: Json, dialect: str) -> Condition:
    if name not in _ORDERS:
        raise InputError(f"{name!r} is no operator of a filter; say $eq, $ne, {', '.join(_ORDERS)}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{name} needs a number or a text to compare with, got {value!r}")
    order = _ORDERS[name]
    if dialect == "postgresql":
        inside = _jsonb(path)
        if isinstance(value, str):
            text = func.jsonb_extract_path_text(ITEMS.c.value, *path)
            is_text = func.jsonb_typeof(inside) == "string"
            return and_(is_text, text.operate(operators.collate, "C").operate(order, value))
        is_number = func.jsonb_typeof(inside) == "number"
        return and_(is_number, inside.operate(order, literal(value, JSONB)))
    place = _sqlite_path(path)
    kinds = ("text",) if isinstance(value, str) else ("integer", "real")
    inside = func.json_extract(ITEMS.c.value, place)
    return and_(func.json_type(ITEMS.c.value, place).in_(kinds), inside.operate(order, value))


def _jsonb(path: Sequence[str]) -> ColumnElement[object]:
    return func.jsonb_extract_path(ITEMS.c.value, *path, type_=JSONB)


def _sqlite_path(path: Sequence[str]) -> str:
    return "$" + "".join(f'."{name}"' for name in path)
