"""The book of releases: one state for all replicas, in the database they share."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    Select,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError

from waltzrl.errors import InputError
from waltzrl.evaluation.sample_correction import labelled_samples
from waltzrl.gateway.description import (
    BundleDescription,
    StoredBundle,
    describe_differences,
)
from waltzrl.operations.release.answered import read_answered, start_step, store_answered
from waltzrl.operations.release.decision import Decision, PeopleLabels, decide
from waltzrl.operations.release.evidence import ARMS, Evidence, updated
from waltzrl.operations.release.plan import ReleasePlan
from waltzrl.operations.release.state import (
    Action,
    Mover,
    Observation,
    Release,
    ReleaseState,
    apply_action,
    describe_place,
    first_state,
)
from waltzrl.operations.release.tables import (
    BUNDLES,
    CURVE_POINTS,
    OBSERVATIONS,
    RELEASE,
    RELEASES,
    TRANSITIONS,
)
from waltzrl.operations.release.view import ALL, CurvePoint, ReleaseView, Transition
from waltzrl.store.database import decode_row, reading, writing
from waltzrl.store.memory.labels import Calibration
from waltzrl.store.migrations import prepare_tables
from waltzrl.store.notices import give_notice

COUNTED_AT_ONCE = 2000
"""Most observations of one transaction, so that none takes long."""
MOST_POINTS = 500
"""The most points of a release's curve, however long it takes."""
BY_ITSELF = "waltzrl"
"""Author of transitions that no person made."""

_OPEN = select(RELEASES).where(RELEASES.c.is_open == true())
_NEWEST = select(RELEASES).order_by(RELEASES.c.number.desc()).limit(1)


