"""The book of releases: one state for all replicas, kept in the database they share."""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from sqlalchemy import Connection, Engine, Row, Select, insert, select, true, update
from sqlalchemy.exc import IntegrityError

from waltzrl.errors import InputError
from waltzrl.release.decision import Decision, JudgeErrors, decide
from waltzrl.release.evidence import Evidence, updated
from waltzrl.release.moves import first_state
from waltzrl.release.observations import add_point, curve, keep, take
from waltzrl.release.plan import ReleasePlan
from waltzrl.release.state import Action, Observation, Release, place
from waltzrl.release.tables import BUNDLES, RELEASES
from waltzrl.release.transitions import Move, history, make_move, position, tell
from waltzrl.release.view import ReleaseView, Transition
from waltzrl.storage.database import reading, writing
from waltzrl.storage.migrations import prepare

BY_ITSELF = "waltzrl"
"""Who moved a release when no person did."""

_OPEN = select(RELEASES).where(RELEASES.c.is_open == true())
_NEWEST = select(RELEASES).order_by(RELEASES.c.number.desc()).limit(1)


class ReleaseBook:
    """Bundles and their releases; each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        prepare(engine)
        self._engine = engine

    def add_bundle(self, bundle_id: str, recipe: str, *, is_base: bool = False) -> None:
        """Keep a bundle's recipe; one that is known stays as it is.

        Args:
            bundle_id: names it by its contents.
            recipe: JSON.
            is_base: a gateway serves it by its own recipe, while no release says otherwise.
        """
        with suppress(IntegrityError), writing(self._engine) as connection:  # known already
            connection.execute(insert(BUNDLES).values(id=bundle_id, recipe=recipe))
        if is_base:
            with writing(self._engine) as connection:
                ours = update(BUNDLES).where(BUNDLES.c.id == bundle_id)
                connection.execute(ours.values(base_since=time.time()))

    def bundle(self, bundle_id: str) -> str | None:
        """Return a bundle's recipe as JSON; None when it is not known."""
        with reading(self._engine) as connection:
            query = select(BUNDLES.c.recipe).where(BUNDLES.c.id == bundle_id)
            return connection.execute(query).scalar()

    def bundles(self) -> list[str]:
        """Return the ids of all bundles, the newest first."""
        with reading(self._engine) as connection:
            query = select(BUNDLES.c.id).order_by(BUNDLES.c.number.desc())
            return list(connection.execute(query).scalars())

    def base(self) -> str | None:
        """Return the bundle that a gateway last said to serve by its own recipe."""
        with reading(self._engine) as connection:
            query = select(BUNDLES.c.id).where(BUNDLES.c.base_since.is_not(None))
            return connection.execute(query.order_by(BUNDLES.c.base_since.desc()).limit(1)).scalar()

    def serving(self) -> str | None:
        """Return the bundle that releases brought to all; None when none did, or none is left."""
        with reading(self._engine) as connection:
            query = select(RELEASES.c.candidate).where(RELEASES.c.state == "full")
            return connection.execute(query.order_by(RELEASES.c.number.desc()).limit(1)).scalar()

    def current(self) -> Release | None:
        """Return the release under way."""
        return self._one(_OPEN)

    def latest(self) -> Release | None:
        """Return the newest release, whatever became of it."""
        return self._one(_NEWEST)

    def release(self, release_id: str) -> Release | None:
        return self._one(_named(release_id))

    def history(self, release_id: str) -> list[Transition]:
        """Return a release's moves, the oldest first."""
        with reading(self._engine) as connection:
            return history(connection, release_id)

    def view(self) -> ReleaseView | None:
        """Return all that is known of the newest release; None when there never was one."""
        with reading(self._engine) as connection:
            row = connection.execute(_NEWEST).first()
            if row is None:
                return None
            return ReleaseView(
                release=_release(row),
                evidence=row.evidence,
                decision=row.decision,
                history=tuple(history(connection, row.id)),
                curve=tuple(curve(connection, row.id)),
            )

    def propose(
        self, candidate: str, serving: str, plan: ReleasePlan, by: str, why: str
    ) -> Release:
        """Begin a release.

        Args:
            candidate: a bundle that was added.
            serving: the bundle that it may take the place of.
            plan: how it goes.
            by: who proposes.
            why: in words that name no person and hold no content.

        Raises:
            InputError: a release is under way, or the candidate is not known, or serves already.
        """
        if candidate == serving:
            raise InputError(f"bundle {candidate} serves already; propose another")
        if self.bundle(candidate) is None:
            raise InputError(f"there is no bundle {candidate}; add it before it is proposed")
        release = Release(
            id=secrets.token_hex(6),
            secret=secrets.token_hex(16),
            candidate=candidate,
            serving=serving,
            plan=plan,
            state=first_state(plan),
            since=time.time(),
        )
        row = {"id": release.id, "secret": release.secret, "plan": plan, "evidence": Evidence()}
        row |= {"candidate": candidate, "serving": serving, **position(release)}
        try:
            with writing(self._engine) as connection:
                connection.execute(insert(RELEASES).values(row))
                tell(connection, "off", release, Move("propose", by, why))
        except IntegrityError:
            raise InputError(
                "a release is under way; roll it back, or let it come to its end, before the next"
            ) from None
        return release

    def move(self, release: Release, action: Action, by: str, why: str) -> Release:
        """Take a release on, or back; all replicas follow.

        To roll back what is rolled back already changes nothing, and it does not matter whether
        the release has moved since it was seen.

        Args:
            release: as it was seen.
            action: what to do.
            by: who does.
            why: in words that name no person and hold no content.

        Raises:
            InputError: it has moved since it was seen, or the action cannot be done from there.
        """
        with writing(self._engine) as connection:
            row = connection.execute(_named(release.id).with_for_update()).first()
            if row is None:
                raise InputError(f"there is no release {release.id}")
            now = _release(row)
            if action == "roll_back":
                _require_in_force(connection, now)
            elif now.version != release.version:
                raise InputError(
                    f"release {now.id} has moved meanwhile: {place(now.state, now.percentage)}; "
                    "look again before you decide"
                )
            return make_move(connection, now, Move(action, by, why), time.time())

    def observe(self, observations: Sequence[Observation]) -> None:
        """Keep what answers say about their arms, to be counted by the next tick."""
        if observations:
            with writing(self._engine) as connection:
                keep(connection, observations)

    def tick(self, judges: JudgeErrors, now: float) -> tuple[Release, Decision] | None:
        """Count what is new, decide, and move; each observation is counted once by all replicas.

        Args:
            judges: how the judge errs.
            now: seconds since the epoch.

        Returns:
            The release after the decision; None when none is under way, or another replica is
            counting.
        """
        if self.current() is None:
            return None
        with writing(self._engine) as connection:
            mine = _OPEN.with_for_update(skip_locked=True)
            row = connection.execute(mine).first()
            if row is None:
                return None
            release = _release(row)
            fresh = take(connection, release.id)
            evidence = updated(row.evidence, fresh, release.plan)
            decision = decide(release, evidence, judges, now)
            ours = update(RELEASES).where(RELEASES.c.id == release.id)
            connection.execute(ours.values(evidence=evidence, decision=decision))
            if fresh:
                add_point(connection, release.id, now, decision)
            return _follow(connection, release, decision, now), decision

    def _one(self, query: Select[tuple[object, ...]]) -> Release | None:
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
            return None if row is None else _release(row)


def _named(release_id: str) -> Select[tuple[object, ...]]:
    return select(RELEASES).where(RELEASES.c.id == release_id)


def _release(row: Row[tuple[object, ...]]) -> Release:
    return msgspec.convert(row, Release, from_attributes=True)


def _require_in_force(connection: Connection, release: Release) -> None:
    """Let nobody roll back a release that a later one was built on."""
    later = select(RELEASES.c.id).where(RELEASES.c.state != "rolled_back")
    newest = connection.execute(later.order_by(RELEASES.c.number.desc()).limit(1)).scalar()
    if release.state != "rolled_back" and newest != release.id:
        raise InputError(f"release {newest} came after release {release.id}; roll that back first")


def _follow(connection: Connection, release: Release, decision: Decision, now: float) -> Release:
    """Do what was decided: back always, on only where that is left to the evidence."""
    if decision.action == "wait":
        return release
    if decision.action == "advance" and (release.held or not release.plan.automatic):
        return release
    return make_move(connection, release, Move(decision.action, BY_ITSELF, decision.why), now)
