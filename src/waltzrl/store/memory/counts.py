"""Counts: how often judge and people agree, what bundles served, how agents and plans did."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Subquery,
    and_,
    case,
    func,
    select,
    true,
)

from waltzrl.store.database import decode_row
from waltzrl.store.memory.labels import Calibration, LabelEvent, SampleCounts
from waltzrl.store.memory.plans import TASKS
from waltzrl.store.memory.sampling import (
    OVER_REFUSES,
    UNSAFE,
    ReachedPlace,
    SampleFrontier,
    place_column,
    place_of,
)
from waltzrl.store.memory.schemas import EVALUATIONS, ROUTE
from waltzrl.store.memory.search import not_expired
from waltzrl.store.memory.tables import ITEMS

Group = TypeVar("Group", bound=Hashable)


class ServedCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was served; shadow answers, which no user saw, and routed tasks are left out."""

    answers: int = 0
    """The number of answers, errors included."""
    revised: int = 0
    refused: int = 0
    errors: int = 0
    unsafe_scored: int = 0
    """The number of those of which the judge said whether they are unsafe."""
    unsafe: int = 0
    overrefusal_scored: int = 0
    """The number of those of which the judge said whether they are over-refusals."""
    overrefusal: int = 0
    """The number of over-refusals."""
    reviewed: int = 0
    """The number of answers whose returned reply was reviewed."""
    unsafe_left: int = 0
    """The number of reviewed ones that were returned although the reviewer called them unsafe."""
    incidents: int = 0
    """The number of answers whose reply people whose labels steer releases called unsafe, all of
    them or some."""
    thumbs_up: int = 0
    """The number of users' thumbs up."""
    thumbs_down: int = 0
    labels: Calibration = Calibration()
    """The labels of these answers."""


class BundleCounts(ServedCounts, frozen=True, kw_only=True):
    """What one bundle served."""

    bundle: str
    p50: float | None = None
    """Milliseconds that half of the answers took at most; None when all were errors."""
    p95: float | None = None
    added_p95: float | None = None
    """Milliseconds that the gateway itself took for 95 % of the answers at most, reviews included
    and the model's draft and revisions not."""


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
    """The number of trials, with those that it failed and those whose result was declined."""


_REFERENCE = [ITEMS.c.value["reference", name].as_string() for name in ("unsafe", "overrefuses")]
_JUDGE: ColumnElement[str | None] = ITEMS.c.value["verdict", "judge"].as_string()
_LABELS = (
    *(ITEMS.c.decision, ITEMS.c.safe),
    *(UNSAFE.label("unsafe"), OVER_REFUSES.label("overrefusal")),
    ITEMS.c.value["reference", "unsafe"].as_string().label("reference"),
    ITEMS.c.value["thumb"].as_string().label("thumb"),
    ITEMS.c.value["sampled"].as_boolean().label("sampled"),
)
"""The columns of an answer that `_list_counts` needs."""
_MILLISECONDS = ITEMS.c.value["milliseconds"].as_float()
_ADDED = ITEMS.c.value["added_milliseconds"].as_float()
_EVALUATIONS = ITEMS.c.namespace == ".".join(EVALUATIONS)


def read_calibration(connection: Connection) -> Calibration:
    """Compare the judge with people, on the random sample of all answers that it judged.

    Only labels of people whose role steers releases count. The judge is the one that gave the
    newest verdict: an earlier one's errors are not its own.
    """
    # One group of all; without an answer the defaultdict gives an empty one.
    return _compare_samples(connection, (not_expired(time.time()),), (), lambda _: True)[True]


def release_calibrations(connection: Connection, release: str) -> Mapping[str, Calibration]:
    """Compare the judge with people as `read_calibration`, for each arm of a release by itself."""
    of_release = (ITEMS.c.release == release, not_expired(time.time()))
    return _compare_samples(connection, of_release, (ITEMS.c.arm,), lambda row: str(row.arm))


def by_newest_judge() -> ColumnElement[bool]:
    """Return the condition of answers whose verdict is of the judge that gave the newest one."""
    judged = select(_JUDGE).where(_EVALUATIONS, _JUDGE.is_not(None))
    return _JUDGE.in_(judged.order_by(ITEMS.c.time.desc()).limit(1))


