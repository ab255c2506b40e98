"""Counts: how often judge and people agree, what bundles served, how agents and plans did."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, Subquery, and_, case, func, select, true

from waltzrl.memory.labels import LabelEvent
from waltzrl.memory.plans import TASKS
from waltzrl.memory.schemas import EVALUATIONS, ROUTE
from waltzrl.memory.search import not_expired
from waltzrl.memory.tables import ITEMS


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """One yes-or-no question: the judge's answers against those of people, which count as true."""

    true_positives: int = 0
    """Both said yes."""
    false_negatives: int = 0
    """People said yes, the judge no."""
    false_positives: int = 0
    true_negatives: int = 0
    disputed_positives: int = 0
    """People differ, the judge said yes."""
    disputed_negatives: int = 0


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How reliable the online judge is, measured on answers that people labelled."""

    unsafe: Counts
    """Was the reply unsafe?"""
    needless: Counts
    """Was it an over-refusal?"""


class ServedCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was served; shadow answers, which no user saw, and routed tasks are left out."""

    answers: int = 0
    """Errors included."""
    revised: int = 0
    refused: int = 0
    errors: int = 0
    unsafe_scored: int = 0
    """Of which the judge said whether they are unsafe."""
    unsafe: int = 0
    needless_scored: int = 0
    """Of which the judge said whether they are over-refusals."""
    needless: int = 0
    """Over-refusals."""
    reviewed: int = 0
    """Whose returned reply was reviewed."""
    unsafe_left: int = 0
    """Of the reviewed: returned although the reviewer called it unsafe."""
    incidents: int = 0
    """Whose reply people whose labels steer releases called unsafe, all of them or some."""
    thumbs_up: int = 0
    """Of users."""
    thumbs_down: int = 0


class BundleCounts(ServedCounts, frozen=True, kw_only=True):
    """What one bundle served."""

    bundle: str
    p50: float | None = None
    """Milliseconds that half of the answers took at most; None when all were errors."""
    p95: float | None = None
    added_p95: float | None = None
    """Milliseconds that reviews and revisions added to 95 % of the answers at most."""


class PeriodCounts(ServedCounts, frozen=True, kw_only=True):
    """What was served of one category in one period of time.

    Of verdicts only those of the random sample count: of a candidate more answers are judged.
    """

    period: int
    """0 for the first."""
    category: str
    """Empty where no rule matched."""


class AgentCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How often one agent did well at one type of task."""

    agent_id: str
    task_type: str
    successes: int
    """Tasks that it did, as they were or after coaching."""
    trials: int
    """Also those that it failed, and those whose result was declined."""


_UNSAFE = ITEMS.c.value["verdict", "unsafe"].as_boolean()
_NEEDLESS = ITEMS.c.value["verdict", "overrefuses"].as_boolean()
_REFERENCE = ("unsafe", "overrefuses")
_JUDGE = ITEMS.c.value["verdict", "judge"].as_string()
_LABELS = (
    *(ITEMS.c.decision, ITEMS.c.safe),
    *(_UNSAFE.label("unsafe"), _NEEDLESS.label("needless")),
    ITEMS.c.value["reference", "unsafe"].as_string().label("reference"),
    ITEMS.c.value["thumb"].as_string().label("thumb"),
    ITEMS.c.value["sampled"].as_boolean().label("sampled"),
)
"""What `_counts` needs of an answer."""
_MILLISECONDS = ITEMS.c.value["milliseconds"].as_float()
_ADDED = _MILLISECONDS - ITEMS.c.value["collaboration", "draft", "milliseconds"].as_float()
_EVALUATIONS = ITEMS.c.namespace == ".".join(EVALUATIONS)


def calibration(connection: Connection, now: float) -> Calibration:
    """Compare the judge with people whose labels steer releases, where both answered.

    The judge is the one that gave the newest verdict: an earlier one's errors are not its own.
    """
    unsafe, needless = [ITEMS.c.value["reference", name].as_string() for name in _REFERENCE]
    answers = (unsafe, needless, _UNSAFE, _NEEDLESS)
    judged = select(_JUDGE).where(_EVALUATIONS, _JUDGE.is_not(None))
    newest = connection.execute(judged.order_by(ITEMS.c.time.desc()).limit(1)).scalar()
    query = (
        select(*answers, func.count())
        .where(_EVALUATIONS, ITEMS.c.label.is_not(None), _JUDGE.in_([newest]), not_expired(now))
        .group_by(*answers)
    )
    rows = connection.execute(query).all()
    return Calibration(
        unsafe=_tally((judge, people, n) for people, _, judge, _, n in rows),
        needless=_tally((judge, people, n) for _, people, _, judge, n in rows),
    )


def label_events(connection: Connection, now: float) -> Iterator[list[LabelEvent]]:
    """Yield what people said of each exchange whose reply somebody labelled."""
    query = select(ITEMS.c.value["labels"]).where(
        _EVALUATIONS, ITEMS.c.label.is_not(None), not_expired(now)
    )
    for labels in connection.execute(query).scalars():
        yield msgspec.convert(labels, list[LabelEvent])


def bundle_counts(connection: Connection, since: float, now: float) -> list[BundleCounts]:
    """Count what each bundle did since a time, seconds since the epoch."""
    answers = _answers(since, now)
    quantiles = (
        _quantile(answers, "milliseconds", 50).label("p50"),
        _quantile(answers, "milliseconds", 95).label("p95"),
        _quantile(answers, "added", 95).label("added_p95"),
    )
    query = (
        select(answers.c.bundle, *_counts(answers, true()), *quantiles)
        .group_by(answers.c.bundle)
        .order_by(answers.c.bundle)
    )
    rows = connection.execute(query).all()
    return msgspec.convert(rows, list[BundleCounts], from_attributes=True)


def period_counts(
    connection: Connection, ends: Sequence[float], seconds: float, now: float
) -> list[PeriodCounts]:
    """Count what was served in periods of time, by category.

    Args:
        connection: to the memory.
        ends: [P] of the periods, seconds since the epoch, the earliest first.
        seconds: length of the first period; the others begin where the one before ends.
        now: seconds since the epoch; what has expired by then is left out.
    """
    period = case(*[(ITEMS.c.time < end, number) for number, end in enumerate(ends)])
    columns = (period.label("period"), func.coalesce(ITEMS.c.category, "").label("category"))
    read = select(*columns, *_LABELS).where(
        *_served(ends[0] - seconds, now), ITEMS.c.time < ends[-1]
    )
    answers = read.subquery()
    groups = (answers.c.period, answers.c.category)
    counts = _counts(answers, answers.c.sampled.is_not(False))  # earlier versions stored no flag
    rows = connection.execute(select(*groups, *counts).group_by(*groups)).all()
    return msgspec.convert(rows, list[PeriodCounts], from_attributes=True)


def agent_counts(connection: Connection, now: float) -> list[AgentCounts]:
    """Count the tasks that agents did or are to blame for."""
    tasks, value = ITEMS.c.namespace.startswith(f"{'.'.join(TASKS)}."), ITEMS.c.value
    agent, task_type = value["agent_id"].as_string(), value["task_type"].as_string()
    did = value["state"].as_string().in_(("done", "coached"))
    query = (
        select(
            agent.label("agent_id"),
            task_type.label("task_type"),
            _count(did, "successes"),
            func.count().label("trials"),
        )
        .where(tasks, did | (value["fault"].as_string() == "agent"), not_expired(now))
        .group_by(agent, task_type)
        .order_by(agent, task_type)
    )
    rows = connection.execute(query).all()
    return msgspec.convert(rows, list[AgentCounts], from_attributes=True)


def task_states(
    connection: Connection, plan_ids: Sequence[str], now: float
) -> dict[str, dict[str, str]]:
    """Return of each routed plan the stored states of its tasks, by id."""
    namespaces = {".".join((*TASKS, plan_id)): plan_id for plan_id in plan_ids}
    state = ITEMS.c.value["state"].as_string()
    query = select(ITEMS.c.namespace, ITEMS.c.key, state).where(
        ITEMS.c.namespace.in_(namespaces), not_expired(now)
    )
    states: dict[str, dict[str, str]] = {plan_id: {} for plan_id in plan_ids}
    for namespace, task_id, stored in connection.execute(query):
        states[namespaces[namespace]][task_id] = stored
    return states


def reviewed_tasks(connection: Connection, plan_id: str, now: float) -> frozenset[str]:
    """Return the ids of a routed plan's tasks whose evaluations are kept."""
    ids = (ITEMS.c.key > f"{plan_id}/", ITEMS.c.key < f"{plan_id}0")  # "0" follows "/"
    query = select(ITEMS.c.key).where(_EVALUATIONS, *ids, not_expired(now))
    return frozenset(key.removeprefix(f"{plan_id}/") for key in connection.scalars(query))


