"""Routing with safety under the names of the requirement; `Executor` does the work."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypedDict
from uuid import uuid4

from msgspec import structs

from waltzrl.agents.coaching import Coach
from waltzrl.errors import InputError, WaltzError
from waltzrl.foundation.switches import read_switch
from waltzrl.gateway.guard import Guard
from waltzrl.records import Reply
from waltzrl.routing.execution import ExecutionSettings, Executor
from waltzrl.routing.halo import HALORouter, TaskDAG, make_graph
from waltzrl.routing.plan import RoutingPlan
from waltzrl.routing.registry import AgentRegistry
from waltzrl.routing.results import PlanResult
from waltzrl.routing.runner import (
    EndedTask,
    Execute,
    TaskRunner,
    Work,
    call_coroutine,
    prompt_of,
)
from waltzrl.routing.success import History
from waltzrl.routing.tasks import Task, TaskGraph, task_as_json
from waltzrl.routing.tokens import AuthRegistry
from waltzrl.store.memory.plans import TaskResult

if TYPE_CHECKING:  # it needs the extra of the memory
    from waltzrl.store.memory.safety import SafetyMemory

TASK_FIELDS = ("description", "metadata", "task_id", "task_type", "agent_name")
SWITCH = "ENABLE_WALTZRL"


class TaskCoaching(TypedDict):
    """What safety did to one task."""

    rounds: int
    final_safe: bool | None
    """Whether the last review called the reply safe; None if no review said."""
    state: str
    reason: str
    response: str


class SafetyCoaching(TypedDict):
    """What safety did to the safety-critical tasks of a plan."""

    results: dict[str, TaskCoaching]
    avg_coaching_rounds: float | None
    """The mean over the tasks that ran; None if there is none."""
    final_safe: bool
    """Whether every last review called its reply safe."""


class HALORouterWithSafety(HALORouter):
    """Routes tasks, and runs them with a check before and after."""

    def __init__(  # noqa: PLR0913 - those of `HALORouter` and of safety
        self,
        agent_registry: AgentRegistry | None = None,
        auth_registry: AuthRegistry | None = None,
        *,
        guard: Guard | None = None,
        memory: "SafetyMemory | None" = None,
        waltzrl_enabled: bool | None = None,
        settings: ExecutionSettings | None = None,
        enable_cost_optimization: bool = False,
        history: History | None = None,
        seed: int = 0,
    ) -> None:
        """Combine a router, whose arguments are those of `HALORouter`, and a guard.

        Args:
            agent_registry: agents and rules; None for the sixteen that come with waltzrl.
            auth_registry: verifies the agents' tokens.
            guard: such as `open_guard(..., settings=GuardSettings(max_rounds=3))`; None only
                where safety is switched off.
            memory: keeps and finds coaching sessions.
            waltzrl_enabled: None reads the environment variable ENABLE_WALTZRL, true by default.
            settings: of the execution.
            enable_cost_optimization: whether a cheaper agent goes first if it is about as good.
            history: observed successes, such as `SuccessHistory(memory)`.
            seed: breaks ties.

        Raises:
            InputError: the variable is neither true nor false, or safety has no guard.
        """
        super().__init__(
            agent_registry,
            auth_registry,
            enable_cost_optimization=enable_cost_optimization,
            history=history,
            seed=seed,
        )
        self.waltzrl_enabled = (
            read_switch(os.environ, SWITCH, default=True)
            if waltzrl_enabled is None
            else waltzrl_enabled
        )
        if self.waltzrl_enabled and guard is None:
            raise InputError(
                f"safety is switched on and there is no guard; give one, such as open_guard(), or "
                f"set {SWITCH}=false"
            )
        self.settings = settings or ExecutionSettings()
        self._guard = guard if self.waltzrl_enabled else None
        self._memory = memory

    @property
    def safety_critical_task_types(self) -> frozenset[str]:
        return frozenset(self.agent_registry.safety_critical)

    async def route_tasks_with_safety(
        self,
        dag_or_tasks: TaskDAG | TaskGraph | Iterable[Task],
        execute: Execute | None = None,
        available_agents: Iterable[str] | None = None,
        agent_tokens: Mapping[str, str] | None = None,
        optimization_constraints: Mapping[str, object] | None = None,
    ) -> tuple[RoutingPlan, SafetyCoaching]:
        """Route tasks, then have them done and coach what is safety-critical.

        Args:
            dag_or_tasks: the tasks.
            execute: does the tasks. None has the guard's conversation agent answer those that are
                safety-critical, and routes the others only.
            available_agents: names of agents that may be used; None for all.
            agent_tokens: as of `route_tasks`.
            optimization_constraints: the same.

        Returns:
            The plan, which is that of `route_tasks`, and what safety did.

        Raises:
            SecurityError: as of `route_tasks`.
            InputError: the same.
        """
        if not isinstance(dag_or_tasks, TaskDAG | TaskGraph):
            dag_or_tasks = tuple(dag_or_tasks)  # read twice, and may be an iterator
        plan = await self.route_tasks(
            dag_or_tasks, available_agents, agent_tokens, optimization_constraints
        )
        if self._guard is None and execute is None:
            return plan, _summarize_coaching({})
        graph = _select_tasks(
            make_graph(dag_or_tasks),
            lambda task: (
                task.id in plan.explanations  # others are completed
                and (execute is not None or task.type in self.safety_critical_task_types)
            ),
        )
        planned = structs.replace(
            plan,
            assignments={k: v for k, v in plan.assignments.items() if k in graph.tasks},
            unassigned=tuple(name for name in plan.unassigned if name in graph.tasks),
        )
        executor = Executor(
            execute,
            self.agent_registry,
            guard=self._guard,
            memory=self._memory,
            settings=self.settings,
        )
        ended: PlanResult = await executor.run(graph, planned)
        checked = {name: result for name, result in ended.results.items() if result.checked}
        return plan, _summarize_coaching(checked, ended.avg_coaching_rounds)

    async def route_with_safety(
        self, task: Mapping[str, object], context: Mapping[str, object]
    ) -> dict[str, object]:
        """Have one task done, with a check before and after.

        Args:
            task: `description`, and if known `task_id`, `task_type`, `agent_name` and `metadata`.
            context: `execute`, a coroutine function that takes the task and returns the reply, a
                text or a dict with `response`.

        Returns:
            What `execute` returned, with `response` replaced, and `safety`, the requirement's
            WrappedResponse; without `safety` where it is switched off. Other fields that `execute`
            returned are not reviewed, and `original_response` may be unsafe: show `response`.

        Raises:
            ValueError: the context has no callable `execute`.
            InputError: the task has no description, or is not JSON.
            WaltzError: the task failed, or could not be reviewed; says why.
        """
        execute = context.get("execute")
        if not callable(execute):
            raise ValueError(  # noqa: TRY004 - the requirement's
                f"context['execute'] is {execute!r}; need a coroutine function that does the task"
            )
        asked = _read_task(task)
        work = Work(task=asked, agent=str(task.get("agent_name", "")), results={})
        draft: dict[str, object] = {}
        coach = Coach(self._memory) if self._memory and self.settings.examples else None
        runner = TaskRunner(
            _adapt_execute(draft, execute, task), self._guard, coach, self.settings.timeout_seconds
        )
        began = time.time()
        ended = await runner.run(work, prompt_of(work), _note_nothing, checked=True)
        if ended.result.state == "failed":
            raise WaltzError(f"task {asked.id!r} failed: {ended.result.reason}")
        if ended.collaboration is None:
            return draft
        if self._memory is not None:
            await asyncio.to_thread(
                _remember_task, self._memory, ended, began, self.settings.may_learn
            )
        return {**draft, "response": ended.result.reply, "safety": _wrap_response(ended, began)}


def _wrap_response(ended: EndedTask, began: float) -> dict[str, object]:
    """Return the requirement's WrappedResponse, and the fields of its structured reply.

    Nobody measures helpfulness or confidence, so `helpfulness_score` is None and there is no
    `confidence`.
    """
    result, collaboration = ended.result, ended.collaboration
    assert collaboration is not None
    first = collaboration.rounds[0].feedback
    safety = None if result.risk is None else 1 - result.risk
    return {
        "response": result.reply,
        "original_response": collaboration.draft.full_text if result.ran else "",
        "changes_made": collaboration.decision != "draft",
        "blocked": result.state == "declined",
        "block_reason": result.reason,
        "safety_score": safety,
        "helpfulness_score": None,
        "feedback": first.text,
        "reasoning": first.reasoning,
        "risk_score": result.risk,
        "risk_categories": [result.category] if result.category else [],
        "rounds": result.rounds,
        "final_safe": result.final_safe,
        "analysis_time_ms": result.evaluation_ms,
        "total_time_ms": result.generation_ms + result.evaluation_ms,
        "timestamp": began,
    }


def _summarize_coaching(
    results: Mapping[str, TaskResult], average: float | None = None
) -> SafetyCoaching:
    return SafetyCoaching(
        results={
            name: TaskCoaching(
                rounds=result.rounds,
                final_safe=result.final_safe,
                state=result.state,
                reason=result.reason,
                response=result.reply,
            )
            for name, result in results.items()
        },
        avg_coaching_rounds=average,
        final_safe=all(result.final_safe for result in results.values()),
    )


def _select_tasks(graph: TaskGraph, belongs: Callable[[Task], bool]) -> TaskGraph:
    """Return some tasks of a graph as a graph of their own."""
    # Nothing waits for what is left out: it is done already, or not run here.
    tasks = {task.id: task for task in graph.tasks.values() if belongs(task)}
    return TaskGraph(
        structs.replace(task, depends_on=tuple(name for name in task.depends_on if name in tasks))
        for task in tasks.values()
    )


def _read_task(task: Mapping[str, object]) -> Task:
    description, metadata = task.get("description"), task.get("metadata", {})
    if not isinstance(description, str) or not description.strip():
        raise InputError(f"task['description'] is {description!r}; need the text of the task")
    if not isinstance(metadata, dict):
        raise InputError(f"task['metadata'] is {type(metadata).__name__}; need a dict")
    # `execute` gets all fields, so all are reviewed.
    others = {name: value for name, value in task.items() if name not in TASK_FIELDS}
    asked = Task(
        id=str(task.get("task_id") or uuid4().hex),
        type=str(task.get("task_type", "generic")),
        description=description,
        metadata={"metadata": metadata, **others} if others else metadata,
    )
    task_as_json(asked)
    return asked


def _adapt_execute(
    draft: dict[str, object],
    execute: Callable[[Mapping[str, object]], Awaitable[object]],
    task: Mapping[str, object],
) -> Execute:
    """Return the caller's `execute` as an `Execute`, which notes the fields that it returns."""

    async def run(_work: Work) -> str | Reply:
        returned = await call_coroutine(execute, task)
        draft.update(returned if isinstance(returned, dict) else {"response": returned})
        reply = draft.get("response")
        if not isinstance(reply, str | Reply):
            raise InputError(
                f"got {type(returned).__name__}; need a text, or a dict with a text `response`"
            )
        return reply

    return run


async def _note_nothing() -> None:
    """Note nothing: one task is not resumed."""


def _remember_task(
    memory: "SafetyMemory", ended: EndedTask, began: float, may_learn: bool | None
) -> None:
    from waltzrl.routing.progress import make_exchange

    assert ended.collaboration is not None
    exchange = make_exchange(ended.result, ended.collaboration, began, may_learn=may_learn)
    memory.remember([exchange])