def label_events(connection: Connection) -> Iterator[list[LabelEvent]]:
    """Yield what people said of each exchange whose reply somebody labelled."""
    query = select(ITEMS.c.value["labels"]).where(
        _EVALUATIONS, ITEMS.c.label.is_not(None), not_expired(time.time())
    )
    for labels in connection.execute(query).scalars():
        yield msgspec.convert(labels, list[LabelEvent])


def bundle_counts(connection: Connection, since: float) -> list[BundleCounts]:
    """Count what each bundle did since a time, seconds since the epoch."""
    answers = _rank_answers(since)
    quantiles = (
        _select_quantile(answers, "milliseconds", 50).label("p50"),
        _select_quantile(answers, "milliseconds", 95).label("p95"),
        _select_quantile(answers, "added", 95).label("added_p95"),
    )
    query = (
        select(answers.c.bundle, *_list_counts(answers, true()), *quantiles)
        .group_by(answers.c.bundle)
        .order_by(answers.c.bundle)
    )
    rows = connection.execute(query).all()
    counts = [decode_row(row, BundleCounts) for row in rows]
    labels = _compare_samples(connection, _match_served(since), (), lambda row: str(row.bundle))
    return [msgspec.structs.replace(each, labels=labels[each.bundle]) for each in counts]


def period_counts(
    connection: Connection, ends: Sequence[float], seconds: float
) -> list[PeriodCounts]:
    """Count what was served in periods of time, by category.

    Args:
        connection: to the memory.
        ends: [P] of the periods, seconds since the epoch, the earliest first.
        seconds: length of the first period; the others begin where the one before ends.
    """
    # The first end after the time decides, so the ends must ascend.
    period = case(*[(ITEMS.c.time < end, number) for number, end in enumerate(ends)])
    columns = (period.label("period"), func.coalesce(ITEMS.c.category, "").label("category"))
    served = (*_match_served(ends[0] - seconds), ITEMS.c.time < ends[-1])
    answers = select(*columns, *_LABELS).where(*served).subquery()
    groups = (answers.c.period, answers.c.category)
    counts = _list_counts(answers, answers.c.sampled.is_(True))
    rows = connection.execute(select(*groups, *counts).group_by(*groups)).all()
    sampled = ITEMS.c.value["sampled"].as_boolean().is_(True)
    labels = _compare_samples(
        connection, (*served, sampled), columns, lambda row: (row.period, row.category)
    )
    return [
        msgspec.structs.replace(
            each, labels=labels.get((each.period, each.category), Calibration())
        )
        for each in (decode_row(row, PeriodCounts) for row in rows)
    ]


def add_calibrations(calibrations: Iterable[Calibration]) -> Calibration:
    """Add up the counts of samples of different answers."""
    each = list(calibrations)
    return Calibration(
        unsafe=_sum_samples([calibration.unsafe for calibration in each]),
        overrefusal=_sum_samples([calibration.overrefusal for calibration in each]),
    )


def agent_counts(connection: Connection) -> list[AgentCounts]:
    """Count the tasks that agents did or are to blame for."""
    tasks, value = ITEMS.c.namespace.startswith(f"{'.'.join(TASKS)}."), ITEMS.c.value
    agent, task_type = value["agent_id"].as_string(), value["task_type"].as_string()
    did = value["state"].as_string().in_(("done", "coached"))
    query = (
        select(
            agent.label("agent_id"),
            task_type.label("task_type"),
            _count_where(did, "successes"),
            func.count().label("trials"),
        )
        .where(tasks, did | (value["fault"].as_string() == "agent"), not_expired(time.time()))
        .group_by(agent, task_type)
        .order_by(agent, task_type)
    )
    rows = connection.execute(query).all()
    return [decode_row(row, AgentCounts) for row in rows]


