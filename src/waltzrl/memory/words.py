"""Full text: what of a value can be found by its words, and how words are asked for.

Words are letters and digits in lower case. They are cut here, for both databases alike; FTS5 and
tsvector then only index them and rank.
"""

import re
from collections.abc import Iterator, Mapping

from sqlalchemy import ColumnElement, Select, column, func, literal_column, table

from waltzrl.memory.items import Index, Json
from waltzrl.memory.tables import ITEMS

MOST_CHARACTERS = 50_000
"""Of one item; PostgreSQL indexes no text of a megabyte."""
MOST_TERMS = 64
"""Of one query."""

_WORD = re.compile(r"[^\W_]{1,100}")  # PostgreSQL indexes no word of 2 KB
_STEP = re.compile(r"[^.\[\]]+|\[(?:\*|-?\d+)\]")
_FTS = table("item_words", column("rowid"), column("item_words"), column("rank"))
_SIMPLE: ColumnElement[str] = literal_column("'simple'::regconfig")


def texts_of(value: Mapping[str, Json], index: Index) -> str:
    """Return the texts of a value at the paths of `index`, a line each."""
    if index is False:
        return ""
    found: list[Json] = [dict(value)]
    if index is not None:
        found = [one for path in index for one in _at(dict(value), _STEP.findall(path))]
    return "\n".join(text for one in found for text in texts_in(one))[:MOST_CHARACTERS]


def texts_in(value: Json) -> Iterator[str]:
    """Yield every text of a value; names of fields are none."""
    match value:
        case str():
            yield value
        case dict():
            for one in value.values():
                yield from texts_in(one)
        case list() | tuple():
            for one in value:
                yield from texts_in(one)


def words_of(text: str) -> str:
    """Return the words of a text, separated by spaces."""
    return " ".join(_WORD.findall(text.lower()))


def ranked(
    query: Select[tuple[object, ...]], text: str, dialect: str
) -> tuple[Select[tuple[object, ...]], ColumnElement[float]]:
    """Narrow a query to items with one of the words of `text`; also return how well each fits."""
    terms = list(dict.fromkeys(words_of(text).split()))[:MOST_TERMS]
    if dialect == "sqlite":
        asked = " OR ".join(f'"{term}"' for term in terms) or '""'
        narrowed = query.join(_FTS, _FTS.c.rowid == ITEMS.c.id)
        return narrowed.where(_FTS.c.item_words.op("MATCH")(asked)), -_FTS.c.rank
    vector = func.to_tsvector(_SIMPLE, ITEMS.c.words)
    wanted = func.to_tsquery(_SIMPLE, " | ".join(terms))
    return query.where(vector.op("@@")(wanted)), func.ts_rank(vector, wanted)


def _at(value: Json, steps: list[str]) -> Iterator[Json]:
    """Follow steps such as `turns`, `[*]` or `[-1]`; what is not there is passed over."""
    if not steps:
        yield value
        return
    step, *rest = steps
    match value:
        case dict() if step in value:
            yield from _at(value[step], rest)
        case list() if step == "[*]":
            for one in value:
                yield from _at(one, rest)
        case list() if step.startswith("["):
            place = int(step[1:-1])
            if -len(value) <= place < len(value):
                yield from _at(value[place], rest)
