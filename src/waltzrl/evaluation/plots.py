"""The report's plots: Pareto, categories, training curves.

Each is drawn twice: as a PNG in a light theme, to be shared, and as an SVG whose colours are
the page's CSS variables, so that it follows a light or a dark page.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from waltzrl.errors import MissingExtraError
from waltzrl.evaluation.intervals import Estimate, harmonic
from waltzrl.evaluation.metrics import Metrics, find_best
from waltzrl.foundation.texts import make_visible

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox
except ImportError as error:
    raise MissingExtraError("the report", "matplotlib", "report") from error

STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    # Without it the ids in an SVG are random, and equal plots differ.
    "svg.hashsalt": "waltzrl",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}
LONGEST_NAME = 36
KEY_LINE = 16
"""Height of a line of names beside a plot, in points."""
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
Series = Mapping[str, Sequence[Mapping[str, float]]]
"""Run name -> lines of its metrics.jsonl, each with `step` and any of `CURVES`."""
REWARD = "reward/conversation_mean"
CURVES = {
    "validation/f1": "F1 on the validation set",
    "validation/asr": "ASR on the validation set",
    "validation/orr": "ORR on the validation set",
    REWARD: "reward",
    "reward/improvement_mean": "R_DIR",
    "rate/label_accuracy": "label accuracy",
    "rate/asr": "ASR",
    "rate/draft_asr": "ASR of the draft",
    "rate/feedback_trigger": "FTR",
    "rate/orr": "ORR",
    "rate/draft_orr": "ORR of the draft",
    "rate/non_answer": "replies without an answer",
    "rate/draft_non_answer": "drafts without an answer",
    "kl/conversation_nats": "KL to the reference, nats",
    "kl/feedback_nats": "KL of the feedback agent, nats",
    "entropy/conversation_nats": "entropy, nats per token",
    "entropy/feedback_nats": "entropy of the feedback agent",
    "ratio/conversation_max": "largest importance ratio",
    "ratio/conversation_clipped_share": "share of tokens clipped",
    "length/conversation_tokens": "reply length, tokens",
    "length/conversation_truncated_share": "share of replies cut off",
}
"""The metrics of a training that are drawn, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours by their meaning."""

    ink: str
    muted: str
    line: str
    accent: str
    danger: str
    series: tuple[str, ...]


LIGHT = Palette(
    ink="#1b2230",
    muted="#59616f",
    line="#e4e7ec",
    accent="#0b6b61",
    danger="#b23a24",
    series=("#0e7c70", "#7a5af8", "#dc8a00", "#c8452d", "#3478c9", "#667085"),
)
THEMED = Palette(
    ink="#010101",
    muted="#020202",
    line="#030303",
    accent="#040404",
    danger="#050505",
    series=("#060601", "#060602", "#060603", "#060604", "#060605", "#060606"),
)
"""Placeholders that no other element uses; each is replaced by a CSS variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot in two formats."""

    png: bytes
    svg: str
    """An <svg> element for a page that defines --ink, --muted ..."""


def plot_pareto(table: Sequence[Metrics]) -> Plot:
    """ASR against ORR with interval crosses; dotted lines join points of equal F1."""
    points = [line for line in table if line.asr.value is not None and line.orr.value is not None]
    return _draw_plot(lambda palette: _draw_pareto(points, palette))


def plot_categories(table: Sequence[Metrics]) -> Plot:
    """A heat map: patterns x categories, ASR on the left and ORR on the right."""
    return _draw_plot(lambda palette: _draw_categories(table, palette))


def training_curves(series: Series) -> Plot:
    """One small panel per metric that any run has logged."""
    return _draw_plot(lambda palette: _training_curves(series, palette))


def plot_seed_dots(values: Mapping[str, Sequence[float]], label: str) -> Plot:
    """A line of dots for each name, one dot for each seed, with their mean.

    Args:
        values: [S] shares, by name.
        label: of the axis.
    """
    return _draw_plot(lambda palette: _draw_seed_dots(values, label, palette))


def _draw_plot(paint: Callable[[Palette], Figure]) -> Plot:
    with mpl.rc_context(STYLE):
        png, svg = io.BytesIO(), io.StringIO()
        # Painted twice, because colours are fixed in a figure: once for files, once for pages.
        paint(LIGHT).savefig(png, format="png", dpi=150, facecolor="white")
        paint(THEMED).savefig(svg, format="svg", transparent=True, metadata=NO_METADATA)
    picture = svg.getvalue()
    for placeholder, name in _list_variables():
        picture = picture.replace(placeholder, f"var(--{name})")
    return Plot(png=png.getvalue(), svg=picture[picture.index("<svg") :])


def _list_variables() -> list[tuple[str, str]]:
    names = ("ink", "muted", "line", "accent", "danger")
    plain = [(getattr(THEMED, name), name) for name in names]
    return plain + [(colour, f"series-{n}") for n, colour in enumerate(THEMED.series, start=1)]


def _style_frame(axes: Axes, palette: Palette) -> None:
    axes.tick_params(colors=palette.muted, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(palette.line)
    axes.xaxis.label.set_color(palette.muted)
    axes.yaxis.label.set_color(palette.muted)


def _draw_pareto(points: Sequence[Metrics], palette: Palette) -> Figure:
    figure = Figure(figsize=(8.6, max(5.4, 1 + KEY_LINE / 72 * len(points))), layout="constrained")
    axes = figure.add_subplot()
    _style_frame(axes, palette)
    # In percent, with a twentieth more, so that no interval ends at the frame.
    reach = (
        max([0.1, *(_reach_of(p.asr) for p in points), *(_reach_of(p.orr) for p in points)]) * 105
    )
    axes.set(xlim=(0, reach), ylim=(0, reach))
    axes.set(xlabel="over-refusal rate, %  (left is better)")
    axes.set(ylabel="attack success rate, %  (down is better)")
    labels = _draw_equal_f1(axes, reach, palette)
    winner = find_best(points) if points else None
    for point in points:
        colour = palette.accent if point is winner else palette.muted
        x, y = _convert_to_percent(point.orr), _convert_to_percent(point.asr)
        axes.errorbar(
            x[0],
            y[0],
            xerr=[[x[0] - x[1]], [x[2] - x[0]]],
            yerr=[[y[0] - y[1]], [y[2] - y[0]]],
            fmt="o",
            color=colour,
            markersize=9 if point is winner else 6,
            elinewidth=1.2,
            zorder=3,
            clip_on=False,  # a point on an axis is drawn whole
        )
    _write_key(axes, points, winner, palette)
    figure.draw_without_rendering()  # settles the layout, and with it where points lie in pixels
    figure.set_layout_engine("none")
    bars, marks = _find_covered(axes, points)
    lettering = _Lettering(figure, bars, marks + [label.get_window_extent() for label in labels])
    _write_numbers(axes, points, winner, lettering, palette)
    return figure


def _draw_equal_f1(axes: Axes, reach: float, palette: Palette) -> Sequence[Text]:
    """Draw dotted lines of equal F1; return their labels."""
    steps = [reach * step / 60 for step in range(61)]
    shares = [min(step / 100, 1.0) for step in steps]
    f1 = [[100 * harmonic(asr, orr) for orr in shares] for asr in shares]
    levels = [level for level in (50, 60, 70, 80, 90, 95) if level > f1[-1][-1]]
    lines = axes.contour(
        steps, steps, f1, levels, colors=palette.muted, linestyles=":", linewidths=0.7, alpha=0.7
    )
    return axes.clabel(lines, fmt="F1 %g", fontsize=8)


@dataclass(frozen=True, slots=True)
class _Lettering:
    """Finds places for texts, in pixels, and remembers what they cover."""

    figure: Figure
    bars: list[Bbox]
    """The bars that a text should keep clear of."""
    marks: list[Bbox]
    """The points and texts to keep clear of, which matter more than bars."""

    def size(self, text: str, style: dict[str, str | int]) -> Bbox:
        """Return how large a text would be."""
        # Only a text in a figure has a size.
        drawn = self.figure.text(0, 0, text, style)
        size: Bbox = drawn.get_window_extent()
        drawn.remove()
        return size

    def take(self, within: Bbox, size: Bbox, starts: Sequence[tuple[float, float]]) -> Bbox:
        """Take the best place for a text: one that covers little, and early among the starts.

        Args:
            within: bounds of all places.
            size: of the text.
            starts: lower left corners, the preferred ones first.
        """
        boxes = [
            Bbox.from_bounds(
                min(max(x, within.x0), within.x1 - size.width),
                min(max(y, within.y0), within.y1 - size.height),
                size.width,
                size.height,
            )
            for x, y in starts
        ]
        costs = [
            3 * box.count_overlaps(self.marks) + box.count_overlaps(self.bars) + rank / 40
            for rank, box in enumerate(boxes)
        ]
        box = boxes[costs.index(min(costs))]
        self.marks.append(box)
        return box

    def fraction(self, x: float, y: float) -> tuple[float, float]:
        """Return a place as fractions of the figure: pixels change with the format."""
        across, up = self.figure.transFigure.inverted().transform((x, y))
        return float(across), float(up)


def _find_covered(axes: Axes, points: Sequence[Metrics]) -> tuple[list[Bbox], list[Bbox]]:
    """Return what the intervals and what the points cover, in pixels."""
    bars, marks = [], []
    for point in points:
        orr, asr = _convert_to_percent(point.orr), _convert_to_percent(point.asr)
        x, y = axes.transData.transform((orr[0], asr[0]))
        left, low = axes.transData.transform((orr[1], asr[1]))
        right, high = axes.transData.transform((orr[2], asr[2]))
        bars += [Bbox.from_extents(left, y - 2, right, y + 2)]
        bars += [Bbox.from_extents(x - 2, low, x + 2, high)]
        marks.append(Bbox.from_extents(x - 8, y - 8, x + 8, y + 8))
    return bars, marks


def _write_key(
    axes: Axes, points: Sequence[Metrics], winner: Metrics | None, palette: Palette
) -> None:
    """List number and name of every point beside the axes, clear of all that is drawn."""
    for number, point in enumerate(points, start=1):
        axes.annotate(
            f"{number}  {_shorten_name(point.pattern)}",
            (1.03, 1.0),
            (0, -KEY_LINE * (number - 1)),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            color=palette.accent if point is winner else palette.ink,
            fontweight="bold" if point is winner else "normal",
        )


def _write_numbers(
    axes: Axes,
    points: Sequence[Metrics],
    winner: Metrics | None,
    lettering: _Lettering,
    palette: Palette,
) -> None:
    """Write the number of every point near it, clear of bars and other numbers if it can be."""
    for number, point in enumerate(points, start=1):
        x, y = axes.transData.transform(
            (_convert_to_percent(point.orr)[0], _convert_to_percent(point.asr)[0])
        )
        weight = "bold" if point is winner else "normal"
        size = lettering.size(str(number), {"fontweight": weight})
        starts = [(x + right, y + up) for right, up in _list_places(size.width)]
        box = lettering.take(axes.bbox, size, starts)
        axes.annotate(
            str(number),
            lettering.fraction(x, y),
            lettering.fraction(box.x0, box.y0),
            xycoords="figure fraction",
            color=palette.accent if point is winner else palette.ink,
            fontweight=weight,
            arrowprops={"arrowstyle": "-", "color": palette.muted, "linewidth": 0.6},
            zorder=4,
        )


def _list_places(width: float) -> list[tuple[float, float]]:
    """Where a text of this width may begin, in pixels from its point; near places first."""
    return [
        place
        for away in (8, 12, 26, 44, 64, 88, 116)
        for place in (
            (away, 4.0),
            (away, -18.0),
            (-away - width, 4.0),
            (-away - width, -18.0),
            (-width / 2, away),
            (-width, away),
            (away, away),
            (-away - width, away),
            (-width / 2, -away - 16),
            (away, -away - 16),
        )
    ]


def _draw_categories(table: Sequence[Metrics], palette: Palette) -> Figure:
    asr = sorted({name for line in table for name in line.asr_by_category})
    orr = sorted({name for line in table for name in line.orr_by_category})
    width = 3.2 + 0.75 * max(4, len(asr) + len(orr))
    figure = Figure(figsize=(width, 1.7 + 0.42 * len(table)), layout="constrained")
    ratios = [max(1, len(asr)), max(1, len(orr))]
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=ratios)
    _draw_heat_map(left, [line.asr_by_category for line in table], asr, palette)
    _draw_heat_map(right, [line.orr_by_category for line in table], orr, palette)
    left.set_title("ASR, %", color=palette.ink, fontsize=10, loc="left")
    right.set_title("ORR, %", color=palette.ink, fontsize=10, loc="left")
    left.set_yticks(
        [row + 0.5 for row in range(len(table))], [_shorten_name(line.pattern) for line in table]
    )
    # Downwards: the first pattern stands on top.
    left.set_ylim(len(table), 0)
    return figure


def _draw_heat_map(
    axes: Axes, rows: Sequence[Mapping[str, Estimate]], names: Sequence[str], palette: Palette
) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=palette.ink, length=0)
    axes.set_xlim(0, max(1, len(names)))
    axes.set_xticks(
        [n + 0.5 for n in range(len(names))], map(_shorten_name, names), rotation=30, ha="right"
    )
    for y, row in enumerate(rows):
        for x, name in enumerate(names):
            value = row[name].value if name in row else None
            if value is None:
                continue
            box = Rectangle((x + 0.03, y + 0.05), 0.94, 0.9, alpha=0.04 + 0.7 * value)
            box.set(facecolor=palette.danger, edgecolor="none")
            axes.add_patch(box)
            axes.text(
                x + 0.5, y + 0.5, f"{100 * value:.0f}", color=palette.ink, ha="center", va="center"
            )


def _training_curves(series: Series, palette: Palette) -> Figure:
    lines = [line for run in series.values() for line in run]
    shown = [key for key in CURVES if any(key in line for line in lines)] or [REWARD]
    across = min(3, len(shown))
    # rounded up
    down = -(-len(shown) // across)
    figure = Figure(figsize=(3.4 * across, 2.5 * down + 0.4), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    for axes, key in zip(grid, shown, strict=False):
        _style_frame(axes, palette)
        axes.grid(axis="y", color=palette.line, linewidth=0.8)
        axes.set_title(CURVES[key], color=palette.ink, fontsize=10, loc="left")
        for number, (name, run) in enumerate(series.items()):
            drawn = [(line["step"], line[key]) for line in run if key in line]
            colour = palette.series[number % len(palette.series)]
            axes.plot(
                *zip(*drawn, strict=True) if drawn else ((), ()),
                color=colour,
                label=_shorten_name(name),
            )
        axes.ticklabel_format(axis="y", useOffset=False)
    for axes in grid[max(0, len(shown) - across) : len(shown)]:
        axes.set_xlabel("training step")
    handles, names = grid[0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside lower center", ncols=4, frameon=False, labelcolor=palette.ink
    )
    return figure


def _draw_seed_dots(values: Mapping[str, Sequence[float]], label: str, palette: Palette) -> Figure:
    figure = Figure(figsize=(8.6, 0.8 + 0.32 * len(values)), layout="constrained")
    axes = figure.add_subplot()
    _style_frame(axes, palette)
    axes.tick_params(axis="y", colors=palette.ink)
    axes.grid(axis="x", color=palette.line, linewidth=0.8)
    for place, shares in enumerate(values.values()):
        numbers = [100 * share for share in shares]
        axes.plot(
            numbers, [place] * len(numbers), "o", color=palette.muted, markersize=5, alpha=0.6
        )
        if numbers:
            middle = sum(numbers) / len(numbers)
            axes.plot([middle] * 2, [place - 0.3, place + 0.3], color=palette.accent, linewidth=2.5)
    axes.set_yticks(range(len(values)), map(_shorten_name, values))
    axes.set(ylim=(len(values) - 0.5, -0.5), xlabel=f"{label}, %")
    return figure


def _shorten_name(text: str) -> str:
    """Shorten a name so that it fits beside a plot."""
    short = make_visible(text).replace("\n", " ")
    return short if len(short) <= LONGEST_NAME else short[: LONGEST_NAME - 1] + "…"


def _reach_of(estimate: Estimate) -> float:
    return estimate.high or 0.0


def _convert_to_percent(estimate: Estimate) -> tuple[float, float, float]:
    """Value, low and high of an estimate that has them."""
    value, low, high = estimate.value or 0.0, estimate.low or 0.0, estimate.high or 0.0
    return 100 * value, 100 * low, 100 * high