def task_states(connection: Connection, plan_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return of each routed plan the stored states of its tasks, by id."""
    namespaces = {".".join((*TASKS, plan_id)): plan_id for plan_id in plan_ids}
    state = ITEMS.c.value["state"].as_string()
    query = select(ITEMS.c.namespace, ITEMS.c.key, state).where(
        ITEMS.c.namespace.in_(namespaces), not_expired(time.time())
    )
    states: dict[str, dict[str, str]] = {plan_id: {} for plan_id in plan_ids}
    for namespace, task_id, stored in connection.execute(query):
        states[namespaces[namespace]][task_id] = stored
    return states


def read_reviewed_tasks(connection: Connection, plan_id: str) -> frozenset[str]:
    """Return the ids of a routed plan's tasks whose evaluations are kept."""
    ids = (ITEMS.c.key > f"{plan_id}/", ITEMS.c.key < f"{plan_id}0")  # "0" follows "/"
    query = select(ITEMS.c.key).where(_EVALUATIONS, *ids, not_expired(time.time()))
    return frozenset(key.removeprefix(f"{plan_id}/") for key in connection.scalars(query))


def _match_served(since: float) -> tuple[ColumnElement[bool], ...]:
    """Return what holds of the answers that users got since a time."""
    by_bundle = ITEMS.c.value["api"].as_string().is_distinct_from(ROUTE)  # not by a task's agent
    # of a reply that the caller has already, nothing was served
    answered = ITEMS.c.value["mode"].as_string().is_distinct_from("review")
    return (
        *(_EVALUATIONS, by_bundle, answered),
        *(ITEMS.c.time >= since, ITEMS.c.arm != "shadow", not_expired(time.time())),
    )


def _rank_answers(since: float) -> Subquery:
    """Read the answers from their JSON once, ranked by their times; errors are ranked apart."""
    times = (_MILLISECONDS.label("milliseconds"), _ADDED.label("added"))
    columns = (ITEMS.c.bundle, *_LABELS, *times)
    # The CTE parses the JSON of each answer once, and not again for each rank.
    read = select(*columns).where(*_match_served(since)).cte()
    group = (read.c.bundle, read.c.decision == "error")
    ranks = [
        func.row_number().over(partition_by=group, order_by=read.c[time]).label(f"{time}_rank")
        for time in ("milliseconds", "added")
    ]
    count = func.count().over(partition_by=group)
    return select(read, *ranks, count.label("n")).subquery()


def _list_counts(answers: Subquery, judged: ColumnElement[bool]) -> list[ColumnElement[int]]:
    """Return the fields of `ServedCounts`.

    Args:
        answers: with the columns of `_LABELS`.
        judged: whose verdicts count.
    """
    unsafe, overrefusal = answers.c.unsafe, answers.c.overrefusal
    return [
        func.count().label("answers"),
        _count_where(answers.c.decision == "revised", "revised"),
        _count_where(answers.c.decision == "refused", "refused"),
        _count_where(answers.c.decision == "error", "errors"),
        _count_where(judged & unsafe.is_not(None), "unsafe_scored"),
        _count_where(judged & unsafe, "unsafe"),
        _count_where(judged & overrefusal.is_not(None), "overrefusal_scored"),
        _count_where(judged & overrefusal, "overrefusal"),
        _count_where(answers.c.safe.is_not(None), "reviewed"),
        _count_where(answers.c.safe.is_(False), "unsafe_left"),
        _count_where(answers.c.reference.in_(("yes", "disputed")), "incidents"),
        _count_where(answers.c.thumb == "up", "thumbs_up"),
        _count_where(answers.c.thumb == "down", "thumbs_down"),
    ]


def _select_quantile(answers: Subquery, time: str, percent: int) -> ColumnElement[float | None]:
    """Return the nearest-rank quantile of a time of the answers, errors excluded."""
    # The division rounds up: the nearest rank of 95 % of 10 answers is the tenth.
    at_rank = answers.c[f"{time}_rank"] == (answers.c.n * percent + 99) // 100
    # One row of the group has the rank; max ignores the nulls of the others.
    return func.max(case((and_(answers.c.decision != "error", at_rank), answers.c[time])))


def _count_where(condition: ColumnElement[bool], name: str) -> ColumnElement[int]:
    # CASE takes a null condition, as of an unscored answer, for false.
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0).label(name)


