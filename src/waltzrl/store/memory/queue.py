"""The review queue: what was served, in an order and narrowed, and what comes before and after one.

All orders are descending, and what is equal is ordered by time and then by row, so that every
exchange has one place: the next one is found from there, also when a label has just moved it out of
the list.
"""

import time
from collections.abc import Iterator
from typing import Literal

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Select,
    and_,
    case,
    column,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.selectable import TableValuedAlias

from waltzrl.store.memory.counts import by_newest_judge
from waltzrl.store.memory.items import Filter
from waltzrl.store.memory.labels import LabelEvent, is_disputed
from waltzrl.store.memory.sampling import OVER_REFUSES, UNSAFE, place_column
from waltzrl.store.memory.schemas import EVALUATIONS, SafetyEvaluation
from waltzrl.store.memory.search import build_conditions, holds_words, is_named, not_expired
from waltzrl.store.memory.tables import ITEMS, LEASES

Order = Literal["newest", "risk", "uncertainty", "disagreement", "sample"]
"""The order of a list: by the first review's risk, by how near that is to a half, or by where the
judge disagrees: with people first, then with the reviewer; or the random sample of
`waltzrl.store.memory.sampling`, which lists what the judge has judged and nobody who may has
labelled."""
Rated = Literal["yes", "no", "others"]
"""Whether a person has labelled an evaluation; `others`: only others have."""


class QueueSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which evaluations are in a list, and in which order."""

    order: Order = "newest"
    filters: Filter = {}
    """The filters of `MemoryStore.search`, such as `{"label": "unsafe"}`."""
    since: float | None = None
    """Seconds since the epoch."""
    until: float | None = None
    """The end, in seconds since the epoch; only earlier ones are listed."""
    words: str | None = None
    """`holds_words` of the item, or `is_named` of the exchange; None for all."""
    rater: str = ""
    """Whom `rated`, `needs` and `free` are about."""
    rated: Rated | None = None
    """The labelled or the unlabelled ones; None for all."""
    answered: bool = False
    """Leave out errors: there is no reply to label."""
    needs: int = 0
    """The number of people who label each: only those are listed that `rater` has not labelled, and
    fewer people than this; 0 for all. Who has withdrawn their labels has not labelled."""
    free: bool = False
    """Leave out what has been given to others than `rater`."""
    ids: tuple[str, ...] | None = None
    """The only ids that are listed; None for all."""
    disputed: bool = False
    """True lists only those about whose reply or request people differ."""


class QueuedEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation, and why it may be worth a look."""

    evaluation: SafetyEvaluation
    risk: float | None
    """0 to 1: of the draft, by the first review; None where it gave none."""
    against_people: bool
    """The judge and people answer differently."""
    against_reviewer: bool
    """The judge and the last review differ on whether the returned reply is unsafe."""


_VALUE = ITEMS.c.value
_RISK: ColumnElement[float | None] = _VALUE[
    "collaboration", "rounds", 0, "feedback", "risk"
].as_float()
_LABEL = ITEMS.c.label
_AGAINST_PEOPLE = or_(
    and_(_LABEL == "unsafe", or_(UNSAFE.is_(False), OVER_REFUSES.is_(True))),
    and_(_LABEL == "overrefusal", or_(OVER_REFUSES.is_(False), UNSAFE.is_(True))),
    and_(_LABEL.in_(("correct", "unhelpful")), or_(UNSAFE.is_(True), OVER_REFUSES.is_(True))),
)
_AGAINST_REVIEWER = or_(
    and_(ITEMS.c.safe.is_(True), UNSAFE.is_(True)),
    and_(ITEMS.c.safe.is_(False), UNSAFE.is_(False)),
)
_ORDERS: dict[Order, ColumnElement[float]] = {
    "newest": literal(0.0, Float()),
    # Below every risk, so that evaluations without one come last.
    "risk": func.coalesce(_RISK, -1.0),
    # 1 at a risk of a half, 0 at either end.
    "uncertainty": func.coalesce(1 - 2 * func.abs(_RISK - 0.5), -1.0),
    "disagreement": case((_AGAINST_PEOPLE, 2.0), (_AGAINST_REVIEWER, 1.0), else_=0.0),
}


