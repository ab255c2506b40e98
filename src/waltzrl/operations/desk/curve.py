"""The evidence curve: how strong the case against a candidate was, as coordinates of a drawing.

What decides is the weighted sum of the tests' e-values. Each test is drawn with what it adds to
that sum, so that all lines and the value that rolls back have one scale, and none is above the sum.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

import msgspec

from waltzrl.foundation.texts import moment, number
from waltzrl.operations.release.decision import WEIGHTS
from waltzrl.operations.release.state import describe_place
from waltzrl.operations.release.view import ALL, CurvePoint, ReleaseView

WIDTH, HEIGHT = 900, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 210, 26, 28
"""Margins, in the drawing's units."""
MIN_E_VALUE, MAX_E_VALUE = 0.01, 1e6
"""The range of e-values that is drawn; what is beyond it is drawn at the edge."""
DRAWN_TESTS = 3
"""Tests that are drawn beside their sum: those that ever added most."""
LABEL_GAP = 16.0
MOVE_GAP = 70.0
"""The smallest distance of two labelled moves; of nearer ones only the first has a label."""
HOURS_WITH_DATE = 36


class Scale(NamedTuple):
    """An axis of a drawing: where values lie along it; those beyond its ends lie at them."""

    low: float
    high: float
    start: float
    """The coordinate of `low`."""
    end: float
    """The coordinate of `high`."""

    def at(self, value: float) -> float:
        # All values may be the same at first.
        share = (value - self.low) / max(self.high - self.low, 1e-9)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)


class CurveLine(NamedTuple):
    """What one test adds over time, or the sum of all."""

    name: str
    points: str
    """The points of an SVG polyline."""
    last: float
    label_y: float


class AxisLabel(NamedTuple):
    """A label at a coordinate of an axis."""

    at: float
    text: str


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The whole drawing."""

    lines: tuple[CurveLine, ...]
    """The sum of all tests comes last, on top."""
    values: tuple[AxisLabel, ...]
    times: tuple[AxisLabel, ...]
    moves: tuple[AxisLabel, ...]
    limit: AxisLabel


def draw_curve(view: ReleaseView, needed: float) -> Curve | None:
    """Draw a release's evidence; None while there is nothing to draw.

    Args:
        view: of the release.
        needed: the e-value that rolls back.
    """
    if len({point.time for point in view.curve}) < 2:
        return None
    points = [_weight_point(point) for point in view.curve]
    end = max(point.time for point in points)
    times = Scale(view.history[0].time, end, LEFT, WIDTH - RIGHT)
    powers = [_find_power(value) for value in (needed, *(point.e_value for point in points))]
    # With some room above a line that ends at a power of ten.
    low, high = min(floor(min(powers)), -1), max(ceil(max(powers) + 0.1), 2)
    values = Scale(low, high, HEIGHT - BOTTOM, TOP)
    return Curve(
        lines=tuple(_draw_lines(points, times, values)),
        values=tuple(
            AxisLabel(values.at(power), number(10.0**power)) for power in range(low, high + 1)
        ),
        times=tuple(_label_times(times)),
        moves=tuple(_label_moves(view, times)),
        limit=AxisLabel(values.at(_find_power(needed)), f"rolls back at {number(needed)}"),
    )


def _weight_point(point: CurvePoint) -> CurvePoint:
    """Return what a test adds to the sum."""
    metric = point.metric
    return point if metric == ALL else point._replace(e_value=point.e_value * WEIGHTS[metric])


def _find_power(e_value: float) -> float:
    return log10(min(max(e_value, MIN_E_VALUE), MAX_E_VALUE))


def _label_times(times: Scale) -> Iterable[AxisLabel]:
    span = times.high - times.low
    form = "%b %d %H:%M" if span > HOURS_WITH_DATE * 3600 else "%H:%M"
    form = "%H:%M:%S" if span < 600 else form
    for part in range(5):
        at = times.low + span * part / 4
        yield AxisLabel(times.at(at), moment(at, form))


def _draw_lines(points: Sequence[CurvePoint], times: Scale, values: Scale) -> list[CurveLine]:
    series: dict[str, list[CurvePoint]] = defaultdict(list)
    for point in points:
        series[point.metric].append(point)
    tests = [name for name in series if name != ALL]
    strongest = sorted(tests, key=lambda name: -max(p.e_value for p in series[name]))[:DRAWN_TESTS]
    # What is drawn later lies above: the sum on top, then the strongest test.
    drawn = [*reversed(strongest), *([ALL] if ALL in series else [])]
    ends = {name: values.at(_find_power(series[name][-1].e_value)) for name in drawn}
    labels = _move_labels_apart(ends)
    return [
        CurveLine(
            name=name,
            points=" ".join(
                f"{times.at(p.time)},{values.at(_find_power(p.e_value))}" for p in series[name]
            ),
            last=series[name][-1].e_value,
            label_y=labels[name],
        )
        for name in drawn
    ]


def _move_labels_apart(ends: dict[str, float]) -> dict[str, float]:
    """Move labels up where they would overlap."""
    placed: dict[str, float] = {}
    # From the lowest label up, so that one never has to move twice.
    above = HEIGHT - BOTTOM + LABEL_GAP
    for name, y in sorted(ends.items(), key=lambda end: -end[1]):
        above = placed[name] = min(y, above - LABEL_GAP)
    return placed


def _label_moves(view: ReleaseView, times: Scale) -> Iterable[AxisLabel]:
    last = -MOVE_GAP
    for move in view.history:
        at = times.at(move.time)
        is_apart = at - last >= MOVE_GAP
        yield AxisLabel(at, describe_place(move.after, move.percentage) if is_apart else "")
        last = at if is_apart else last