def _served(since: float, now: float) -> tuple[ColumnElement[bool], ...]:
    """Return what holds of the answers that users got since a time."""
    by_bundle = ITEMS.c.value["api"].as_string().is_distinct_from(ROUTE)  # not by a task's agent
    # of a reply that the caller has already, nothing was served
    answered = ITEMS.c.value["mode"].as_string().is_distinct_from("review")
    return (
        *(_EVALUATIONS, by_bundle, answered),
        *(ITEMS.c.time >= since, ITEMS.c.arm != "shadow", not_expired(now)),
    )


def _answers(since: float, now: float) -> Subquery:
    """Read the answers from their JSON once, ranked by their times; errors are ranked apart."""
    times = (_MILLISECONDS.label("milliseconds"), _ADDED.label("added"))
    columns = (ITEMS.c.bundle, *_LABELS, *times)
    read = select(*columns).where(*_served(since, now)).cte()
    group = (read.c.bundle, read.c.decision == "error")
    ranks = [
        func.row_number().over(partition_by=group, order_by=read.c[time]).label(f"{time}_rank")
        for time in ("milliseconds", "added")
    ]
    count = func.count().over(partition_by=group)
    return select(read, *ranks, count.label("n")).subquery()


def _counts(answers: Subquery, judged: ColumnElement[bool]) -> list[ColumnElement[int]]:
    """Return the fields of `ServedCounts`.

    Args:
        answers: with the columns of `_LABELS`.
        judged: whose verdicts count.
    """
    unsafe, needless = answers.c.unsafe, answers.c.needless
    return [
        func.count().label("answers"),
        _count(answers.c.decision == "revised", "revised"),
        _count(answers.c.decision == "refused", "refused"),
        _count(answers.c.decision == "error", "errors"),
        _count(judged & unsafe.is_not(None), "unsafe_scored"),
        _count(judged & unsafe, "unsafe"),
        _count(judged & needless.is_not(None), "needless_scored"),
        _count(judged & needless, "needless"),
        _count(answers.c.safe.is_not(None), "reviewed"),
        _count(answers.c.safe.is_(False), "unsafe_left"),
        _count(answers.c.reference.in_(("yes", "disputed")), "incidents"),
        _count(answers.c.thumb == "up", "thumbs_up"),
        _count(answers.c.thumb == "down", "thumbs_down"),
    ]


def _quantile(answers: Subquery, time: str, percent: int) -> ColumnElement[float | None]:
    """Return the nearest-rank quantile of a time of the answers, errors excluded."""
    at_rank = answers.c[f"{time}_rank"] == (answers.c.n * percent + 99) // 100
    return func.max(case((and_(answers.c.decision != "error", at_rank), answers.c[time])))


def _count(condition: ColumnElement[bool], name: str) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0).label(name)


def _tally(answers: Iterable[tuple[bool | None, str | None, int]]) -> Counts:
    """Add up (judge's answer, people's, how often), where both answered."""
    count = Counter[tuple[bool | None, str | None]]()
    for judge, people, times in answers:
        count[judge, people] += times
    return Counts(
        true_positives=count[True, "yes"],
        false_negatives=count[False, "yes"],
        false_positives=count[True, "no"],
        true_negatives=count[False, "no"],
        disputed_positives=count[True, "disputed"],
        disputed_negatives=count[False, "disputed"],
    )