def _compare_samples(
    connection: Connection,
    population: Sequence[ColumnElement[bool]],
    columns: Sequence[ColumnElement[object]],
    group_of: Callable[[Row[tuple[object, ...]]], Group],
) -> defaultdict[Group, Calibration]:
    """Compare the judge with people on the random sample of a population, in groups.

    Args:
        connection: to the memory.
        population: what holds of the answers that are counted.
        columns: labelled ones that `group_of` reads.
        group_of: the group of a row, which also has `bundle`.
    """
    calibrations: defaultdict[Group, Calibration] = defaultdict(Calibration)
    frontiers = _read_frontiers(connection)
    if not frontiers:
        return calibrations
    # Nothing beyond the furthest labelled place of any bundle can count, so it is not read.
    furthest = max([frontier.furthest for frontier in frontiers.values()])
    read = (ITEMS.c.key, ITEMS.c.bundle, ITEMS.c.time, UNSAFE.label("unsafe"))
    people = [column.label(f"people_{number}") for number, column in enumerate(_REFERENCE)]
    query = select(*read, OVER_REFUSES.label("overrefusal"), *people, *columns).where(
        _EVALUATIONS,
        by_newest_judge(),
        place_column(connection.dialect.name) <= furthest,
        *population,
    )
    answers: dict[Group, tuple[Counter[_Pair], Counter[_Pair]]]
    answers = defaultdict(lambda: (Counter(), Counter()))
    for row in connection.execute(query):
        frontier, pairs = frontiers.get(row.bundle), answers[group_of(row)]
        said = ((row.unsafe, row.people_0), (row.overrefusal, row.people_1))
        for counter, (judge, reference) in zip(pairs, said, strict=True):
            # By this answer alone: the other verdict must not change the odds of being drawn.
            place = place_of(row.key, is_bad=bool(judge))
            if judge is not None and frontier and frontier.has_passed(row.time, place):
                counter[judge, reference] += 1
    for group, (unsafe, overrefusal) in answers.items():
        calibrations[group] = Calibration(
            unsafe=_tally_pairs(unsafe), overrefusal=_tally_pairs(overrefusal)
        )
    return calibrations


def _read_frontiers(connection: Connection) -> dict[str, SampleFrontier]:
    """Return how far the random sample of each bundle's answers was labelled."""
    labels = ITEMS.c.value["labels"].label("labels")
    query = select(
        ITEMS.c.key,
        ITEMS.c.bundle,
        UNSAFE.label("unsafe"),
        OVER_REFUSES.label("overrefusal"),
        labels,
    ).where(
        _EVALUATIONS,
        ITEMS.c.label.is_not(None),
        _REFERENCE[0].is_not(None),
        by_newest_judge(),
    )
    reached: dict[str, list[ReachedPlace]] = defaultdict(list)
    for row in connection.execute(query):
        place = place_of(row.key, is_bad=bool(row.unsafe or row.overrefusal))
        for event in msgspec.convert(row.labels, list[LabelEvent]):
            if event.selection == "sample" and event.steers:
                reached[row.bundle].append(ReachedPlace(event.time, place))
    return {bundle: SampleFrontier(places) for bundle, places in reached.items()}


_Pair = tuple[bool, str | None]
"""The judge's answer, and people's: yes, no, disputed, or None where nobody may say."""


def _tally_pairs(pairs: Counter[_Pair]) -> SampleCounts:
    return SampleCounts(
        true_positives=pairs[True, "yes"],
        false_negatives=pairs[False, "yes"],
        false_positives=pairs[True, "no"],
        true_negatives=pairs[False, "no"],
        unknown_positives=pairs[True, "disputed"] + pairs[True, None],
        unknown_negatives=pairs[False, "disputed"] + pairs[False, None],
    )


def _sum_samples(counts: Sequence[SampleCounts]) -> SampleCounts:
    names = SampleCounts.__struct_fields__
    return SampleCounts(**{name: sum([getattr(each, name) for each in counts]) for name in names})
