"""Reads items: by key, by filter and words, and the namespaces that exist.

A filter becomes SQL on a column where the field has one, and on the JSON where not. A missing field
is null. Numbers are ordered by value and texts by code points; values of other types, or of
different types, are not ordered.

Words are runs of letters and digits in lower case, without the accents of Latin letters. They are
split here, the same for both databases; FTS5 and tsvector only index and rank them.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    case,
    column,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    table,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql import operators

from waltzrl.errors import InputError
from waltzrl.store.database import canonical_json
from waltzrl.store.memory.items import (
    Filter,
    GetOp,
    Index,
    Item,
    Json,
    ListNamespacesOp,
    Namespace,
    Op,
    PutOp,
    Result,
    SearchOp,
)
from waltzrl.store.memory.scrubbing import replace_unstorable
from waltzrl.store.memory.tables import FIELDS, ITEMS

MOST_CHARACTERS = 50_000
"""The most characters of an item that are indexed; PostgreSQL refuses a text of a megabyte."""
MOST_TERMS = 64
"""The most terms of a query."""

Condition = ColumnElement[bool]
ItemRow = Row[tuple[object, ...]]
"""One row with the columns of `COLUMNS`; in search results also its `score`."""
COLUMNS = tuple(
    ITEMS.c[name] for name in ("id", "namespace", "key", "value", "created_at", "updated_at", "ttl")
)
_ORDERS: Mapping[str, operators.OperatorType] = {
    "$gt": operators.gt,
    "$gte": operators.ge,
    "$lt": operators.lt,
    "$lte": operators.le,
}
_WORD = re.compile(r"[^\W_]{1,100}")  # PostgreSQL indexes no word of 2 KB
_QUERY = re.compile(r'"([^"]*)"|([^\s"]+)')
"""A phrase between quotes, or a word."""
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)
"""Letters of scripts that write no spaces between words: Thai, Lao, Burmese, Khmer, kana, Han."""
_ACCENTED = re.compile(r"[\u00c0-\u024f\u1e00-\u1eff]|(?<=[a-z])[\u0300-\u036f]+")
"""Latin letters with accents, and accents that stand behind a letter."""
_SPELT = {
    "\u00df": "ss",
    "\u00e6": "ae",
    "\u0153": "oe",
    "\u00f8": "o",
    "\u0142": "l",
    "\u0111": "d",
    "\u00f0": "d",
    "\u00fe": "th",
    "\u0131": "i",
}
"""Latin letters that Unicode does not take apart."""
_ENDING = re.compile(r"(?:ing|ed|es|s|ly|er|ers|ings|ion|ions|e|y|ies|ied)$")
_STEM = 3
"""Letters that a stem has at least."""
_STEP = re.compile(r"[^.\[\]]+|\[(?:\*|-?\d+)\]")
# FTS5 has hidden columns: one of the table's own name, to match words, and the rank.
_FTS = table("item_words", column("rowid"), column("item_words"), column("rank"))
_SIMPLE: ColumnElement[str] = literal_column("'simple'::regconfig")


def not_expired(now: float) -> Condition:
    """Leave out what has expired, whether or not it was deleted yet."""
    return or_(ITEMS.c.expires_at.is_(None), ITEMS.c.expires_at > now)


def answer_operation(connection: Connection, op: Op, now: float, read: list[int]) -> Result:
    """Answer one operation; append to `read` the ids of items whose time to live starts anew.

    Raises:
        InputError: a filter is invalid.
    """
    match op:
        case GetOp():
            row = get_item(connection, op, now)
            _note_read([row] if row else [], op, read)
            return _decode_item(row) if row else None
        case SearchOp():
            rows = _search_items(connection, op, now)
            _note_read(rows, op, read)
            return [_decode_item(row, row.score) for row in rows]
        case ListNamespacesOp():
            return list(_list_namespaces(connection, op, now))
        case PutOp():
            return None


def get_item(
    connection: Connection, op: GetOp, now: float, *, locked: bool = False
) -> ItemRow | None:
    """Return one item, or None; `locked` keeps others from changing it in this transaction."""
    by_name = (ITEMS.c.namespace == ".".join(op.namespace), ITEMS.c.key == op.key)
    query = select(*COLUMNS).where(*by_name, not_expired(now))
    # SQLite has no row locks and ignores this; there `writing` has locked the whole database.
    return connection.execute(query.with_for_update() if locked else query).one_or_none()


def build_conditions(filters: Filter, dialect: str) -> list[Condition]:
    """Return what must hold of an item.

    Raises:
        InputError: an operator or a field's name is invalid, or an operand of the wrong type.
    """
    return [
        condition
        for field, value in filters.items()
        for condition in _conditions_at([replace_unstorable(field)], _make_sendable(value), dialect)
    ]


def words_of(text: str) -> str:
    """Return the words of a text, separated by spaces."""
    return " ".join(_WORD.findall(_ACCENTED.sub(_without_accent, text.lower())))


def join_indexed_text(value: Mapping[str, Json], index: Index) -> str:
    """Return the texts of a value at the paths of `index`, one a line."""
    if index is False:
        return ""
    parts: list[Json] = [dict(value)]
    if index is not None:
        parts = [part for path in index for part in _at_path(dict(value), _STEP.findall(path))]
    return "\n".join(text for part in parts for text in texts_in(part))[:MOST_CHARACTERS]


def holds_words(text: str, dialect: str) -> Condition:
    """Ask for items that hold every word of `text`, in any English form, and every quoted phrase.

    A word is found by its stem: "baking" finds bake, baked and bakery. Quotes ask for exactly these
    words next to each other. OR between two asks for either. Words of scripts without spaces are
    found anywhere in a text.
    """
    required: list[list[Condition]] = []
    is_alternative = False
    for quoted, word in _QUERY.findall(text)[:MOST_TERMS]:
        if word == "OR":
            # An OR at the beginning has nothing on its left, and is left out.
            is_alternative = bool(required)
            continue
        words = words_of(quoted or word)
        if not words:
            continue
        held = _match_phrase(words, dialect, is_stem=not quoted)
        if is_alternative:
            # OR binds two neighbours only: `a b OR c` asks for a, and for b or c.
            required[-1].append(held)
        else:
            required.append([held])
        is_alternative = False
    return and_(*[or_(*alternatives) for alternatives in required]) if required else false()


def is_named(name: str) -> Condition:
    """Ask for the exchanges of a request, by its id in the audit log, the client's or the trace's.

    Only what has a digit can be a client's id: these are looked for in the values, which takes
    longer than by words.
    """
    name = name.strip()
    if not name or len(name.split()) > 1:
        return false()
    choices = and_(ITEMS.c.key > f"{name}/", ITEMS.c.key < f"{name}0")  # "0" follows "/"
    # The range stands for `LIKE 'name/%'`, and uses the index on both databases.
    found = [ITEMS.c.key == name, choices]
    if any(letter.isdigit() for letter in name):
        ids = ("client_request_id", "trace_id")
        found += [ITEMS.c.value[field].as_string() == name for field in ids]
    return or_(*found)


def _without_accent(match: re.Match[str]) -> str:
    letter = match[0]
    if unicodedata.combining(letter[0]):
        return ""
    return _SPELT.get(letter, unicodedata.normalize("NFD", letter)[0])


def _match_phrase(words: str, dialect: str, *, is_stem: bool) -> Condition:
    """Ask for words next to each other; of a stem the last one is only the beginning."""
    # Neither index splits such scripts into words, so the whole text is searched.
    if _UNSPACED.search(words):
        return ITEMS.c.words.contains(words, autoescape=True)
    *earlier, last = words.split()
    if is_stem:
        last = _stem_word(last)
    if dialect == "sqlite":
        # `words_of` leaves letters and digits only, so no word can break out of the query's syntax.
        phrase = f'"{" ".join([*earlier, last])}"' + ("*" if is_stem else "")
        rows = select(_FTS.c.rowid).where(_FTS.c.item_words.op("MATCH")(phrase))
        return ITEMS.c.id.in_(rows)
    phrase = " <-> ".join([*earlier, f"{last}:*" if is_stem else last])
    return func.to_tsvector(_SIMPLE, ITEMS.c.words).op("@@")(func.to_tsquery(_SIMPLE, phrase))


def _stem_word(word: str) -> str:
    """Return what the English forms of a word begin with."""
    stem = _ENDING.sub("", word)
    # Of l and s the doubling is often the word's own: tell, pass.
    if len(stem) > _STEM and stem[-1] == stem[-2] and stem[-1] not in "ls":
        stem = stem[:-1]  # running, run
    return stem if len(stem) >= _STEM else word


def texts_in(value: Json) -> Iterator[str]:
    """Yield every text of a value, without the names of fields."""
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from texts_in(inner)
        case list() | tuple():
            for inner in value:
                yield from texts_in(inner)


def _search_items(connection: Connection, op: SearchOp, now: float) -> Sequence[ItemRow]:
    """Return the matching items: with a query the best first, else the newest first."""
    dialect = connection.dialect.name
    matching = build_conditions(op.filter or {}, dialect)
    query = select(*COLUMNS).where(_match_prefix(op.namespace_prefix), not_expired(now), *matching)
    order = [ITEMS.c.updated_at.desc(), ITEMS.c.id.desc()]
    score: ColumnElement[float] = literal_column("NULL")
    if op.query is not None:
        query, score = _rank_items(query, op.query, dialect)
        order = [score.desc(), *order]
    query = query.add_columns(score.label("score"))
    return connection.execute(query.order_by(*order).limit(op.limit).offset(op.offset)).all()


def _match_prefix(prefix: Namespace) -> Condition:
    if not prefix:
        return true()
    name = ".".join(prefix)
    below = and_(ITEMS.c.namespace > f"{name}.", ITEMS.c.namespace < f"{name}/")  # "/" follows "."
    return or_(ITEMS.c.namespace == name, below)


def _list_namespaces(connection: Connection, op: ListNamespacesOp, now: float) -> list[Namespace]:
    rows = connection.execute(select(ITEMS.c.namespace).where(not_expired(now)).distinct())
    namespaces = (tuple(name.split(".")) for (name,) in rows)
    matching = {
        namespace[: op.max_depth]
        for namespace in namespaces
        if all(condition.holds_for(namespace) for condition in op.match_conditions or ())
    }
    return sorted(matching)[op.offset : op.offset + op.limit]


def _decode_item(row: ItemRow, score: float | None = None) -> Item:
    return Item(
        namespace=tuple(row.namespace.split(".")),
        key=row.key,
        value=row.value,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        updated_at=datetime.fromtimestamp(row.updated_at, UTC),
        score=score,
    )


def _note_read(rows: Sequence[ItemRow], op: GetOp | SearchOp, read: list[int]) -> None:
    if op.refresh_ttl:
        read.extend(row.id for row in rows if row.ttl is not None)


def _rank_items(
    query: Select[tuple[object, ...]], text: str, dialect: str
) -> tuple[Select[tuple[object, ...]], ColumnElement[float]]:
    """Narrow a query to items with one of the words of `text`; also return how well each fits."""
    terms = list(dict.fromkeys(words_of(text).split()))[:MOST_TERMS]
    if dialect == "sqlite":
        # An empty MATCH is a syntax error; an empty phrase matches nothing.
        any_term = " OR ".join(f'"{term}"' for term in terms) or '""'
        narrowed = query.join(_FTS, _FTS.c.rowid == ITEMS.c.id)
        # FTS5's rank is negative: the lower, the better.
        return narrowed.where(_FTS.c.item_words.op("MATCH")(any_term)), -_FTS.c.rank
    vector = func.to_tsvector(_SIMPLE, ITEMS.c.words)
    any_of_them = func.to_tsquery(_SIMPLE, " | ".join(terms))
    return query.where(vector.op("@@")(any_of_them)), func.ts_rank(vector, any_of_them)


def _at_path(value: Json, steps: list[str]) -> Iterator[Json]:
    """Follow steps such as `turns`, `[*]` or `[-1]`; missing parts are skipped."""
    if not steps:
        yield value
        return
    step, *rest = steps
    match value:
        case dict() if step in value:
            yield from _at_path(value[step], rest)
        case list() if step == "[*]":
            for inner in value:
                yield from _at_path(inner, rest)
        case list() if step.startswith("["):
            index = int(step[1:-1])
            if -len(value) <= index < len(value):
                yield from _at_path(value[index], rest)


def _make_sendable(value: Json) -> Json:
    """Return an operand as it would have been stored; a database refuses other texts."""
    match value:
        case str():
            return replace_unstorable(value)
        case Mapping():
            return {
                replace_unstorable(name): _make_sendable(inner) for name, inner in value.items()
            }
        case list() | tuple():
            return [_make_sendable(inner) for inner in value]
        # SQLite's driver raises an OverflowError for them, which names no filter.
        case int() if abs(value) >= 2**63:
            raise InputError(f"whole numbers of a filter have at most 63 bits, got {value}")
        case _:
            return value


def _conditions_at(path: Sequence[str], operand: Json, dialect: str) -> Iterator[Condition]:
    if any(letter in '"\\' or letter < " " for letter in path[-1]):
        raise InputError(
            f"cannot filter by the field {path[-1]!r}: its name has quotes, backslashes or control "
            "characters"
        )
    if not isinstance(operand, Mapping):
        yield _match_equal(path, operand, dialect)
        return
    for name, inner in operand.items():
        if not name.startswith("$"):
            yield from _conditions_at([*path, name], inner, dialect)
        elif name == "$eq":
            yield _match_equal(path, inner, dialect)
        elif name == "$ne":
            yield _match_equal(path, inner, dialect).is_not(true())  # null is unequal too
        else:
            yield _match_order(path, name, inner, dialect)


def _match_equal(path: Sequence[str], value: Json, dialect: str) -> Condition:
    # The column has an index; the JSON has none.
    if len(path) == 1 and path[0] in FIELDS and FIELDS[path[0]].fits(value):
        return ITEMS.c[path[0]] == value
    if dialect == "postgresql":
        # A missing field is SQL's null, which would equal nothing; as JSON's null it equals None.
        return func.coalesce(_extract_jsonb(path), literal(None, JSONB)) == literal(value, JSONB)
    return _equals_on_sqlite(_sqlite_path(path), value)


def _equals_on_sqlite(path: str, value: Json) -> Condition:
    kind: ColumnElement[str] = func.json_type(ITEMS.c.value, path)
    stored: ColumnElement[object] = func.json_extract(ITEMS.c.value, path)
    match value:
        case None:
            return or_(kind.is_(None), kind == "null")
        case bool():
            # json_extract returns 1 for true, which would also equal the number 1.
            return kind == ("true" if value else "false")
        case int() | float():
            return and_(kind.in_(("integer", "real")), stored == value)
        case str():
            return and_(kind == "text", stored == value)
        case _:
            # As texts they could differ in the order of fields and in the spelling of numbers.
            is_nested = kind.in_(("array", "object"))
            canonical: ColumnElement[str] = func.waltzrl_canonical_json(stored)
            return case((is_nested, canonical)) == canonical_json(json.dumps(value))


def _match_order(path: Sequence[str], name: str, value: Json, dialect: str) -> Condition:
    if name not in _ORDERS:
        raise InputError(
            f"{name!r} is not an operator of a filter; use $eq, $ne, {', '.join(_ORDERS)}"
        )
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{name} needs a number or a text to compare with, got {value!r}")
    order = _ORDERS[name]
    if dialect == "postgresql":
        stored = _extract_jsonb(path)
        if isinstance(value, str):
            text = func.jsonb_extract_path_text(ITEMS.c.value, *path)
            is_text = func.jsonb_typeof(stored) == "string"
            # Collation C orders by code points, as SQLite does.
            return and_(is_text, text.operate(operators.collate, "C").operate(order, value))
        is_number = func.jsonb_typeof(stored) == "number"
        return and_(is_number, stored.operate(order, literal(value, JSONB)))
    kinds = ("text",) if isinstance(value, str) else ("integer", "real")
    stored = func.json_extract(ITEMS.c.value, _sqlite_path(path))
    kind = func.json_type(ITEMS.c.value, _sqlite_path(path))
    return and_(kind.in_(kinds), stored.operate(order, value))


def _extract_jsonb(path: Sequence[str]) -> ColumnElement[object]:
    return func.jsonb_extract_path(ITEMS.c.value, *path, type_=JSONB)


def _sqlite_path(path: Sequence[str]) -> str:
    return "$" + "".join(f'."{name}"' for name in path)
