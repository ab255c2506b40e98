"""What was served, as typed records: remembered, judged, labelled, counted, and found again."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from sqlalchemy import ColumnElement, delete, select

from waltzrl.errors import InputError
from waltzrl.memory.counts import BundleCounts, Calibration, Counts, bundle_counts, calibration
from waltzrl.memory.filters import conditions
from waltzrl.memory.items import Filter, Json, Namespace, PutOp
from waltzrl.memory.recording import coaching_of, evaluation_of, request_hash
from waltzrl.memory.schemas import (
    COACHING,
    EVALUATIONS,
    TRAINING,
    CoachingSession,
    HumanLabel,
    SafetyEvaluation,
    TrainingSample,
)
from waltzrl.memory.search import alive
from waltzrl.memory.store import MemoryStore
from waltzrl.memory.tables import ITEMS
from waltzrl.records import ServedExchange, Verdict, load
from waltzrl.storage.database import reading, writing

__all__ = ["BundleCounts", "Calibration", "Counts", "SafetyMemory", "request_hash"]

PAGE = 500
"""Evaluations that `every_evaluation` reads at once."""
DAY = 86_400.0

_FOUND_BY: Mapping[Namespace, list[str]] = {
    EVALUATIONS: ["collaboration.prompt.messages[-1].content"],
    COACHING: ["task"],
    TRAINING: [],
}
"""What a search by words finds records by: their requests."""


class SafetyMemory:
    """The three kinds of records, in one store."""

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
                from when they happened; what is missing is kept until it is erased.
            categories: of stage-1 rules, by their names.
        """
        self.store = store
        self._digest = digest
        self._days = dict(retention_days)
        self._categories = dict(categories)

    def remember(self, exchanges: Sequence[ServedExchange]) -> list[SafetyEvaluation]:
        """Keep exchanges, and the coaching in them, in one transaction.

        Returns:
            [exchanges] the evaluations as they were kept: scrubbed.

        Raises:
            StorageError: nothing of it was kept.
        """
        evaluations = [
            evaluation_of(
                exchange, scrub=self.store.scrub, digest=self._digest, categories=self._categories
            )
            for exchange in exchanges
        ]
        coached = [session for one in evaluations if (session := coaching_of(one)) is not None]
        puts = [self.store.scrubbed(self._put(one)) for one in evaluations]
        self.store.batch([*puts, *(self._put(session) for session in coached)])
        return [load(put.value, SafetyEvaluation) for put in puts]

    def store_safety_evaluation(self, evaluation: SafetyEvaluation) -> None:
        """Keep an evaluation, in the place of any with its id."""
        self.store.batch([self._put(evaluation)])

    def store_coaching_session(self, session: CoachingSession) -> None:
        """Keep a coaching session, in the place of any with its id."""
        self.store.batch([self._put(session)])

    def store_dir_training_sample(self, *samples: TrainingSample) -> None:
        """Keep rounds as steps of trajectories, each in the place of any of that round."""
        self.store.batch([self._put(sample) for sample in samples])

    def judged(self, id_: str, verdict: Verdict) -> bool:
        """Note the online judge's verdict; return whether the evaluation is still there."""
        return self.store.amend(EVALUATIONS, id_, {"verdict": msgspec.to_builtins(verdict)})

    def label(self, id_: str, label: HumanLabel, by: str) -> None:
        """Note what a person calls the reply that left.

        Raises:
            InputError: there is no such evaluation.
        """
        changes: dict[str, Json] = {"label": label, "labelled_by": by, "labelled_at": time.time()}
        if not self.store.amend(EVALUATIONS, id_, changes):
            raise InputError(f"no evaluation {id_!r} is remembered; it may have been erased")

    def evaluation(self, id_: str) -> SafetyEvaluation | None:
        """Return one evaluation, if it is remembered."""
        found = self.store.get(EVALUATIONS, id_)
        return None if found is None else load(found.value, SafetyEvaluation)

    def evaluations(
        self, *, limit: int, before: float | None = None, **filters: Json
    ) -> list[SafetyEvaluation]:
        """Return evaluations that fit, the newest first.

        Args:
            limit: how many at most.
            before: seconds since the epoch; only what happened before it.
            filters: as of `MemoryStore.search`, such as `label="unsafe"`.
        """
        earlier = [] if before is None else [ITEMS.c.time < before]
        return self._read(limit, earlier, filters, ITEMS.c.time.desc(), ITEMS.c.id.desc())

    def every_evaluation(self) -> Iterator[SafetyEvaluation]:
        """Return all evaluations, the oldest first; a page is read at a time."""
        page = self._read(PAGE, [], {}, ITEMS.c.time, ITEMS.c.key)
        while page:
            yield from page
            last = page[-1]
            behind = (ITEMS.c.time > last.time) | (
                (ITEMS.c.time == last.time) & (ITEMS.c.key > last.id)
            )
            page = self._read(PAGE, [behind], {}, ITEMS.c.time, ITEMS.c.key)

    def retrieve_safety_evaluations(
        self, safe: bool | None = None, limit: int = 10
    ) -> list[SafetyEvaluation]:
        """Return the newest evaluations; of safe or unsafe replies only, when `safe` is given."""
        if safe is None:
            return self.evaluations(limit=limit)
        return self.evaluations(limit=limit, safe=safe)

    def retrieve_similar_coaching(self, request: str, limit: int = 4) -> list[CoachingSession]:
        """Return coaching sessions for a request like this one.

        First those with the same request, then those with the same words, then those that mean the
        same, where the store has an embedding model; of each the best first.
        """
        clean = self.store.scrub(request)
        same: Filter = {"request_hash": request_hash(clean)}
        found = self.store.search(COACHING, filter=same, limit=limit)
        if len(found) < limit:
            found += self.store.search(COACHING, query=clean, limit=limit)
        if len(found) < limit and self.store.embeds:
            found += self.store.nearest(COACHING, clean, limit=limit)
        values = list({item.key: item.value for item in found}.values())
        return [msgspec.convert(value, CoachingSession) for value in values[:limit]]

    def retrieve_dir_training_dataset(self, limit: int) -> list[TrainingSample]:
        """Return the newest training samples."""
        found = self.store.search(TRAINING, limit=limit)
        return [msgspec.convert(item.value, TrainingSample) for item in found]

    def calibration(self) -> Calibration:
        """Count how often the online judge and people agree."""
        with reading(self.store.engine) as connection:
            return calibration(connection, time.time())

    def rates(self, since: float) -> list[BundleCounts]:
        """Count what each bundle did since a time, seconds since the epoch."""
        with reading(self.store.engine) as connection:
            return bundle_counts(connection, since, time.time())

    def sweep(self, now: float) -> int:
        """Delete what has expired, and what is older than its kind is kept here.

        Training samples are collected by a process that does not know how long they are kept, and
        evaluations were perhaps to be kept for longer once.

        Args:
            now: seconds since the epoch.

        Returns:
            How many records.

        Raises:
            StorageError: the database does not answer.
        """
        deleted = self.store.sweep(now)
        for namespace in (EVALUATIONS, TRAINING):
            days = self._days.get(namespace[-1])
            if days is not None:
                old = (ITEMS.c.namespace == ".".join(namespace), ITEMS.c.time < now - days * DAY)
                with writing(self.store.engine) as connection:
                    deleted += connection.execute(delete(ITEMS).where(*old)).rowcount
        return deleted

    def _read(
        self,
        limit: int,
        also: Sequence[ColumnElement[bool]],
        filters: Filter,
        *order: ColumnElement[object],
    ) -> list[SafetyEvaluation]:
        fits = conditions(filters, self.store.engine.dialect.name)
        here = ITEMS.c.namespace == ".".join(EVALUATIONS)
        query = select(ITEMS.c.value).where(here, alive(time.time()), *also, *fits)
        with reading(self.store.engine) as connection:
            values = connection.execute(query.order_by(*order).limit(limit)).scalars().all()
        return [load(value, SafetyEvaluation) for value in values]

    def _put(self, record: SafetyEvaluation | CoachingSession | TrainingSample) -> PutOp:
        match record:
            case SafetyEvaluation(id=key, time=happened):
                namespace = EVALUATIONS
            case CoachingSession(coaching_session_id=key, timestamp=happened):
                namespace = COACHING
            case TrainingSample(time=happened):
                namespace = TRAINING
                key = f"{record.interaction}:{record.state.coaching_round}"
        days = self._days.get(namespace[-1])
        return PutOp(
            namespace,
            key,
            msgspec.to_builtins(record),
            _FOUND_BY[namespace],
            expires_at=None if days is None else happened + days * DAY,
        )
