"""What was served, as typed records: stored, judged, labelled, counted and retrieved."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import structs
from sqlalchemy import ColumnElement, Connection, select

from waltzrl.errors import InputError
from waltzrl.records import ServedExchange, Verdict
from waltzrl.store.database import reading, writing
from waltzrl.store.memory.counts import (
    agent_counts,
    bundle_counts,
    label_events,
    period_counts,
    read_calibration,
    read_reviewed_tasks,
    release_calibrations,
    task_states,
)
from waltzrl.store.memory.items import Filter, Json, Namespace, PutOp
from waltzrl.store.memory.labels import LabelEvent, double_answers, find_undoing
from waltzrl.store.memory.leases import end_lease, find_holder, take_next
from waltzrl.store.memory.queue import (
    QueueSelection,
    count_queue,
    find_neighbours,
    keys_in,
    read_queue,
)
from waltzrl.store.memory.schemas import (
    COACHING,
    EVALUATIONS,
    TRAINING,
    CoachingSession,
    Outcome,
    SafetyEvaluation,
    Thumb,
    TrainingSample,
    coaching_of,
    evaluation_of,
    request_hash,
)
from waltzrl.store.memory.scrubbing import replace_unstorable
from waltzrl.store.memory.search import build_conditions, not_expired
from waltzrl.store.memory.store import MemoryStore, delete_some
from waltzrl.store.memory.tables import ITEMS
from waltzrl.store.notices import give_notice

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

PAGE = 500
"""Evaluations that `every_evaluation` reads at a time."""
DAY = 86_400.0

_INDEXED: Mapping[Namespace, list[str]] = {
    EVALUATIONS: [
        "collaboration.prompt.messages[-1].content",
        "collaboration.draft.text",
        "collaboration.rounds[*].revision.text",
    ],
    COACHING: ["task"],
    TRAINING: [],
}
"""Full-text search covers the requests of records, and the replies of what was served."""


def _in_transaction(
    answer: Callable[Concatenate[Connection, Arguments], Returned],
) -> Callable[Concatenate["SafetyMemory", Arguments], Returned]:
    """Return a method that answers a question about the memory as it is at one moment."""

    @wraps(answer)
    def ask(
        memory: "SafetyMemory", /, *args: Arguments.args, **options: Arguments.kwargs
    ) -> Returned:
        with reading(memory.store.engine) as connection:
            return answer(connection, *args, **options)

    return ask


class SafetyMemory:
    """The three kinds of records of `waltzrl.store.memory.schemas`, in one store."""

    def __init__(
        self,
        store: MemoryStore,
        digest: Callable[[str], str],
        retention_days: Mapping[str, float],
        categories: Mapping[str, str],
    ) -> None:
        """Keep records in `store`.

        Args:
            store: scrubs them.
            digest: makes a pseudonym of a subject.
            retention_days: how long `evaluations`, `coaching` and `training` are kept, counted
                from when they happened; a missing kind is kept until it is erased.
            categories: rule id -> category, of the stage-1 rules.
        """
        self.store = store
        self.digest = digest
        """Makes a pseudonym of a subject."""
        self._days = dict(retention_days)
        self._categories = dict(categories)

    queue = _in_transaction(read_queue)
    neighbours = _in_transaction(find_neighbours)
    queue_length = _in_transaction(count_queue)
    ids = _in_transaction(keys_in)
    holder = _in_transaction(find_holder)
    calibration = _in_transaction(read_calibration)
    release_calibrations = _in_transaction(release_calibrations)
    rates = _in_transaction(bundle_counts)
    periods = _in_transaction(period_counts)
    agents = _in_transaction(agent_counts)
    task_states = _in_transaction(task_states)
    reviewed_tasks = _in_transaction(read_reviewed_tasks)

    def remember(self, exchanges: Sequence[ServedExchange]) -> list[SafetyEvaluation]:
        """Store exchanges, and the coaching sessions in them, in one transaction.

        Returns:
            [exchanges] the evaluations as they were stored: scrubbed.

        Raises:
            StorageError: the database failed, and nothing was stored.
        """
        evaluations = [
            evaluation_of(
                exchange, scrub=self.store.scrub, digest=self.digest, categories=self._categories
            )
            for exchange in exchanges
        ]
        sessions = [session for session in map(coaching_of, evaluations) if session is not None]
        # Scrubbed before `batch`, which then leaves them alone, because they are also returned.
        puts = [self.store.scrubbed(self._put(evaluation)) for evaluation in evaluations]
        self.store.batch([*puts, *map(self._put, sessions)])
        return [msgspec.convert(put.value, SafetyEvaluation) for put in puts]

    def store_safety_evaluation(self, evaluation: SafetyEvaluation) -> None:
        """Store an evaluation, in place of any with its id."""
        self.store.batch([self._put(evaluation)])

    def store_coaching_session(self, session: CoachingSession) -> None:
        """Store a coaching session, in place of any with its id."""
        self.store.batch([self._put(session)])

    def store_dir_training_sample(self, *samples: TrainingSample) -> None:
        """Store rounds as steps of trajectories, each in place of any of that round."""
        self.store.batch([self._put(sample) for sample in samples])

    def store_verdict(self, id_: str, verdict: Verdict, *, sampled: bool = True) -> bool:
        """Add the online judge's verdict; return whether the evaluation still exists.

        Args:
            id_: of the exchange.
            verdict: on the returned reply.
            sampled: whether the exchange is in the random sample of all that is served.
        """
        fields = {"verdict": msgspec.to_builtins(verdict), "sampled": sampled}
        return self.store.amend(EVALUATIONS, id_, fields)

    def store_thumb(self, id_: str, caller: str, thumb: Thumb) -> bool:
        """Keep what a user said of a reply, in place of what was said before.

        Args:
            id_: of the exchange.
            caller: name of the API key; of another's exchange nothing is kept.
            thumb: the answer.

        Returns:
            Whether this caller has such an exchange.
        """
        item = self.store.get(EVALUATIONS, id_)
        if item is None or item.value["who"] != caller:
            return False
        return self.store.amend(EVALUATIONS, id_, {"thumb": thumb})

    def label(self, id_: str, event: LabelEvent) -> None:
        """Add what a person said, scrubbed, and notify all gateways, whose audit logs keep it too.

        Raises:
            InputError: the evaluation does not exist.
        """
        clean = structs.replace(
            event,
            by=self.rater(event.by),
            correction=self.store.scrub(replace_unstorable(event.correction)),
            comment=self.store.scrub(replace_unstorable(event.comment)),
        )

        self._add_events(id_, lambda _: [clean])

    def undo_label(self, id_: str, by: str) -> None:
        """Undo the last label of a person by further events; nothing happens without one.

        Raises:
            InputError: the evaluation does not exist.
        """
        # What is said again was scrubbed when it was said first.
        self._add_events(id_, lambda labels: find_undoing(labels, self.rater(by)))

    def assign(self, id_: str, name: str) -> bool:
        """Give an evaluation to a person, none for an empty name; return whether it exists."""
        return self.store.amend(EVALUATIONS, id_, {"assignee": self.rater(name) or None})

    def rater(self, name: str) -> str:
        """Return the name under which a person's labels are kept: scrubbed, and still distinct."""
        clean = self.store.scrub(replace_unstorable(name))
        return clean if clean == name else f"{clean} {self.digest(name)[:8]}"

    def take_next(self, selection: QueueSelection, after: str = "") -> str | None:
        """Give `selection.rater` the next evaluation of a queue; see `leases`."""
        with writing(self.store.engine) as connection:
            return take_next(connection, selection, after)

    def double_answers(self) -> Mapping[str, list[tuple[bool | None, bool | None]]]:
        """Return by question what two people answered of the same exchange.

        Exchanges are those whose reply somebody labelled.
        """
        with reading(self.store.engine) as connection:
            return double_answers(label_events(connection))

    def evaluation(self, id_: str) -> SafetyEvaluation | None:
        """Return one evaluation; None when it does not exist."""
        item = self.store.get(EVALUATIONS, id_)
        return None if item is None else msgspec.convert(item.value, SafetyEvaluation)

    def evaluations(
        self, *, limit: int, before: float | None = None, **filters: Json
    ) -> list[SafetyEvaluation]:
        """Return matching evaluations, the newest first.

        Args:
            limit: how many at most.
            before: seconds since the epoch; only earlier ones.
            filters: as of `MemoryStore.search`, such as `label="unsafe"`.
        """
        earlier = [] if before is None else [ITEMS.c.time < before]
        return self._read(limit, earlier, filters, ITEMS.c.time.desc(), ITEMS.c.id.desc())

    def every_evaluation(self) -> Iterator[SafetyEvaluation]:
        """Yield all evaluations, the oldest first; a page is read at a time."""
        page = self._read(PAGE, [], {}, ITEMS.c.time, ITEMS.c.key)
        while page:
            yield from page
            last = page[-1]
            after = (ITEMS.c.time > last.time) | (
                (ITEMS.c.time == last.time) & (ITEMS.c.key > last.id)
            )
            page = self._read(PAGE, [after], {}, ITEMS.c.time, ITEMS.c.key)

    def retrieve_safety_evaluations(
        self, safe: bool | None = None, limit: int = 10
    ) -> list[SafetyEvaluation]:
        """Return the newest evaluations; of safe or unsafe replies only, when `safe` is given."""
        if safe is None:
            return self.evaluations(limit=limit)
        return self.evaluations(limit=limit, safe=safe)

    def retrieve_similar_coaching(
        self, request: str, limit: int = 4, outcome: Outcome | None = None
    ) -> list[CoachingSession]:
        """Return coaching sessions for a request like this one.

        First those with the same request, then those that share words with it, the best first.

        Args:
            request: its text.
            limit: how many at most.
            outcome: None for sessions with any outcome.
        """
        clean = self.store.scrub(request)
        ended: Filter = {} if outcome is None else {"outcome": outcome}
        same: Filter = {**ended, "request_hash": request_hash(clean)}
        items = self.store.search(COACHING, filter=same, limit=limit)
        if len(items) < limit:
            items += self.store.search(COACHING, query=clean, filter=ended, limit=limit)
        # A session may be found both ways; a dict keeps the place of the first.
        values = list({item.key: item.value for item in items}.values())
        return [msgspec.convert(value, CoachingSession) for value in values[:limit]]

    def retrieve_dir_training_dataset(self, limit: int) -> list[TrainingSample]:
        """Return the newest training samples."""
        items = self.store.search(TRAINING, limit=limit)
        return [msgspec.convert(item.value, TrainingSample) for item in items]

    def sweep(self, now: float) -> int:
        """Delete what has expired, and what is older than the retention of its kind.

        Of much it deletes some, so that other writers need not wait; fewer than `SWEPT_AT_ONCE` are
        all.

        The second catches training samples, which `waltzrl collect` stores without knowing the
        gateway's retention, and what was stored before the retention was shortened.

        Args:
            now: seconds since the epoch.

        Returns:
            The number of records deleted.

        Raises:
            StorageError: the database is unavailable.
        """
        deleted = self.store.sweep(now)
        for namespace in _INDEXED:
            days = self._days.get(namespace[-1])
            if days is not None:
                old = (ITEMS.c.namespace == ".".join(namespace), ITEMS.c.time < now - days * DAY)
                deleted += delete_some(self.store.engine, *old)
        return deleted

    def _add_events(
        self, id_: str, events: Callable[[Sequence[LabelEvent]], Sequence[LabelEvent]]
    ) -> None:
        """Add the events that follow from the labels so far; give notice of each."""

        def add(connection: Connection, value: Mapping[str, Json]) -> Mapping[str, Json]:
            before = msgspec.convert(value, SafetyEvaluation)
            added = events(before.labels)
            for event in added:
                give_notice(connection, "label", _build_notice(id_, event))
                end_lease(connection, id_, event.by)
            after = before.labelled(*added)
            return {
                "labels": msgspec.to_builtins(after.labels),
                "label": after.label,
                "reference": msgspec.to_builtins(after.reference),
            }

        if not self.store.edit(EVALUATIONS, id_, add):
            raise InputError(f"there is no evaluation {id_!r}; it may have been erased")

    def _read(
        self,
        limit: int,
        extra: Sequence[ColumnElement[bool]],
        filters: Filter,
        *order: ColumnElement[object],
    ) -> list[SafetyEvaluation]:
        matching = build_conditions(filters, self.store.engine.dialect.name)
        kind = ITEMS.c.namespace == ".".join(EVALUATIONS)
        query = select(ITEMS.c.value).where(kind, not_expired(time.time()), *extra, *matching)
        with reading(self.store.engine) as connection:
            values = connection.execute(query.order_by(*order).limit(limit)).scalars().all()
        return [msgspec.convert(value, SafetyEvaluation) for value in values]

    def _put(self, record: SafetyEvaluation | CoachingSession | TrainingSample) -> PutOp:
        match record:
            case SafetyEvaluation(id=key, time=time_):
                namespace = EVALUATIONS
            case CoachingSession(coaching_session_id=key, timestamp=time_):
                namespace = COACHING
            case TrainingSample(time=time_):
                namespace = TRAINING
                key = f"{record.interaction}:{record.state.coaching_round}"
        days = self._days.get(namespace[-1])
        return PutOp(
            namespace,
            key,
            # The column `time` is filled from it; a coaching session's own field is `timestamp`.
            {**msgspec.to_builtins(record), "time": time_},
            _INDEXED[namespace],
            expires_at=None if days is None else time_ + days * DAY,
        )


def _build_notice(id_: str, event: LabelEvent) -> dict[str, str | float | bool | None]:
    """Return a notice of a label; like every notice, it holds no content."""
    labels = {"reply": event.reply, "request": event.request}
    return {
        "evaluation": id_,
        "action": event.action,
        "by": event.by,
        **{name: label for name, label in labels.items() if label is not None},
        **({} if event.selection is None else {"selection": event.selection}),
        **({"settles": True} if event.settles else {}),
        "corrected": bool(event.correction),
        "commented": bool(event.comment),
    }
