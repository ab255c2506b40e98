"""The router under the names of the requirement; `Router` does the work."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from waltzrl.errors import CycleError, InputError, SecurityError
from waltzrl.routing.candidates import TIERS
from waltzrl.routing.plan import RoutingPlan
from waltzrl.routing.registry import (
    AgentCapability,
    AgentRegistry,
    CostTier,
    RoutingRule,
    load_registry,
)
from waltzrl.routing.router import Router
from waltzrl.routing.success import History
from waltzrl.routing.tasks import Task, TaskGraph
from waltzrl.routing.tokens import AuthRegistry

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
        depth: dict[str, int] = {}
        for task_id in self.topological_sort():
            needed = self.tasks[task_id].depends_on
            depth[task_id] = 1 + max((depth[other] for other in needed), default=0)
        return max(depth.values(), default=0)


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
        constraints = _read_constraints(
            optimization_constraints or {}, self.enable_cost_optimization
        )
        usable = self._list_usable(available_agents, agent_tokens, constraints.max_cost_tier)
        completed = dag_or_tasks.completed if isinstance(dag_or_tasks, TaskDAG) else ()
        router = Router(
            self.agent_registry, self.history, self.seed, optimize_cost=constraints.optimize_cost
        )
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
            return not tokens
        return self.auth_registry.verify(name, tokens.get(name, ""))


@dataclass(frozen=True, slots=True)
class _Constraints:
    max_cost_tier: CostTier
    optimize_cost: bool


def _read_constraints(given: Mapping[str, object], optimize_cost: bool) -> _Constraints:
    if unknown := sorted(given.keys() - {"max_cost_tier", "optimize_cost"}):
        raise InputError(
            f"optimization constraint {unknown[0]!r} is unknown; use max_cost_tier or optimize_cost"
        )
    dearest = given.get("max_cost_tier", "expensive")
    for tier in TIERS:
        if tier == dearest:
            return _Constraints(tier, bool(given.get("optimize_cost", optimize_cost)))
    raise InputError(f"max_cost_tier is {dearest!r}; need one of {', '.join(TIERS)}")


def make_graph(tasks: TaskDAG | TaskGraph | Iterable[Task]) -> TaskGraph:
    """Return tasks in any of their forms as a checked graph.

    Raises:
        InputError: they form no graph.
    """
    if isinstance(tasks, TaskGraph):
        return tasks
    return TaskGraph(tasks.tasks.values() if isinstance(tasks, TaskDAG) else tasks)