class ReleaseBook:
    """Bundles and their releases; each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        prepare_tables(engine, RELEASE)
        self._engine = engine

    def add_bundle(
        self,
        bundle_id: str,
        recipe: str,
        description: BundleDescription,
        *,
        by: str = "",
        is_base: bool = False,
    ) -> None:
        """Store a bundle, unless it is known.

        Args:
            bundle_id: hash of the contents.
            recipe: JSON.
            description: what it is.
            by: who proposes it.
            is_base: a gateway serves it by its own recipe, unless a release says otherwise.
        """
        now, policy = time.time(), description.policy
        row = {"id": bundle_id, "recipe": recipe, "by": by, "added": now, "policy": policy}
        with suppress(IntegrityError), writing(self._engine) as connection:  # it is known
            connection.execute(insert(BUNDLES).values(description=description, **row))
        if is_base:
            with writing(self._engine) as connection:
                named = BUNDLES.c.id == bundle_id
                connection.execute(update(BUNDLES).where(named).values(base_since=now))

    def bundle(self, bundle_id: str) -> str | None:
        """Return a bundle's recipe as JSON; None when it is unknown."""
        with reading(self._engine) as connection:
            query = select(BUNDLES.c.recipe).where(BUNDLES.c.id == bundle_id)
            return connection.execute(query).scalar()

    def stored_bundle(self, bundle_id: str) -> StoredBundle | None:
        """Return what a bundle is, and who made it; None when it is unknown."""
        with reading(self._engine) as connection:
            row = connection.execute(select(BUNDLES).where(BUNDLES.c.id == bundle_id)).first()
        return None if row is None else decode_row(row, StoredBundle)

    def changes(self, release: Release) -> tuple[str, ...]:
        """Say how the candidate of a release differs from the bundle that it may replace."""
        before = self.stored_bundle(release.serving)
        after = self.stored_bundle(release.candidate)
        if before is None or after is None:
            return ()
        return describe_differences(before.description, after.description)

    def moves_of(self, bundle_id: str) -> list[tuple[Release, Transition]]:
        """Return what releases did with a bundle, as candidate or as what serves, oldest first."""
        either = or_(RELEASES.c.candidate == bundle_id, RELEASES.c.serving == bundle_id)
        with reading(self._engine) as connection:
            rows = connection.execute(select(RELEASES).where(either).order_by(RELEASES.c.number))
            releases = [decode_row(row, Release) for row in rows]
            return [(one, move) for one in releases for move in _read_history(connection, one.id)]

    def bundles(self) -> list[str]:
        """Return the ids of all bundles, the newest first."""
        with reading(self._engine) as connection:
            query = select(BUNDLES.c.id).order_by(BUNDLES.c.number.desc())
            return list(connection.execute(query).scalars())

    def base(self, policy: str = "") -> str | None:
        """Return the bundle of a policy that a gateway last reported to serve by its own recipe.

        Args:
            policy: its name; empty for the gateway's own settings.
        """
        with reading(self._engine) as connection:
            query = select(BUNDLES.c.id).where(
                BUNDLES.c.base_since.is_not(None), BUNDLES.c.policy == policy
            )
            return connection.execute(query.order_by(BUNDLES.c.base_since.desc()).limit(1)).scalar()

    def serving(self, policy: str = "") -> str | None:
        """Return the candidate of a policy's newest full release; None when there is none."""
        return self.released().get(policy)

    def in_force(self, policy: str = "") -> str | None:
        """Return the bundle that answers a policy's requests: released, or a gateway's own."""
        return self.serving(policy) or self.base(policy)

    def released(self) -> Mapping[str, str]:
        """Return the candidate of each policy's newest full release, by the policy's name."""
        query = select(RELEASES.c.policy, RELEASES.c.candidate).where(RELEASES.c.state == "full")
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(RELEASES.c.number))
            return {row.policy: row.candidate for row in rows}  # the newest comes last

    def current(self) -> Release | None:
        """Return the release under way."""
        return self._first(_OPEN)

    def latest(self) -> Release | None:
        """Return the newest release, in any state."""
        return self._first(_NEWEST)

    def release(self, release_id: str) -> Release | None:
        return self._first(_select_release(release_id))

    def history(self, release_id: str) -> list[Transition]:
        """Return a release's transitions, the oldest first."""
        with reading(self._engine) as connection:
            return _read_history(connection, release_id)

    def last_moves(self) -> dict[tuple[Action, Mover], float]:
        """Return when each kind of move was last made, of any release; seconds since the epoch."""
        mover = case((TRANSITIONS.c.by == BY_ITSELF, "itself"), else_="person").label("mover")
        query = select(TRANSITIONS.c.action, mover, func.max(TRANSITIONS.c.time).label("time"))
        with reading(self._engine) as connection:
            rows = connection.execute(query.group_by(TRANSITIONS.c.action, mover))
            return {(row.action, row.mover): row.time for row in rows}

    def view(self) -> ReleaseView | None:
        """Return everything about the newest release; None when there has been none."""
        with reading(self._engine) as connection:
            row = connection.execute(_NEWEST).first()
            if row is None:
                return None
            return ReleaseView(
                release=decode_row(row, Release),
                evidence=row.evidence,
                decision=row.decision,
                history=tuple(_read_history(connection, row.id)),
                curve=tuple(_read_curve(connection, row.id)),
            )

    def propose(
        self,
        candidate: str,
        serving: str,
        plan: ReleasePlan,
        by: str,
        why: str,
        *,
        policy: str = "",
    ) -> Release:
        """Start a release.

        Args:
            candidate: a bundle that was added.
            serving: the bundle that it may replace.
            plan: its steps and limits.
            by: name of the author.
            why: a reason that names no person and holds no content.
            policy: the name of the policy whose requests take part; empty for those without one.

        Raises:
            InputError: a release is under way, or the candidate is unknown or already serves.
        """
        if candidate == serving:
            raise InputError(f"bundle {candidate} already serves; propose another")
        if self.bundle(candidate) is None:
            raise InputError(f"there is no bundle {candidate}; add it before you propose it")
        release = Release(
            id=secrets.token_hex(6),
            secret=secrets.token_hex(16),
            candidate=candidate,
            serving=serving,
            plan=plan,
            state=first_state(plan),
            since=time.time(),
            policy=policy,
        )
        row = {**_columns_of(release), "evidence": Evidence()}
        try:
            with writing(self._engine) as connection:
                # A unique index on `is_open` refuses a second one, also when two propose at once.
                connection.execute(insert(RELEASES).values(row))
                _record_move(connection, "off", release, _Move("propose", by, why))
        except IntegrityError:
            raise InputError(
                "a release is under way; roll it back, or wait until it is full, before the next"
            ) from None
        return release

    def move(self, release: Release, action: Action, by: str, why: str) -> Release:
        """Move a release; all replicas follow.

        Rolling back twice changes nothing, and works from any version of the release.

        Args:
            release: as the caller read it.
            action: what to do.
            by: name of the author.
            why: a reason that names no person and holds no content.

        Raises:
            InputError: it has moved since it was read, or the action is impossible in its state.
        """
        with writing(self._engine) as connection:
            row = connection.execute(_select_release(release.id).with_for_update()).first()
            if row is None:
                raise InputError(f"there is no release {release.id}")
            current = decode_row(row, Release)
            # A rollback must not fail because the release moved while a person was reading.
            if action == "roll_back":
                _require_newest(connection, current)
            elif current.version != release.version:
                raise InputError(
                    f"release {current.id} has moved in the meantime: "
                    f"{describe_place(current.state, current.percentage)}; "
                    "check it before you decide"
                )
            return _write_move(connection, current, _Move(action, by, why), time.time())

    def observe(self, observations: Sequence[Observation]) -> None:
        """Store observations, to be counted by the next tick."""
        if observations:
            rows = [msgspec.structs.asdict(observation) for observation in observations]
            with writing(self._engine) as connection:
                connection.execute(insert(OBSERVATIONS), rows)

    def tick(
        self,
        labels: PeopleLabels,
        now: float,
        closed: Callable[[Release], str] = lambda _release: "",
    ) -> tuple[Release, Decision] | None:
        """Count new observations, decide, and move; replicas together count each one once.

        Args:
            labels: people's, of a random sample of each arm's answers.
            now: seconds since the epoch.
            closed: returns why a gate of the plan is closed, empty if none is; it is asked only
                when everything else allows an advance, and outside the transactions, because it
                may take long.

        Returns:
            The release after the decision; None when none is under way, another replica is
            counting, or it was moved in the meantime.
        """
        # Asked every second, mostly without a release: reading needs no write lock.
        if self.current() is None:
            return None
        with writing(self._engine) as connection:
            # A locked row is passed over: another replica is counting.
            row = connection.execute(_OPEN.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            release = decode_row(row, Release)
            fresh = take_observations(connection, release.id)
            before = read_answered(connection, release.id, fresh)
            # `updated` adds to it; only what differs from `before` is stored.
            answered = before.copy()
            evidence = updated(row.evidence, fresh, release.plan, answered)
            store_answered(connection, release.id, before, answered)
            decision = decide(release, evidence, labels, now)
            named = RELEASES.c.id == release.id
            values = {"evidence": evidence, "decision": decision}
            connection.execute(update(RELEASES).where(named).values(values))
            if fresh:
                _add_point(connection, release.id, now, decision)
            if decision.action != "advance":
                return _follow_decision(connection, release, decision, now), decision
        why = closed(release)
        if why:
            decision = msgspec.structs.replace(decision, action="wait", why=why)
        with writing(self._engine) as connection:
            row = connection.execute(_select_release(release.id).with_for_update()).first()
            if row is None or row.version != release.version:
                return None  # it was moved in the meantime
            connection.execute(update(RELEASES).where(named).values(decision=decision))
            return _follow_decision(connection, release, decision, now), decision

    def _first(self, query: Select[tuple[object, ...]]) -> Release | None:
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
            return None if row is None else decode_row(row, Release)


def people_labels(calibrations: Mapping[str, Calibration]) -> PeopleLabels:
    """Return people's labels of each arm, as the memory counts them."""
    return {arm: labelled_samples(calibrations[arm]) for arm in ARMS if arm in calibrations}


def take_observations(connection: Connection, release_id: str) -> list[Observation]:
    """Return and delete the release's observations, the oldest first.

    Those that came too late for an earlier release are deleted too. The caller has locked the
    release's row; otherwise two replicas would count the same ones.
    """
    of_release = select(OBSERVATIONS).where(OBSERVATIONS.c.release == release_id)
    query = of_release.order_by(OBSERVATIONS.c.number).limit(COUNTED_AT_ONCE)
    rows = connection.execute(query).all()
    # By number, because others may have been added since the rows were read.
    taken = OBSERVATIONS.c.number.in_([row.number for row in rows])
    too_late = OBSERVATIONS.c.release != release_id
    connection.execute(delete(OBSERVATIONS).where(or_(taken, too_late)))
    return [decode_row(row, Observation) for row in rows]


def least_needed(times: Sequence[float]) -> int:
    """Return the point without which the curve's widest gap grows least.

    Removing it again and again leaves points that lie about evenly over the whole time.

    Args:
        times: [P] rising, P >= 3.

    Returns:
        Its index; never the first or the last.
    """
    return min(range(1, len(times) - 1), key=lambda i: times[i + 1] - times[i - 1])


class _Move(NamedTuple):
    action: Action
    by: str
    why: str


def _write_move(connection: Connection, release: Release, move: _Move, now: float) -> Release:
    """Move a release, and write its history and the notice to all, in one transaction."""
    after = apply_action(release, move.action, now)
    if after is not release:  # it was rolled back already
        named = RELEASES.c.id == release.id
        connection.execute(update(RELEASES).where(named).values(_columns_of(after)))
        # A hold or a resume stays in the step, and keeps what was counted of it.
        if (after.state, after.step) != (release.state, release.step):
            start_step(connection, release.id)
        _record_move(connection, release.state, after, move)
    return after


def _record_move(
    connection: Connection, before: ReleaseState | Literal["off"], release: Release, move: _Move
) -> None:
    """Write a move into the history, and into every gateway's audit log."""
    decision = select(RELEASES.c.decision).where(RELEASES.c.id == release.id)
    connection.execute(
        insert(TRANSITIONS).values(
            release=release.id,
            time=time.time(),
            before=before,
            after=release.state,
            percentage=release.percentage,
            decision=decision.scalar_subquery(),
            **move._asdict(),
        )
    )
    position: dict[str, str | float | bool | None] = {
        "release": release.id,
        "candidate": release.candidate,
        "serving": release.serving,
        "state": release.state,
        "percentage": release.percentage,
        "policy": release.policy,
    }
    give_notice(connection, "release", {**position, **move._asdict()})


def _columns_of(release: Release) -> dict[str, object]:
    return {**msgspec.structs.asdict(release), "is_open": release.is_open}


def _read_history(connection: Connection, release_id: str) -> list[Transition]:
    of_release = select(TRANSITIONS).where(TRANSITIONS.c.release == release_id)
    rows = connection.execute(of_release.order_by(TRANSITIONS.c.number))
    return [decode_row(row, Transition) for row in rows]


def _read_curve(connection: Connection, release_id: str) -> list[CurvePoint]:
    of_release = select(CURVE_POINTS).where(CURVE_POINTS.c.release == release_id)
    return [
        CurvePoint(row.time, metric, e_value)
        for row in connection.execute(of_release.order_by(CURVE_POINTS.c.number))
        for metric, e_value in {ALL: row.e_value, **row.e_values}.items()
    ]


def _add_point(connection: Connection, release_id: str, now: float, decision: Decision) -> None:
    """Extend the curve; beyond `MOST_POINTS` the least needed point is removed."""
    connection.execute(
        insert(CURVE_POINTS).values(
            release=release_id,
            time=now,
            e_value=decision.e_value,
            e_values=decision.e_values,
        )
    )
    query = select(CURVE_POINTS.c.number, CURVE_POINTS.c.time)
    of_release = query.where(CURVE_POINTS.c.release == release_id).order_by(CURVE_POINTS.c.number)
    points = connection.execute(of_release).all()
    if len(points) > MOST_POINTS:
        number = points[least_needed([point.time for point in points])].number
        connection.execute(delete(CURVE_POINTS).where(CURVE_POINTS.c.number == number))


def _select_release(release_id: str) -> Select[tuple[object, ...]]:
    return select(RELEASES).where(RELEASES.c.id == release_id)


def _require_newest(connection: Connection, release: Release) -> None:
    """Refuse to roll back a release that a later one was built on."""
    in_force = select(RELEASES.c.id).where(
        RELEASES.c.state != "rolled_back", RELEASES.c.policy == release.policy
    )
    newest = connection.execute(in_force.order_by(RELEASES.c.number.desc()).limit(1)).scalar()
    if release.state != "rolled_back" and newest != release.id:
        raise InputError(f"release {newest} came after release {release.id}; roll it back first")


def _follow_decision(
    connection: Connection, release: Release, decision: Decision, now: float
) -> Release:
    """Apply a decision: always roll back, but advance only where the plan is automatic."""
    if decision.action == "wait":
        return release
    if decision.action == "advance" and (release.held or not release.plan.automatic):
        return release
    return _write_move(connection, release, _Move(decision.action, BY_ITSELF, decision.why), now)