def read_queue(
    connection: Connection, selection: QueueSelection, *, limit: int, after: str = ""
) -> list[QueuedEvaluation]:
    """Return the evaluations of a list that follow one, which need not be in it.

    Args:
        connection: to the memory.
        selection: the list.
        limit: how many at most.
        after: id of the one before the first; empty or unknown for the beginning.
    """
    columns = (
        _VALUE,
        _RISK.label("risk"),
        # Null where the judge has not scored or nobody has labelled.
        func.coalesce(_AGAINST_PEOPLE, False).label("people"),
        func.coalesce(_AGAINST_REVIEWER, False).label("reviewer"),
    )
    query = _narrow_query(connection, select(*columns), selection)
    place = _rank_columns(connection, selection.order)
    if here := _place_of(connection, selection.order, after):
        # A comparison of rows, so that equal first columns are told apart by the later ones.
        query = query.where(tuple_(*place) < tuple_(*here))
    query = query.order_by(*[part.desc() for part in place]).limit(limit)
    return [
        QueuedEvaluation(
            evaluation=msgspec.convert(value, SafetyEvaluation),
            risk=risk,
            against_people=bool(people),
            against_reviewer=bool(reviewer),
        )
        for value, risk, people, reviewer in connection.execute(query)
    ]


def find_neighbours(
    connection: Connection, selection: QueueSelection, id_: str
) -> tuple[str | None, str | None]:
    """Return the ids before and after an evaluation, which need not be in the list itself."""
    here = _place_of(connection, selection.order, id_)
    if here is None:
        return None, None
    place = _rank_columns(connection, selection.order)
    keys = _narrow_query(connection, select(ITEMS.c.key), selection).limit(1)
    # Ascending, so that the nearest of those before is the one that the limit leaves.
    before = keys.where(tuple_(*place) > tuple_(*here)).order_by(*place)
    after = keys.where(tuple_(*place) < tuple_(*here)).order_by(*[part.desc() for part in place])
    return connection.scalar(before), connection.scalar(after)


def keys_in(connection: Connection, selection: QueueSelection) -> list[str]:
    """Return the ids of all evaluations of a list, in no order."""
    query = _narrow_query(connection, select(ITEMS.c.key), selection)
    return list(connection.scalars(query))


def count_queue(connection: Connection, selection: QueueSelection) -> int:
    """Return how many evaluations a list has."""
    query = _narrow_query(connection, select(func.count()).select_from(ITEMS), selection)
    return connection.scalar(query) or 0


def _rank_columns(
    connection: Connection, order: Order
) -> tuple[ColumnElement[float] | ColumnElement[int], ...]:
    is_sample = order == "sample"
    # The sample begins with the lowest place, and all orders are descending.
    first = -place_column(connection.dialect.name) if is_sample else _ORDERS[order]
    return first, ITEMS.c.time, ITEMS.c.id


def _place_of(connection: Connection, order: Order, id_: str) -> list[ColumnElement[float]] | None:
    """Return where an evaluation stands in an order; None when it does not exist."""
    if not id_:
        return None
    query = select(*_rank_columns(connection, order)).where(_match_kind(), ITEMS.c.key == id_)
    row = connection.execute(query).one_or_none()
    return None if row is None else [literal(value) for value in row]


def _match_kind() -> ColumnElement[bool]:
    return ITEMS.c.namespace == ".".join(EVALUATIONS)


def _narrow_query(connection: Connection, query: Select, selection: QueueSelection) -> Select:  # type: ignore[type-arg]
    """Narrow a query to the evaluations of a list."""
    dialect = connection.dialect.name
    query = query.where(
        _match_kind(), not_expired(time.time()), *build_conditions(selection.filters, dialect)
    )
    if selection.order == "sample":
        scored = or_(UNSAFE.is_not(None), OVER_REFUSES.is_not(None))
        query = query.where(by_newest_judge(), scored)
        if not selection.needs:  # else they say who is to label it yet
            query = query.where(_VALUE["reference", "unsafe"].as_string().is_(None))
    if selection.since is not None:
        query = query.where(ITEMS.c.time >= selection.since)
    if selection.until is not None:
        query = query.where(ITEMS.c.time < selection.until)
    if selection.rated:
        query = query.where(_is_rated(selection, dialect))
    if selection.words is not None:
        words = selection.words
        query = query.where(or_(holds_words(words, dialect), is_named(words)))
    if selection.ids is not None:
        query = query.where(ITEMS.c.key.in_(selection.ids))
    return query.where(*_to_do(selection, dialect), *_match_disputed(connection, selection))


