"""Moves as they are written: the release, its history and the notice to all, at one stroke."""

import time
from typing import Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, insert, select, update

from waltzrl.release.moves import moved
from waltzrl.release.state import Action, Release, ReleaseState
from waltzrl.release.tables import RELEASES, TRANSITIONS
from waltzrl.release.view import Transition
from waltzrl.storage.notices import give_notice


class Move(NamedTuple):
    """What is done to a release."""

    action: Action
    by: str
    why: str


def make_move(connection: Connection, release: Release, move: Move, now: float) -> Release:
    """Take a release on or back; what does not move, as it is.

    Raises:
        InputError: it cannot be done from there.
    """
    after = moved(release, move.action, now)
    if after is not release:
        ours = update(RELEASES).where(RELEASES.c.id == release.id)
        connection.execute(ours.values(position(after)))
        tell(connection, release.state, after, move)
    return after


def tell(
    connection: Connection, before: ReleaseState | Literal["off"], release: Release, move: Move
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
    place: dict[str, str | float | bool | None] = {
        "release": release.id,
        "candidate": release.candidate,
        "serving": release.serving,
        "state": release.state,
        "percentage": release.percentage,
    }
    give_notice(connection, "release", {**place, **move._asdict()})


def history(connection: Connection, release_id: str) -> list[Transition]:
    """Return a release's moves, the oldest first."""
    ours = select(TRANSITIONS).where(TRANSITIONS.c.release == release_id)
    rows = connection.execute(ours.order_by(TRANSITIONS.c.number))
    return [msgspec.convert(row, Transition, from_attributes=True) for row in rows]


def position(release: Release) -> dict[str, object]:
    """Return the columns that a move changes."""
    names = ("state", "step", "held", "since", "version", "is_open")
    return {name: getattr(release, name) for name in names}
