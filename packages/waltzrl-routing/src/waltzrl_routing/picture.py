"""A plan as a picture: Mermaid text, and an SVG that needs nothing else.

Both show a box for each task with its agent, arrows from what it depends on, and the state of each
task in colour and in words.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import Literal, TypeAlias

from waltzrl.errors import InputError
from waltzrl.store.memory.plans import PlannedTask, TaskResult, TaskState
from waltzrl_routing.plan import Explanation, RoutingPlan
from waltzrl_routing.tasks import Task, TaskGraph

ShownState: TypeAlias = TaskState | Literal["unassigned"]


@dataclass(frozen=True, slots=True)
class Colours:
    fill: str
    line: str


LIGHT: dict[ShownState, Colours] = {
    "pending": Colours("#f3f4f6", "#6b7280"),
    "done": Colours("#dcfce7", "#15803d"),
    "coached": Colours("#dbeafe", "#1d4ed8"),
    "declined": Colours("#fef3c7", "#b45309"),
    "blocked": Colours("#ede9fe", "#6d28d9"),
    "failed": Colours("#fee2e2", "#b91c1c"),
    "interrupted": Colours("#fce7f3", "#be185d"),
    "unassigned": Colours("#ffffff", "#6b7280"),
}
DARK: dict[ShownState, Colours] = {
    "pending": Colours("#27272a", "#a1a1aa"),
    "done": Colours("#14352a", "#4ade80"),
    "coached": Colours("#172a4d", "#60a5fa"),
    "declined": Colours("#3b2a0f", "#fbbf24"),
    "blocked": Colours("#2c2150", "#a78bfa"),
    "failed": Colours("#3f1a1a", "#f87171"),
    "interrupted": Colours("#42182f", "#f472b6"),
    "unassigned": Colours("#18181b", "#a1a1aa"),
}
INK, INK_DARK = "#18181b", "#f4f4f5"

BOX_WIDTH, BOX_HEIGHT, LANE_HEIGHT = 196, 46, 4
GAP_X, GAP_Y = 56, 16
MARGIN = 20
MOST_TASKS = 1_000
"""The most tasks in an SVG; larger ones are of no use to anybody."""
LEGEND_HEIGHT = 34
LEGEND_STEP = 108
LONGEST_ID, LONGEST_CAPTION = 24, 28
"""The numbers of characters that fit into a box."""


def plan_as_mermaid(
    graph: TaskGraph, plan: RoutingPlan, states: Mapping[str, TaskState] | None = None
) -> str:
    """Return a Mermaid flowchart.

    Args:
        graph: the tasks.
        plan: their agents.
        states: what became of tasks, by id; those of the plan without one are pending, others,
            which were done before, are done.
    """
    shown = _merge_states(graph, plan, states or {})
    ids = {task_id: f"t{place}" for place, task_id in enumerate(graph.order())}
    lines = ["flowchart LR"]
    for task_id, name in ids.items():
        label = "<br/>".join(
            map(_escape_mermaid, [task_id, _render_caption(plan, task_id, shown[task_id])])
        )
        lines.append(f'  {name}["{label}"]:::{shown[task_id]}')
    lines += [
        f"  {ids[needed]} --> {ids[task_id]}"
        for task_id in ids
        for needed in graph.tasks[task_id].depends_on
    ]
    lines += [
        f"  classDef {state} fill:{LIGHT[state].fill},stroke:{LIGHT[state].line},color:{INK}"
        for state in _list_legend(shown)
    ]
    return "\n".join(lines) + "\n"


def plan_as_svg(
    graph: TaskGraph, plan: RoutingPlan, states: Mapping[str, TaskState] | None = None
) -> str:
    """Return an SVG for light and dark pages; the arguments are those of `plan_as_mermaid`.

    Raises:
        InputError: there are more tasks than a picture can show.
    """
    if len(graph) > MOST_TASKS:
        raise InputError(
            f"a picture shows at most {MOST_TASKS:,} tasks, got {len(graph):,}; draw a part of them"
        )
    shown = _merge_states(graph, plan, states or {})
    layout = _Layout(graph)
    legend = _list_legend(shown)
    height, width = layout.height, max(layout.width, 2 * MARGIN + len(legend) * LEGEND_STEP)
    arrows = [
        layout.arrow(needed, task_id)
        for task_id in shown
        for needed in graph.tasks[task_id].depends_on
    ]
    boxes = [
        _draw_box(plan, task_id, layout.box(task_id), state) for task_id, state in shown.items()
    ]
    keys = [
        f'<g class="{state}" transform="translate({MARGIN + number * LEGEND_STEP} {height})">'
        f'<rect width="14" height="14" rx="3"/><text x="20" y="12">{state}</text></g>'
        for number, state in enumerate(legend)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height + LEGEND_HEIGHT:.1f}" role="img" aria-label="Plan of {len(graph)} tasks">'
    )
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    return "\n".join([head, _write_style(), marker, *arrows, *boxes, *keys, "</svg>", ""])


def results_as_svg(tasks: Sequence[PlannedTask], results: Mapping[str, TaskResult]) -> str:
    """Return the SVG of a plan that is stored.

    Args:
        tasks: dependencies first.
        results: of every task, by id.

    Raises:
        InputError: there are more tasks than a picture can show.
    """
    graph = TaskGraph(
        Task(id=task.id, description=task.id, depends_on=task.depends_on) for task in tasks
    )
    agents = {task.id: results[task.id].agent_id for task in tasks}
    plan = RoutingPlan(
        assignments={task_id: agent for task_id, agent in agents.items() if agent},
        explanations={
            task.id: Explanation(agent=agents[task.id] or None, words=task.why) for task in tasks
        },
    )
    return plan_as_svg(graph, plan, {task.id: results[task.id].state for task in tasks})


def _merge_states(
    graph: TaskGraph, plan: RoutingPlan, states: Mapping[str, TaskState]
) -> dict[str, ShownState]:
    shown: dict[str, ShownState] = dict.fromkeys(graph.order(), "done")
    shown |= dict.fromkeys(plan.explanations, "pending")
    shown |= dict.fromkeys(plan.unassigned, "unassigned")
    return shown | {task_id: states[task_id] for task_id in states if task_id in shown}


def _list_legend(shown: Mapping[str, ShownState]) -> list[ShownState]:
    occurring = set(shown.values())
    return [state for state in LIGHT if state in occurring]


def _render_caption(plan: RoutingPlan, task_id: str, state: ShownState) -> str:
    agent = plan.assignments.get(task_id)
    return " · ".join(filter(None, [agent, "" if state == "pending" and agent else state]))


class _Layout:
    """Tasks in columns by depth, the first that can be done on the left.

    An arrow over several columns has a lane in each between, which its task's other arrows share;
    so no arrow runs behind a box.
    """

    def __init__(self, graph: TaskGraph) -> None:
        depth, last = graph.depths(), dict.fromkeys(graph.order(), 0)
        for task in graph.tasks.values():
            for other in task.depends_on:
                last[other] = max(last[other], depth[task.id] - 1)
        columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for task_id, first in depth.items():
            # A box in its own column, and a lane in each that its arrows pass through.
            for reached in columns[first : max(first, last[task_id]) + 1]:
                reached.append(task_id)
        self._depth = depth
        self._middle: dict[tuple[str, int], float] = {}
        """The middle of a task's box or lane in a column: how far below the top."""
        totals = [
            sum(self._height(task_id, number) + GAP_Y for task_id in column)
            for number, column in enumerate(columns)
        ]
        tallest = max(totals, default=0)
        self.width = 2 * MARGIN + len(columns) * (BOX_WIDTH + GAP_X) - GAP_X
        self.height = MARGIN + tallest
        """The height without the legend."""
        # From left to right: a column is sorted by the places in the one before.
        for number, column in enumerate(columns):
            column.sort(key=lambda task_id: self._mean_place_before(graph, task_id, number))
            top = MARGIN + (tallest - totals[number]) / 2
            for task_id in column:
                self._middle[task_id, number] = top + self._height(task_id, number) / 2
                top += self._height(task_id, number) + GAP_Y

    def box(self, task_id: str) -> tuple[float, float]:
        """Return the upper left corner of a task's box."""
        column = self._depth[task_id]
        return _find_left(column), self._middle[task_id, column] - BOX_HEIGHT / 2

    def arrow(self, needed: str, task_id: str) -> str:
        """Return the arrow from a task to one that depends on it."""
        start, end = self._depth[needed], self._depth[task_id]
        y = self._middle[needed, start]
        path = f"M{_find_left(start) + BOX_WIDTH:.1f} {y:.1f}"
        for column in range(start + 1, end + 1):
            x = _find_left(column)
            middle = self._middle[needed if column < end else task_id, column]
            bend = x - GAP_X / 2
            path += f"C{bend:.1f} {y:.1f} {bend:.1f} {middle:.1f} {x:.1f} {middle:.1f}"
            path += f"H{x + BOX_WIDTH:.1f}" if column < end else ""
            y = middle
        return f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>'

    def _height(self, task_id: str, column: int) -> float:
        return BOX_HEIGHT if self._depth[task_id] == column else LANE_HEIGHT

    def _mean_place_before(self, graph: TaskGraph, task_id: str, column: int) -> float:
        """Return the mean place, in the column before, of what leads here."""
        if self._depth[task_id] < column:
            return self._middle[task_id, column - 1]
        needed = graph.tasks[task_id].depends_on
        return fmean(self._middle[other, column - 1] for other in needed) if needed else 0.0


