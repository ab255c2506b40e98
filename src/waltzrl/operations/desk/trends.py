"""The trends: how rates moved, with bands, of everything that was served or of one category."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import NamedTuple

from starlette.responses import Response

from waltzrl.evaluation.sample_correction import RateEstimate, observed_rate
from waltzrl.foundation.texts import moment
from waltzrl.operations.desk.curve import AxisLabel, Scale
from waltzrl.operations.desk.overview import estimate_served_rates, scales_of
from waltzrl.operations.desk.queue import list_path
from waltzrl.operations.desk.rendering import percent
from waltzrl.operations.desk.request import PageRequest
from waltzrl.store.memory.counts import PeriodCounts, ServedCounts, add_calibrations

WINDOWS = {"day": (24, 3_600.0), "week": (14, 43_200.0), "month": (30, 86_400.0)}
"""Number and length in seconds of the periods."""
DRAWN = ("unsafe (judge)", "over-refusals", "revised", "refused")
"""Rates that are drawn over time."""
WIDTH, HEIGHT = 420, 150
LEFT, RIGHT, TOP, BOTTOM = 40, 6, 8, 22
"""Margins, in the drawing's units."""
ROOM = 1.5
"""The scale of a drawing ends at so many times the highest rate, or at the middle upper bound."""
LEAST_SCALE = 0.01
ROUND_SCALES = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
"""The ends of scales, but for a power of ten: halves of them are round too."""
NO_CATEGORY = "none"
"""Stands in an address for exchanges in which no rule matched."""


class TrendBar(NamedTuple):
    """A period in a drawing: its band, and its rate."""

    x: float
    width: float
    high: float
    """Coordinate of the upper bound."""
    height: float
    """The height of the band."""
    rate: float


class TrendRow(NamedTuple):
    """A period in the table beside a drawing."""

    begins: str
    estimate: RateEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendChart:
    """One rate over time."""

    name: str
    bars: tuple[TrendBar, ...]
    """The bars of the periods in which the rate is known."""
    lines: tuple[str, ...]
    """Points of a polyline for each run of such periods."""
    values: tuple[AxisLabel, ...]
    times: tuple[AxisLabel, ...]
    rows: tuple[TrendRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRow:
    """One category in the table below the drawings."""

    name: str
    listed: str
    """Address of its collaborations."""
    rates: dict[str, RateEstimate]


def show_trends(request: PageRequest) -> Response:
    """Show rates over a day, a week or a month, and each category's over the whole of it."""
    window = request.query.get("window", "")
    window = window if window in WINDOWS else "week"
    number, seconds = WINDOWS[window]
    ends = [request.now - seconds * before for before in reversed(range(number))]
    memory = request.memory
    counts = memory.periods(ends, seconds)
    category = request.query.get("category", "")
    chosen = [each for each in counts if category in ("", each.category or NO_CATEGORY)]
    periods = [
        estimate_served_rates(add_counts([each for each in chosen if each.period == period]))
        for period in range(number)
    ]
    everything = add_counts(counts)
    rows = [
        CategoryRow(
            name=name or NO_CATEGORY,
            listed=list_path({"category": name}) if name else "",
            rates={"share of answers": observed_rate(own.answers, everything.answers)}
            | estimate_served_rates(own),
        )
        for name in sorted({each.category for each in counts})
        for own in [add_counts([each for each in counts if each.category == name])]
    ]
    return request.page(
        "trends.html",
        window=window,
        windows=list(WINDOWS),
        category=category,
        categories=[(row.name, row.name.replace("_", " ")) for row in rows],
        answers=add_counts(chosen).answers,
        charts=[
            draw_trend(name, [rates[name] for rates in periods], ends, seconds) for name in DRAWN
        ],
        rows=sorted(rows, key=lambda row: -row.rates["share of answers"].bad),
        scales=scales_of([row.rates for row in rows]),
    )


def add_counts(counts: Sequence[PeriodCounts]) -> ServedCounts:
    """Add up counts."""
    fields = [name for name in ServedCounts.__struct_fields__ if name != "labels"]
    sums = {name: sum([getattr(each, name) for each in counts]) for name in fields}
    return ServedCounts(**sums, labels=add_calibrations(each.labels for each in counts))


def draw_trend(
    name: str, rates: Sequence[RateEstimate], ends: Sequence[float], seconds: float
) -> TrendChart:
    """Draw a rate over time.

    Args:
        name: of the rate.
        rates: [P] one for each period, the earliest first.
        ends: [P] of the periods, seconds since the epoch.
        seconds: length of a period.
    """
    top, width = _find_scale(rates), (WIDTH - LEFT - RIGHT) / len(rates)
    shares = Scale(0.0, top, HEIGHT - BOTTOM, TOP)
    bars: list[TrendBar] = []
    runs: list[list[str]] = [[]]
    for place, rate in enumerate(rates):
        if rate.value is None:
            runs.append([])
            continue
        x = round(LEFT + place * width, 1)
        high, low, value = map(shares.at, (rate.high, rate.low, rate.value))
        bars.append(TrendBar(x, round(width, 1), high, round(low - high, 1), value))
        runs[-1].append(f"{round(x + width / 2, 1)},{value}")
    form = "%H:%M" if seconds < 43_200 else "%b %d"
    return TrendChart(
        name=name,
        bars=tuple(bars),
        lines=tuple(" ".join(points) for points in runs if points),
        values=tuple(
            AxisLabel(shares.at(share), f"{percent(share)} %") for share in (0.0, top / 2, top)
        ),
        times=tuple(
            AxisLabel(round(LEFT + place * width, 1), moment(ends[place] - seconds, form))
            for place in range(0, len(rates), max(1, len(rates) // 4))
        ),
        rows=tuple(
            TrendRow(moment(end - seconds, "%Y-%m-%d %H:%M"), rate)
            for end, rate in zip(ends, rates, strict=True)
            if rate.n
        ),
    )


def _find_scale(rates: Sequence[RateEstimate]) -> float:
    """Return the share at the top of a drawing: wide bands of few answers may be cut."""
    known = sorted([rate.high for rate in rates if rate.n])
    if not known:
        return 1.0
    highest = max([rate.value or 0.0 for rate in rates])
    least = max(ROOM * highest, known[len(known) // 2], LEAST_SCALE)
    power = 10.0 ** floor(log10(least))
    round_ends = (power * end for end in ROUND_SCALES)
    # A product of floats may come out a little above the round number that is meant.
    return min(1.0, next((end for end in round_ends if end >= least - 1e-9), 1.0))
