"""Draws the pictures of docs/monitoring.md: the dashboards' queries on a real Prometheus.

PYTHONPATH=tests python tools/draw_dashboards.py docs/pictures

A gateway with both stages serves four minutes of synthetic traffic, with an attack and an outage
of the upstream. matplotlib draws what Prometheus answers, in the places of the panels; it is not
Grafana, which has more to show.
"""

import asyncio
import io
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

from support.small_gateway import Model, chat, draft, gateway
from support.small_gateway import ask as ask_gateway
from support.small_prometheus import Prometheus, find_program, scraping
from support.small_site import http, read_request, site
from waltzrl.gateway.listener import open_listener
from waltzrl.gateway.server import Server
from waltzrl.operations.monitoring.dashboards import (
    DASHBOARDS,
    HEIGHT,
    RATE_WINDOW,
    Dashboard,
    Panel,
)

SECONDS, STEP, WINDOW = 240.0, 2, "20s"
CLIENTS = 4
BENIGN, HARMFUL = "How do I bake bread?", "What must nobody say?"
USUAL = (("echo", BENIGN, 80), ("unsafe", BENIGN, 8), ("refuses", BENIGN, 7), ("echo", HARMFUL, 3))
ATTACK = (("echo", BENIGN, 30), ("unsafe", HARMFUL, 55), ("stubborn", HARMFUL, 15))
OUTAGE = (("broken", BENIGN, 100),)
APPROVAL = '{"reasoning": "Fine.", "unsafe": false, "overrefuse": false, "feedback": ""}'
UNITS = {
    "percentunit": lambda value: f"{100 * value:.3g} %",
    "ms": lambda value: f"{value:.4g} ms",
    "reqps": lambda value: f"{value:.3g}/s",
    "currencyUSD": lambda value: f"${value:.3g}",
    "short": lambda value: f"{value:.4g}",
}
INK, MUTED, GRID = "#1f2329", "#6b7280", "#e5e7eb"
COLOURS = ("#3b6fb6", "#d97a34", "#4f9d69", "#b24c63", "#7b68a6", "#8c7853", "#3d9aa8", "#999999")


class SlowModel(Model):
    """Drafts after some tens of milliseconds."""

    def __init__(self, median_ms: float) -> None:
        super().__init__()
        self._median, self._random = median_ms / 1e3, Random(0)

    async def __call__(self, reader, writer):  # noqa: ANN001, ANN204
        while raw := await read_request(reader):
            head, _, body = raw.partition(b"\r\n\r\n")
            await asyncio.sleep(self._median * self._random.lognormvariate(0, 0.4))
            path = head.decode().split()[1].removeprefix("/base")
            writer.write(self.answer(json.loads(body) if body else None, path))
            self.bodies.clear()

    def draft(self, body: dict[str, object]) -> str:
        """Return what the model of this name drafts."""
        return "I'm sorry, but I can't help." if body["model"] == "refuses" else draft(body)


class Approval(SlowModel):
    """A feedback model that objects to nothing; the rules beside it do."""

    def answer(self, body: dict[str, object] | None, path: str) -> bytes:
        """Return a review."""
        if body is None:
            return super().answer(body, path)
        choice = {"message": {"role": "assistant", "content": APPROVAL}, "finish_reason": "stop"}
        return http({"choices": [choice]})


async def ask(app: object, random: Random, ends: float) -> None:
    """Ask, as the time of the run says, until its end."""
    begins = ends - SECONDS
    earlier: list[str] = []
    while (now := time.monotonic()) < ends:
        mix = USUAL
        if 90 < now - begins < 130:
            mix = ATTACK
        elif 180 < now - begins < 190:
            mix = OUTAGE
        (picked,) = random.choices(mix, [weight for *_, weight in mix])
        turns = [{"role": "user", "content": picked[1]}]
        user = str(random.random())
        answer = await chat(app, *picked[:1], messages=turns, user=user)
        if rated := earlier.pop(0) if len(earlier) > 3 else None:
            thumb = "up" if random.random() < 0.8 else "down"
            await ask_gateway(app, "/v1/feedback", {"id": rated, "thumb": thumb})
        if answer.status == 200 and random.random() < 0.2:
            earlier.append(answer.headers["x-request-id"])
        await asyncio.sleep(random.expovariate(1.5))


async def run(folder: Path) -> dict[tuple[str, str], list[dict[str, object]]]:
    """Serve the traffic; return what Prometheus answers to each query, over the time of the run."""
    labels = folder / "labels.jsonl"
    labelled = {BENIGN: "benign", HARMFUL: "unsafe"}
    lines = [json.dumps({"prompt": text, "label": label}) for text, label in labelled.items()]
    labels.write_text("\n".join(lines))
    async with site(Approval(25.0)) as reviewer:
        settings = (
            *(f"memory.url=sqlite:///{folder / 'memory.db'}", "memory.judge_share=1.0"),
            *(f"memory.subject_key={folder / 'memory.key'}", f"memory.judge=labelled:{labels}"),
            *(f"budget.folder={folder / 'costs'}", "prices.echo={input=0.5,output=1.5}"),
            *("memory.niceness=0", "stage=2", "stage2_percentage=50", "feedback.model=judge"),
            *(f"feedback.server={reviewer.url}", "feedback.self_test=false"),
        )
        async with gateway(*settings, model=SlowModel(60.0)) as app:
            listener = open_listener("127.0.0.1", 0)
            server = asyncio.create_task(Server(app, app.access).serve_on(listener))
            host, port = listener.getsockname()
            async with scraping(
                find_program("prometheus"), folder, f"{host}:{port}", every="2s"
            ) as prometheus:
                ends = time.monotonic() + SECONDS
                await asyncio.gather(*(ask(app, Random(n), ends) for n in range(CLIENTS)))
                answers = await answers_of(prometheus)
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
            listener.close()
    return answers


