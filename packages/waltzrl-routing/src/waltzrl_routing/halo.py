"""The router, alone and with safety, under the names of the requirements.

`Router` and `Executor` do the work.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict
from uuid import uuid4

from msgspec import structs

from waltzrl.agents.coaching import Coach
from waltzrl.errors import CycleError, InputError, SecurityError, WaltzError
from waltzrl.foundation.switches import read_switch
from waltzrl.gateway.guard import Guard
from waltzrl.records import Reply
from waltzrl.store.memory.plans import TaskResult
from waltzrl_routing.candidates import TIERS
from waltzrl_routing.execution import ExecutionSettings, Executor
from waltzrl_routing.plan import RoutingPlan
from waltzrl_routing.registry import (
    AgentCapability,
    AgentRegistry,
    CostTier,
    RoutingRule,
    load_registry,
)
from waltzrl_routing.results import PlanResult
from waltzrl_routing.router import Router
from waltzrl_routing.runner import (
    EndedTask,
    Execute,
    TaskRunner,
    Work,
    call_coroutine,
    prompt_of,
)
from waltzrl_routing.success import History
from waltzrl_routing.tasks import Task, TaskGraph, task_as_json
from waltzrl_routing.tokens import AuthRegistry

if TYPE_CHECKING:  # it needs the extra of the memory
    from waltzrl.store.memory.safety import SafetyMemory

SECURITY_AGENT = "security_agent"
SENSITIVE_TYPES = ("finance", "security", "compliance")
"""The types of tasks whose team needs the security agent."""


class TaskDAG:
    """A graph of tasks that grows; `TaskGraph` is its checked form."""

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self.tasks: dict[str, Task] = {}
        self.completed: set[str] = set()
        """Ids of the tasks that are done, and are not routed again."""
        for task in tasks:
            self.add_task(task)

    def add_task(self, task: Task) -> None:
        """Add a task, and the dependencies that it lists.

        Raises:
            InputError: there is a task of this id.
        """
        if task.id in self.tasks:
            raise InputError(f"task id {task.id!r} is used twice; ids must be unique")
        self.tasks[task.id] = task

    def add_dependency(self, task_id: str, depends_on: str) -> None:
        """Let a task wait for another.

        Raises:
            InputError: one of them is not there.
        """
        for name in (task_id, depends_on):
            if name not in self.tasks:
                raise InputError(f"there is no task {name!r}; add it first")
        task = self.tasks[task_id]
        if depends_on not in task.depends_on:
            self.tasks[task_id] = structs.replace(task, depends_on=(*task.depends_on, depends_on))

    def topological_sort(self) -> list[str]:
        """Return all ids, dependencies first.

        Raises:
            InputError: the tasks form no graph; names the cycle if there is one.
        """
        return list(TaskGraph(self.tasks.values()).order())

    def has_cycle(self) -> bool:
        try:
            TaskGraph(self.tasks.values())
        except CycleError:
            return True
        return False

    def max_depth(self) -> int:
        """Return the number of tasks on the longest path."""
        return 1 + max(TaskGraph(self.tasks.values()).depths().values(), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamValidationResult:
    """Whether agents can do a task together."""

    is_valid: bool
    reasons: tuple[str, ...]
    """The reasons why they cannot; empty if they can."""
    required_capabilities: tuple[str, ...]
    """The skills that were asked for."""


class HALORouter:
    """Routes tasks to the registered agents whose tokens are valid."""

    def __init__(
        self,
        agent_registry: AgentRegistry | None = None,
        auth_registry: AuthRegistry | None = None,
        *,
        enable_cost_optimization: bool = False,
        history: History | None = None,
        seed: int = 0,
    ) -> None:
        """Take agents and what verifies them.

        Args:
            agent_registry: agents and rules; None for the sixteen that come with waltzrl.
            auth_registry: verifies tokens, such as `AgentTokens`; None if agents need none.
            enable_cost_optimization: whether a cheaper agent goes first if it succeeds about as
                often as the best.
            history: observed successes.
            seed: breaks ties.
        """
        self.agent_registry = agent_registry or load_registry()
        self.auth_registry = auth_registry
        self.enable_cost_optimization = enable_cost_optimization
        self.history = history
        self.seed = seed
        self._revoked: set[str] = set()
        self._last_plan: RoutingPlan | None = None

    async def route_tasks(
        self,
        dag_or_tasks: TaskDAG | TaskGraph | Iterable[Task],
        available_agents: Iterable[str] | None = None,
        agent_tokens: Mapping[str, str] | None = None,
        optimization_constraints: Mapping[str, object] | None = None,
    ) -> RoutingPlan:
        """Assign the tasks that are not completed.

        Args:
            dag_or_tasks: the tasks.
            available_agents: names of agents that may be used; None for all.
            agent_tokens: a token for each agent that may be used; needed with an `auth_registry`.
            optimization_constraints: `max_cost_tier`, the dearest tier that may be used, and
                `optimize_cost`, instead of `enable_cost_optimization`.

        Raises:
            SecurityError: a token is missing or not valid.
            InputError: the tasks form no graph, or an agent or a constraint is unknown.
        """
        dearest, optimize_cost = _read_constraints(
            optimization_constraints or {}, self.enable_cost_optimization
        )
        usable = self._list_usable(available_agents, agent_tokens, dearest)
        completed = dag_or_tasks.completed if isinstance(dag_or_tasks, TaskDAG) else ()
        router = Router(self.agent_registry, self.history, self.seed, optimize_cost=optimize_cost)
        # A plan of thousands of tasks takes a good part of a second.
        plan = await asyncio.to_thread(router.route, make_graph(dag_or_tasks), usable, completed)
        self._last_plan = plan
        return plan

    def get_routing_explanation(self, task_id: str) -> str:
        """Return why a task of the last plan went where it did.

        Raises:
            InputError: the last plan has no such task, or there is none.
        """
        explanations = self._last_plan.explanations if self._last_plan else {}
        if task_id not in explanations:
            raise InputError(f"task {task_id!r} is not in the last plan; route it first")
        return explanations[task_id].words

    def validate_team_composition(
        self,
        agents: Sequence[str],
        task_type: str,
        required_skills: Iterable[str] = (),
        *,
        security_level: str = "standard",
        agent_tokens: Mapping[str, str] | None = None,
    ) -> TeamValidationResult:
        """Check a team.

        Args:
            agents: names; each must be registered, once, and not revoked.
            task_type: finance, security and compliance need the security agent.
            required_skills: the team must have each.
            security_level: `high` needs the security agent too.
            agent_tokens: a token for each; needed with an `auth_registry`.
        """
        known = {agent.agent_name: agent for agent in self.agent_registry.agents}
        required = tuple(required_skills)
        reasons = [
            f"agent {name!r} is named {count} times"
            for name, count in Counter(agents).items()
            if count > 1
        ]
        for name in dict.fromkeys(agents):
            if not self.is_agent_registered(name):
                reasons.append(f"agent {name!r} is not registered")
            elif not self._is_verified(name, agent_tokens or {}):
                reasons.append(f"agent {name!r} has no valid token")
        skills = {skill for name in agents if name in known for skill in known[name].skills}
        reasons += [f"nobody has the skill {skill!r}" for skill in required if skill not in skills]
        sensitive = security_level == "high" or task_type in SENSITIVE_TYPES
        if sensitive and SECURITY_AGENT not in agents:
            cause = "a high security level" if security_level == "high" else f"type {task_type!r}"
            reasons.append(f"{cause} needs {SECURITY_AGENT!r}")
        return TeamValidationResult(
            is_valid=not reasons, reasons=tuple(reasons), required_capabilities=required
        )

    def add_routing_rule(self, rule: RoutingRule) -> None:
        """Add a rule.

        Raises:
            InputError: its id is taken, or it, or another because of it, can never match.
        """
        # The registry checks itself when it is made, so an invalid rule changes nothing.
        rules = (*self.agent_registry.rules, rule)
        self.agent_registry = structs.replace(self.agent_registry, rules=rules)

    def register_agent(self, agent: AgentCapability) -> None:
        """Add an agent; one that was revoked may return, with the capabilities given now.

        Raises:
            InputError: the name is taken, or the agent is not valid.
        """
        name = agent.agent_name
        # A revoked agent makes room for one of its name; a registered one is then found twice.
        others = [
            other
            for other in self.agent_registry.agents
            if other.agent_name != name or name not in self._revoked
        ]
        self.agent_registry = structs.replace(self.agent_registry, agents=(*others, agent))
        self._revoked.discard(name)

    def update_agent_capability(self, agent: AgentCapability) -> None:
        """Replace what is known of a registered agent.

        Raises:
            InputError: it is not registered or not valid, or a rule could no longer match.
        """
        if not self.is_agent_registered(agent.agent_name):
            raise InputError(f"agent {agent.agent_name!r} is not registered; register it first")
        agents = tuple(
            agent if other.agent_name == agent.agent_name else other
            for other in self.agent_registry.agents
        )
        self.agent_registry = structs.replace(self.agent_registry, agents=agents)

    def is_agent_registered(self, agent_name: str) -> bool:
        names = {agent.agent_name for agent in self.agent_registry.agents}
        return agent_name in names - self._revoked

    def revoke_agent(self, agent_name: str) -> None:
        """Give an agent no more tasks; rules that name it are passed over.

        Raises:
            InputError: it is not registered.
        """
        if not self.is_agent_registered(agent_name):
            raise InputError(f"agent {agent_name!r} is not registered; there is nothing to revoke")
        self._revoked.add(agent_name)

    def _list_usable(
        self,
        available: Iterable[str] | None,
        tokens: Mapping[str, str] | None,
        max_cost_tier: CostTier,
    ) -> list[str]:
        """Return the agents that may be used, after their tokens were verified."""
        registered = [agent.agent_name for agent in self.agent_registry.agents]
        wanted = list(registered if available is None else available)
        if tokens is not None and self.auth_registry is None:
            raise SecurityError("agent_tokens cannot be verified: there is no auth_registry")
        if self.auth_registry is not None:
            if not tokens:
                raise SecurityError("agent_tokens is empty; need a token for each agent to be used")
            for name in tokens:
                if not self._is_verified(name, tokens):
                    raise SecurityError(
                        f"the token of agent {name!r} is not valid; issue another one"
                    )
            wanted = [name for name in wanted if name in tokens]
        dear = {
            agent.agent_name
            for agent in self.agent_registry.agents
            if TIERS[agent.cost_tier] > TIERS[max_cost_tier]
        }
        return [name for name in wanted if name not in dear and name not in self._revoked]

    def _is_verified(self, name: str, tokens: Mapping[str, str]) -> bool:
        """Whether an agent may act: it has a valid token, or none is needed."""
        if not self.is_agent_registered(name):
            return False
        if self.auth_registry is None:
            # Nobody can verify a token that is sent all the same.
            return not tokens
        return self.auth_registry.verify(name, tokens.get(name, ""))


def _read_constraints(given: Mapping[str, object], optimize_cost: bool) -> tuple[CostTier, bool]:
    """Return the dearest tier that may be used, and whether a cheaper agent goes first."""
    if unknown := sorted(given.keys() - {"max_cost_tier", "optimize_cost"}):
        raise InputError(
            f"optimization constraint {unknown[0]!r} is unknown; use max_cost_tier or optimize_cost"
        )
    dearest = given.get("max_cost_tier", "expensive")
    for tier in TIERS:
        if tier == dearest:
            return tier, bool(given.get("optimize_cost", optimize_cost))
    raise InputError(f"max_cost_tier is {dearest!r}; need one of {', '.join(TIERS)}")


def make_graph(tasks: TaskDAG | TaskGraph | Iterable[Task]) -> TaskGraph:
    """Return tasks in any of their forms as a checked graph.

    Raises:
        InputError: they form no graph.
    """
    if isinstance(tasks, TaskGraph):
        return tasks
    return TaskGraph(tasks.tasks.values() if isinstance(tasks, TaskDAG) else tasks)


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
            # Safety is switched off, so nothing was reviewed.
            return draft
        if self._memory is not None:
            await asyncio.to_thread(
                _remember_task, self._memory, ended, began, self.settings.may_learn
            )
        return {**draft, "response": ended.result.reply, "safety": _wrap_response(ended, began)}


def _wrap_response(ended: EndedTask, began: float) -> dict[str, object]:
    """Return the requirement's WrappedResponse, and the fields of its structured reply.

    Nobody measures helpfulness or confidence, so `helpfulness_score` is None and there is no
    `confidence`. `risk_score` and `risk_categories` are of the last review, those of the draft
    stand beside them; a request that was not carried out has no draft.
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
        "draft_risk_score": first.risk if result.ran else None,
        "draft_risk_categories": [first.category] if result.ran and first.category else [],
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
    from waltzrl_routing.progress import make_exchange

    assert ended.collaboration is not None
    exchange = make_exchange(ended.result, ended.collaboration, began, may_learn=may_learn)
    memory.remember([exchange])
