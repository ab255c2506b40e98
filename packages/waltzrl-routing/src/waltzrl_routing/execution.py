"""Runs a plan: tasks whose dependencies are done, as many at once as agents and limits allow."""

import asyncio
import heapq
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import uuid4

from waltzrl.agents.coaching import Coach
from waltzrl.errors import InputError
from waltzrl.gateway.guard import Guard
from waltzrl.store.memory.plans import GOOD, PlannedTask, TaskResult, all_results
from waltzrl_routing.plan import RoutingPlan
from waltzrl_routing.registry import AgentRegistry
from waltzrl_routing.results import PlanResult
from waltzrl_routing.runner import Execute, TaskRunner, Work, prompt_of
from waltzrl_routing.tasks import TaskGraph, task_as_json

if TYPE_CHECKING:  # both need the extra of the memory
    from waltzrl.store.memory.safety import SafetyMemory
    from waltzrl_routing.progress import PlanProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings:
    """How plans are run."""

    max_concurrent_tasks: int = 32
    """The most tasks that all agents together do at once."""
    timeout_seconds: float = 600.0
    """The most time that an agent may take for a task."""
    check_all: bool = False
    """Whether tasks of every type are checked, and not only those of the registry's
    `safety_critical`."""
    examples: bool = True
    """Whether both agents are shown similar coaching of the past, where there is a memory."""
    may_learn: bool | None = None
    """Whether the agents may be trained on what is remembered; None when nobody has said."""
    keep_days: float = 90.0
    """The number of days from its last start after which all records of a plan expire."""

    def __post_init__(self) -> None:
        if self.max_concurrent_tasks < 1 or self.timeout_seconds <= 0 or self.keep_days <= 0:
            raise InputError(
                "max_concurrent_tasks must be 1 or more, timeout_seconds and keep_days above 0; "
                f"got {self.max_concurrent_tasks}, {self.timeout_seconds} and {self.keep_days}"
            )


class Executor:
    """Runs plans."""

    def __init__(
        self,
        execute: Execute | None,
        registry: AgentRegistry,
        *,
        guard: Guard | None,
        memory: "SafetyMemory | None" = None,
        settings: ExecutionSettings | None = None,
    ) -> None:
        """Combine what runs plans.

        Args:
            execute: has the agent `work.agent` do `work.task`; None has the guard's conversation
                agent do all tasks.
            registry: says how many tasks an agent does at once, and which types are checked.
            guard: reviews, coaches and declines; its `max_rounds` limits the coaching. None
                checks nothing.
            memory: keeps progress, so that a plan can be resumed, and coaching sessions; None
                keeps nothing.
            settings: limits and switches.

        Raises:
            InputError: `execute` cannot be called, or is None without a guard.
        """
        if not callable(execute) and (execute is not None or guard is None):
            raise InputError(
                f"execute: got {type(execute).__name__}; need `async def execute(work) -> str`"
            )
        self._settings = settings or ExecutionSettings()
        self._registry, self._memory = registry, memory
        self._checked_types = frozenset(registry.safety_critical)
        coach = Coach(memory) if memory is not None and self._settings.examples else None
        self._runner = TaskRunner(execute, guard, coach, self._settings.timeout_seconds)

    async def run(
        self,
        graph: TaskGraph,
        plan: RoutingPlan,
        *,
        plan_id: str = "",
        subject: str = "",
        rerun: Collection[str] = (),
    ) -> PlanResult:
        """Run all tasks whose dependencies are done.

        A task that is declined or fails blocks those that depend on it, and nothing else. With a
        memory, a plan whose process ended is resumed by its id: tasks that ended are not run
        again, and their stored results, without personal data, go to the tasks that need them.

        Args:
            graph: the tasks.
            plan: their agents.
            plan_id: names the plan in the memory; empty makes one up.
            subject: whom the plan is for; kept only as a digest.
            rerun: tasks to run again although they were started before and were not done.

        Raises:
            InputError: the plan is not of these tasks or agents, is being run by somebody else,
                or was begun with other tasks.
            StorageError: the memory is unavailable; what was running is cancelled.
        """
        _check_plan(graph, plan, self._registry)
        if rerun and self._memory is None:
            raise InputError("rerun: there is no memory, so no task was run before")
        digest, plan_id = _digest_graph(graph), plan_id or uuid4().hex
        tasks = _list_planned(graph, plan)
        progress = self._open_progress(plan_id, subject)
        results: dict[str, TaskResult] = {}
        with progress.opened(digest, tasks) if progress else nullcontext():
            if progress is not None:
                results = await asyncio.to_thread(progress.resume, graph, rerun)
            _require_all_planned(graph, plan, results)
            room = {agent.agent_name: agent.max_concurrent_tasks for agent in self._registry.agents}
            limit = self._settings.max_concurrent_tasks
            await self._run(_Schedule(graph, plan, room, limit, results), plan_id, progress)
        return PlanResult(plan_id=plan_id, results=all_results(tasks, results))

    def _open_progress(self, plan_id: str, subject: str) -> "PlanProgress | None":
        """Return the plan in the memory; None without a memory."""
        if self._memory is None:
            return None
        from waltzrl_routing.progress import PlanProgress

        return PlanProgress(
            self._memory,
            plan_id,
            subject=subject,
            may_learn=self._settings.may_learn,
            keep_days=self._settings.keep_days,
        )

    async def _run(
        self, schedule: "_Schedule", plan_id: str, progress: "PlanProgress | None"
    ) -> None:
        """Run tasks until none is running and none can be started."""
        ended: asyncio.Queue[TaskResult] = asyncio.Queue()

        async def run_task(work: Work) -> None:
            ended.put_nowait(await self._run_task(work, plan_id, progress))

        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    while (work := schedule.next()) is not None:
                        group.create_task(run_task(work))
                    if not schedule.running:
                        break
                    schedule.end(await ended.get())
        except BaseExceptionGroup as failed:  # `except*` would raise a group again
            raise failed.exceptions[0] from None

    async def _run_task(
        self, work: Work, plan_id: str, progress: "PlanProgress | None"
    ) -> TaskResult:
        prompt = prompt_of(work, f"{plan_id}/{work.task.id}")
        checked = self._settings.check_all or work.task.type in self._checked_types
        began = time.time()

        async def start() -> None:
            if progress is not None:
                await asyncio.to_thread(progress.start, work.task, work.agent)

        ended = await self._runner.run(work, prompt, start, checked=checked)
        if progress is not None:
            result, collaboration = ended.result, ended.collaboration
            await asyncio.to_thread(progress.finish, result, collaboration, began)
        return ended.result


