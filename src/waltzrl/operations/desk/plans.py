"""Routed plans: the list, the page of one, and its picture."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import get_args
from urllib.parse import quote

import msgspec
from msgspec import structs
from starlette.responses import Response

from waltzrl.foundation.texts import moment
from waltzrl.operations.desk.queue import path_of, with_query
from waltzrl.operations.desk.request import NO_STORE, PageRequest, find_or_none, page_error
from waltzrl.store.memory.items import Item
from waltzrl.store.memory.plans import (
    PLANS,
    STARTED,
    TASKS,
    StoredPlan,
    StoredTask,
    TaskResult,
    TaskState,
    all_results,
    result_of,
)

LIST = "/desk/plans"
PICTURES = "/desk/pictures"
ROWS = 50
MAX_SEARCHED = 500
"""Plans that a page reads to find those with a task in one state."""
MAX_START = 1_000_000
"""Plans that a page can pass over."""
MAX_TASKS = 1_000
"""Tasks of a plan that its page shows; a plan with more has no picture."""
STATES: tuple[TaskState, ...] = get_args(TaskState)
PICTURE_HEADERS = {
    **NO_STORE,
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
}
"""A picture brings its colours with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One plan in the list."""

    id: str
    path: str
    time: float
    """Seconds since the epoch, when it was last begun or resumed."""
    states: Mapping[TaskState, int]
    """Tasks in each state that occurs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task in the table of its plan."""

    result: TaskResult
    """The result, with the texts that the role may see."""
    path: str
    """The address of its collaboration; empty when it was not reviewed, or is no longer kept."""


def show_plans(request: PageRequest) -> Response:
    """List the plans, the newest first; with a state, those that have a task in it."""
    state = next((state for state in STATES if state == request.query.get("state")), None)
    start = 0
    with suppress(ValueError):
        start = min(max(0, int(request.query.get("from", ""))), MAX_START)
    matching: list[tuple[int, PlanRow]] = []
    older: int | None = None
    for position in range(start, start + MAX_SEARCHED, ROWS):
        rows = _list_rows(request, position)
        matching += [
            (place, row)
            for place, row in enumerate(rows, position)
            if state is None or state in row.states
        ]
        older = position + ROWS if len(rows) == ROWS else None
        if len(matching) > ROWS or older is None:
            break
    if len(matching) > ROWS:  # one more than is shown tells that there are older ones
        older = matching[ROWS][0]
    return request.page(
        "plans.html",
        rows=[row for _, row in matching[:ROWS]],
        state=state,
        states=[(state, state) for state in STATES],
        note="older plans" if start else "the newest first",
        newest=_list_path(state) if start else "",
        older="" if older is None else _list_path(state, older),
    )


def show_plan(request: PageRequest) -> Response:
    """Show every task of a plan, and the picture where it can be drawn.

    Raises:
        RequestError: 404.
    """
    item, _, results = _find_plan(request)
    reviewed = request.memory.reviewed_tasks(item.key)
    shown = list(results.values())[:MAX_TASKS]
    is_drawn = request.source.draw_plan is not None and len(results) <= MAX_TASKS
    return request.page(
        "plan.html",
        plan=_build_plan_row(item, results),
        tasks=[
            TaskRow(
                result=structs.replace(
                    result,
                    task_type=request.visible(result.task_type),
                    reason=request.visible(result.reason),
                ),
                path=path_of(f"{item.key}/{result.id}") if result.id in reviewed else "",
            )
            for result in shown
        ],
        hidden=len(results) - len(shown),
        picture=f"{PICTURES}/{quote(item.key, safe='')}" if is_drawn else "",
    )


def show_picture(request: PageRequest) -> Response:
    """Send the picture of a plan.

    Raises:
        RequestError: 404.
    """
    _, plan, results = _find_plan(request)
    if request.source.draw_plan is None or len(results) > MAX_TASKS:
        raise page_error(404, "there is no picture of this plan")
    drawing = request.source.draw_plan(plan.tasks, results)
    return Response(drawing, headers=PICTURE_HEADERS, media_type="image/svg+xml")


def _list_rows(request: PageRequest, start: int) -> list[PlanRow]:
    memory = request.memory
    items = memory.store.search(PLANS, limit=ROWS, offset=start)
    states = memory.task_states([item.key for item in items])
    rows = []
    for item in items:
        plan = msgspec.convert(item.value, StoredPlan)
        ended = {
            task_id: TaskResult(id=task_id, task_type="", state=state)
            for task_id, state in states[item.key].items()
            if state in STATES
        }
        rows.append(_build_plan_row(item, all_results(plan.tasks, ended)))
    return rows


def _build_plan_row(item: Item, results: Mapping[str, TaskResult]) -> PlanRow:
    counts = Counter(result.state for result in results.values())
    return PlanRow(
        id=item.key,
        path=f"{LIST}/{quote(item.key, safe='')}",
        time=item.updated_at.timestamp(),
        states={state: counts[state] for state in STATES if state in counts},
    )


def _find_plan(request: PageRequest) -> tuple[Item, StoredPlan, dict[str, TaskResult]]:
    """Return a plan and the results of all its tasks."""
    plan_id, store = request.http.path_params["plan_id"], request.memory.store
    item = find_or_none(partial(store.get, PLANS), plan_id)
    if item is None:
        raise page_error(404, "no plan has this id")
    plan = msgspec.convert(item.value, StoredPlan)
    items = store.search((*TASKS, plan_id), limit=len(plan.tasks))
    stored = [msgspec.convert(task.value, StoredTask) for task in items]
    ended = {task.id: result_of(task) for task in stored if task.state != STARTED}
    results = all_results(plan.tasks, ended)
    for task in stored:
        if task.state == STARTED:
            reason = (
                f"its agent was called at {moment(task.time)}; it is running, or was interrupted"
            )
            results[task.id] = structs.replace(
                results[task.id], agent_id=task.agent_id, reason=reason
            )
    return item, plan, results


def _list_path(state: TaskState | None, start: int = 0) -> str:
    query = {"state": state or "", "from": str(start or "")}
    return with_query(LIST, {name: value for name, value in query.items() if value})