async def answers_of(prometheus: Prometheus) -> dict[tuple[str, str], list[dict[str, object]]]:
    """Run every query of the dashboards."""
    now = time.time()
    return {
        (panel.title, legend): (
            await prometheus.get(
                "query_range",
                query=query.replace(RATE_WINDOW, WINDOW),
                start=now - SECONDS + 5,
                end=now,
                step=STEP,
            )
        )["result"]
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for legend, query in panel.queries.items()
    }


def named(legend: str, labels: dict[str, str]) -> str:
    """Fill the labels into a legend of Grafana."""
    for name, value in labels.items():
        legend = legend.replace("{{" + name + "}}", value)
    return legend


def draw(dashboard: Dashboard, answers: dict[tuple[str, str], list], path: Path) -> None:
    """Draw the panels of a dashboard as a grid of two columns."""
    rows = math.ceil(len(dashboard.panels) / 2)
    figure = Figure(figsize=(15, 0.42 * HEIGHT * rows + 0.6), dpi=80, layout="constrained")
    figure.suptitle(dashboard.title, x=0.01, ha="left", fontsize=14, color=INK)
    grid = figure.subplots(rows, 2, squeeze=False)
    for axes in grid.flat[len(dashboard.panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, dashboard.panels, strict=False):
        lines = [
            (
                named(query.legend, line["metric"]),
                [(float(moment), float(value)) for moment, value in line["values"]],
            )
            for legend, query in panel.queries.items()
            for line in answers[panel.title, query.legend]
        ]
        _draw_panel(axes, panel, lines)
    image = io.BytesIO()
    figure.savefig(image)
    with Image.open(image) as drawn:  # with few colours, a third of the size
        drawn.convert("RGB").quantize(128).save(path, optimize=True)


def _draw_panel(axes: Axes, panel: Panel, lines: list[tuple[str, list]]) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
    axes.tick_params(labelsize=8, colors=MUTED, length=0)
    for side in axes.spines.values():
        side.set_color(GRID)
    begin = min(moment for _, points in lines for moment, _ in points)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{int(x // 60)}:{int(x % 60):02d}"))
    if panel.kind == "heatmap":
        _draw_heatmap(axes, lines, begin)
        return
    axes.grid(color=GRID, linewidth=0.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: UNITS[panel.unit](y)))
    for (name, points), colour in zip(lines, COLOURS * 3, strict=False):
        times = [moment - begin for moment, _ in points]
        axes.plot(times, [value for _, value in points], label=name, color=colour, linewidth=1.4)
    if panel.target is not None:
        axes.axhline(panel.target, color="#c0392b", linewidth=1, linestyle="--")
    highest = max((v for _, points in lines for _, v in points if math.isfinite(v)), default=0.0)
    axes.set_ylim(0, 1.1 * max(highest, panel.target or 0.0) or 1.0)
    place = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.1), "borderaxespad": 0.0}
    axes.legend(fontsize=7, frameon=False, labelcolor=INK, ncols=3, **place)  # below the data


def _draw_heatmap(axes: Axes, lines: list[tuple[str, list]], begin: float) -> None:
    """Draw a row for each line; of buckets the counts between two bounds."""
    is_buckets = any(name == "+Inf" for name, _ in lines)
    lines = sorted(lines, key=lambda line: float(line[0]) if is_buckets else line[0])
    moments = sorted({moment for _, points in lines for moment, _ in points})
    rows, below = [], dict.fromkeys(moments, 0.0)
    for _, points in lines:
        counts = dict.fromkeys(moments, 0.0) | dict(points)
        rows.append([max(0.0, counts[m] - (below[m] if is_buckets else 0.0)) for m in moments])
        below = counts
    edges = [moment - begin for moment in [*moments, moments[-1] + STEP]]
    axes.pcolormesh(edges, range(len(rows) + 1), rows, cmap="Blues", vmin=0)
    axes.set_yticks([n + 0.5 for n in range(len(rows))], [name for name, _ in lines])


def main() -> None:
    """Run the traffic, and draw each dashboard."""
    mpl.rcParams["text.parse_math"] = False
    with tempfile.TemporaryDirectory() as folder:
        answers = asyncio.run(run(Path(folder)))
    for dashboard in DASHBOARDS:
        draw(dashboard, answers, Path(sys.argv[1]) / f"{dashboard.uid}.png")


if __name__ == "__main__":
    main()