class _Schedule:
    """Which task is next: the first in the graph's order that is ready and whose agent is free."""

    def __init__(
        self,
        graph: TaskGraph,
        plan: RoutingPlan,
        room: Mapping[str, int],
        limit: int,
        results: dict[str, TaskResult],
    ) -> None:
        """Schedule what has no result.

        Args:
            graph: the tasks.
            plan: their agents.
            room: tasks that each agent does at once.
            limit: tasks that run at once.
            results: of tasks that have ended; more are added.
        """
        self._graph, self._plan, self._results = graph, plan, results
        self._position = {task_id: place for place, task_id in enumerate(graph.order())}
        self._room, self._limit = dict(room), limit
        self._dependents = graph.dependents()
        self._needed = {
            # A set, because a dependency that is named twice ends once.
            task.id: sum(not self._is_done(needed) for needed in set(task.depends_on))
            for task in graph.tasks.values()
        }
        self._ready: list[tuple[int, str]] = []
        """A heap of tasks by position."""
        self._waiting: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        """A heap for each agent: tasks that are ready while it is busy."""
        self.running = 0
        for task_id in plan.assignments:
            if task_id not in results and not self._needed[task_id]:
                self._push(task_id)

    def next(self) -> Work | None:
        """Return the task to start now; None while there is none."""
        while self._ready and self.running < self._limit:
            entry = heapq.heappop(self._ready)
            task = self._graph.tasks[entry[1]]
            agent = self._plan.assignments[task.id]
            if not self._room[agent]:
                # It waits with its agent, so that it is not looked at again before that is free.
                heapq.heappush(self._waiting[agent], entry)
                continue
            self._room[agent] -= 1
            self.running += 1
            results = {name: self._results[name].reply for name in task.depends_on}
            return Work(task=task, agent=agent, results=results)
        return None

    def end(self, result: TaskResult) -> None:
        """Note that a task has ended; its agent is free for another."""
        self._results[result.id] = result
        self.running -= 1
        self._room[result.agent_id] += 1
        # One place is free now, so one task is ready again.
        if waiting := self._waiting[result.agent_id]:
            heapq.heappush(self._ready, heapq.heappop(waiting))
        if not self._is_done(result.id):
            return
        for task_id in self._dependents[result.id]:
            self._needed[task_id] -= 1
            if not self._needed[task_id] and self._plan.assignments.get(task_id):
                self._push(task_id)

    def _push(self, task_id: str) -> None:
        # A task may have ended when the plan was run before.
        if task_id not in self._results:
            heapq.heappush(self._ready, (self._position[task_id], task_id))

    def _is_done(self, task_id: str) -> bool:
        result = self._results.get(task_id)
        return result is not None and result.state in GOOD


def _digest_graph(graph: TaskGraph) -> str:
    """Return the SHA-256 of a graph's tasks, in hexadecimal.

    Raises:
        InputError: the metadata of a task is not JSON.
    """
    digest = sha256()
    for task in graph.tasks.values():
        digest.update(task_as_json(task) + b"\n")
    return digest.hexdigest()


def _check_plan(graph: TaskGraph, plan: RoutingPlan, registry: AgentRegistry) -> None:
    """Check that a plan is of these tasks and agents.

    Raises:
        InputError: names the first that is not.
    """
    agents = {agent.agent_name for agent in registry.agents}
    for task_id, agent in plan.assignments.items():
        if task_id not in graph.tasks:
            raise InputError(f"the plan has a task {task_id!r}, which is not among the tasks")
        if agent not in agents:
            raise InputError(
                f"the plan sends task {task_id!r} to {agent!r}, which is not registered; use the "
                "registry with which it was made"
            )


def _require_all_planned(graph: TaskGraph, plan: RoutingPlan, results: Collection[str]) -> None:
    """Check that a plan has all tasks without a result.

    Raises:
        InputError: names the first that it lacks.
    """
    planned = {*plan.assignments, *plan.unassigned, *results}
    for task_id in graph.order():
        if task_id not in planned:
            raise InputError(
                f"the plan has no task {task_id!r}, and it has no result in a memory; route all of "
                "these tasks"
            )


def _list_planned(graph: TaskGraph, plan: RoutingPlan) -> tuple[PlannedTask, ...]:
    """Return all tasks, dependencies first; those that were done before have no agent."""
    tasks = []
    for task_id in graph.order():
        task, explanation = graph.tasks[task_id], plan.explanations.get(task_id)
        planned = PlannedTask(
            id=task_id,
            task_type=task.type,
            agent_id=plan.assignments.get(task_id, ""),
            depends_on=task.depends_on,
            why=explanation.words if explanation else "the plan does not say why",
        )
        tasks.append(planned)
    return tuple(tasks)
