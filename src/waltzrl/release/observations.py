"""What answers said about their arms: each is counted once, and leaves a point on the curve."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, delete, insert, or_, select

from waltzrl.release.decision import Decision
from waltzrl.release.state import Observation
from waltzrl.release.tables import CURVE_POINTS, OBSERVATIONS
from waltzrl.release.view import ALL, CurvePoint

COUNTED_AT_ONCE = 2000
"""Observations that one transaction counts at most, so that none is long."""
MOST_POINTS = 500
"""Of a release's curve, however long it takes."""


def keep(connection: Connection, observations: Sequence[Observation]) -> None:
    """Keep observations to be counted; there must be one at least."""
    connection.execute(
        insert(OBSERVATIONS), [msgspec.structs.asdict(seen) for seen in observations]
    )


def take(connection: Connection, release_id: str) -> list[Observation]:
    """Return observations that nobody counted yet, the oldest first; they are kept no longer.

    Neither are those that came too late for an earlier release. The caller holds the release's
    row, or two would count the same ones.
    """
    ours = select(OBSERVATIONS).where(OBSERVATIONS.c.release == release_id)
    query = ours.order_by(OBSERVATIONS.c.number).limit(COUNTED_AT_ONCE)
    rows = connection.execute(query).all()
    taken = OBSERVATIONS.c.number.in_([row.number for row in rows])
    too_late = OBSERVATIONS.c.release != release_id
    connection.execute(delete(OBSERVATIONS).where(or_(taken, too_late)))
    return [msgspec.convert(row, Observation, from_attributes=True) for row in rows]


def add_point(connection: Connection, release_id: str, now: float, decision: Decision) -> None:
    """Lengthen the curve; when it has many points, the one that is least needed goes."""
    connection.execute(
        insert(CURVE_POINTS).values(
            release=release_id,
            time=now,
            e_value=decision.e_value,
            e_values=decision.e_values,
        )
    )
    query = select(CURVE_POINTS.c.number, CURVE_POINTS.c.time)
    ours = query.where(CURVE_POINTS.c.release == release_id).order_by(CURVE_POINTS.c.number)
    points = connection.execute(ours).all()
    if len(points) > MOST_POINTS:
        number = points[least_needed([point.time for point in points])].number
        connection.execute(delete(CURVE_POINTS).where(CURVE_POINTS.c.number == number))


def curve(connection: Connection, release_id: str) -> list[CurvePoint]:
    """Return a release's curve, the oldest point first."""
    ours = select(CURVE_POINTS).where(CURVE_POINTS.c.release == release_id)
    return [
        CurvePoint(row.time, metric, e_value)
        for row in connection.execute(ours.order_by(CURVE_POINTS.c.number))
        for metric, e_value in {ALL: row.e_value, **row.e_values}.items()
    ]


def least_needed(times: Sequence[float]) -> int:
    """Return the point without which the curve's widest gap grows least.

    Taken out again and again, what is left lies about evenly over the whole time.

    Args:
        times: [P] rising, P >= 3.

    Returns:
        Its index; never the first or the last.
    """
    return min(range(1, len(times) - 1), key=lambda i: times[i + 1] - times[i - 1])