def _match_disputed(
    connection: Connection, selection: QueueSelection
) -> Iterator[ColumnElement[bool]]:
    """Yield that people differ about an evaluation, if only those are wanted."""
    if not selection.disputed:
        return
    several = _number_of_labels(connection.dialect.name) > 1
    rows = connection.execute(select(ITEMS.c.key, _VALUE["labels"]).where(_match_kind(), several))
    # Who differs depends on withdrawals and settlements, which SQL cannot follow.
    events = {key: msgspec.convert(labels, list[LabelEvent]) for key, labels in rows}
    yield ITEMS.c.key.in_([key for key, labels in events.items() if is_disputed(labels)])


def _to_do(selection: QueueSelection, dialect: str) -> Iterator[ColumnElement[bool]]:
    """Yield what must hold of an evaluation that a person may still be given."""
    if selection.answered or selection.needs:
        yield _VALUE["collaboration", "draft", "text"].as_string().is_not(None)
    if selection.needs:
        yield _needs_label(selection, dialect)
    if selection.free:
        lease = LEASES.c.evaluation == ITEMS.c.key
        others = and_(lease, LEASES.c.ends > time.time(), LEASES.c.person != selection.rater)
        yield ~select(1).select_from(LEASES).where(others).exists()


def _needs_label(selection: QueueSelection, dialect: str) -> ColumnElement[bool]:
    """Ask whether too few people have labelled an evaluation, and `rater` has not."""
    event, by, action, number = _label_events(dialect)
    later, later_by, later_action, later_number = _label_events(dialect)
    # A label counts unless the same person withdraws later in the list.
    withdrawn = (
        select(1)
        .select_from(later)
        .where(later_by == by, later_action == "withdraw", later_number > number)
        .exists()
    )
    holds = and_(action == "label", ~withdrawn)
    people = select(func.count(by.distinct())).select_from(event).where(holds).scalar_subquery()
    mine = select(1).select_from(event).where(holds, by == selection.rater).exists()
    unlabelled = _number_of_labels(dialect) == 0  # as most are; the rest is not computed then
    return or_(unlabelled, and_(people < selection.needs, ~mine))


def _number_of_labels(dialect: str) -> ColumnElement[int]:
    if dialect == "postgresql":
        return func.jsonb_array_length(func.coalesce(_VALUE["labels"], literal([], JSONB)))
    return func.coalesce(func.json_array_length(_VALUE, "$.labels"), 0)


def _label_events(
    dialect: str,
) -> tuple[TableValuedAlias, ColumnElement[str], ColumnElement[str], ColumnElement[int]]:
    """Return the events of an evaluation as rows: of whom, which action, and their number."""
    if dialect == "postgresql":
        labels = func.coalesce(_VALUE["labels"], literal([], JSONB))
        # WITH ORDINALITY numbers the elements, as the column `key` of SQLite's json_each does.
        rows = func.jsonb_array_elements(labels).table_valued(
            column("value", JSONB), with_ordinality="key"
        )
        event = rows.render_derived()
        by, action = (event.c.value[name].as_string() for name in ("by", "action"))
    else:
        event = func.json_each(_VALUE, "$.labels").table_valued("key", "value")
        by, action = (func.json_extract(event.c.value, f"$.{name}") for name in ("by", "action"))
    return event, by, action, event.c.key


def _is_rated(selection: QueueSelection, dialect: str) -> ColumnElement[bool]:
    """Ask who has labelled an evaluation; who has withdrawn their labels has labelled it too."""
    event, by, _action, _number = _label_events(dialect)
    mine = select(1).select_from(event).where(by == selection.rater).exists()
    match selection.rated:
        case "yes":
            return mine
        case "no":
            return ~mine
        case _:
            return and_(_number_of_labels(dialect) > 0, ~mine)