def _find_left(column: int) -> float:
    return MARGIN + column * (BOX_WIDTH + GAP_X)


def _draw_box(
    plan: RoutingPlan, task_id: str, place: tuple[float, float], state: ShownState
) -> str:
    explanation = plan.explanations.get(task_id)
    words = f"{task_id}: {explanation.words}" if explanation else task_id
    caption = _shorten_text(_render_caption(plan, task_id, state), LONGEST_CAPTION)
    return (
        f'<g class="{state}" transform="translate({place[0]:.1f} {place[1]:.1f})">'
        f"<title>{_escape_svg(words)}</title>"
        f'<rect width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
        f'<text class="task" x="10" y="19">{_escape_svg(_shorten_text(task_id, LONGEST_ID))}</text>'
        f'<text x="10" y="36">{_escape_svg(caption)}</text></g>'
    )


def _write_style() -> str:
    def colours(scheme: Mapping[ShownState, Colours], ink: str) -> str:
        rules = [f".{name} rect{{fill:{c.fill};stroke:{c.line}}}" for name, c in scheme.items()]
        arrow = scheme["pending"].line
        return f"text{{fill:{ink}}}.arrow{{stroke:{arrow}}}.tip{{fill:{arrow}}}{''.join(rules)}"

    return (
        "<style>text{font:12px system-ui,sans-serif}.task{font-weight:600}rect{stroke-width:1.5}"
        ".unassigned rect{stroke-dasharray:4 3}.arrow{fill:none;stroke-width:1.3}"
        f"{colours(LIGHT, INK)}"
        f"@media(prefers-color-scheme:dark){{{colours(DARK, INK_DARK)}}}</style>"
    )


def _shorten_text(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _escape_svg(text: str) -> str:
    """Escape, and replace what XML cannot hold."""
    return escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text))


def _escape_mermaid(text: str) -> str:
    """Write what is not a letter, a digit or harmless as Mermaid's entity."""
    return re.sub(r"[^\w .,:·-]", lambda match: f"#{ord(match[0])};", text)
