"""Tasks to agents: rules first, then capability, success, load and cost.

A plan is made along simulated time: a task starts when all it depends on has ended and its agent
has a free place, takes its estimated duration, and then releases the place. So load balances over
tasks that run at the same time, and no agent ever has more than `max_concurrent_tasks`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from waltzrl.errors import InputError
from waltzrl_routing.candidates import Candidate, Candidates, group_agents
from waltzrl_routing.loads import Loads
from waltzrl_routing.plan import Alternative, Explanation, RoutingPlan
from waltzrl_routing.registry import AgentCapability, AgentRegistry, RoutingRule
from waltzrl_routing.success import History, success_rate
from waltzrl_routing.tasks import Task, TaskGraph


class Router:
    """Makes plans; the same arguments give the same plan.

    Of the rules that match a task, the first goes whose target is available, supports the type,
    has the skills and a free place. Without one, the task goes to the free agent with the highest
    success rate, then the fewest tasks at work, then the lowest cost tier, then by the seed. Where
    all are at capacity, it waits: for the target of its rule, or for the first free place.
    """

    def __init__(
        self,
        registry: AgentRegistry,
        history: History | None = None,
        seed: int = 0,
        *,
        optimize_cost: bool = False,
    ) -> None:
        """Take agents and rules.

        Args:
            registry: agents and rules.
            history: observed successes; without it the registry's own rates are all there is.
            seed: breaks ties.
            optimize_cost: prefer the cheapest of the agents whose success rates have intervals
                that overlap that of the best.
        """
        self.registry = registry
        self.history = history
        self.seed = seed
        self.optimize_cost = optimize_cost

    def route(
        self,
        graph: TaskGraph,
        available_agents: Iterable[str] | None = None,
        completed: Iterable[str] = (),
    ) -> RoutingPlan:
        """Assign all tasks that are not completed.

        Args:
            graph: the tasks.
            available_agents: names of the agents that may be used; None for all.
            completed: ids of tasks that are done, and not part of the plan.

        Raises:
            InputError: an agent is not registered, or a completed task is not in the graph.
        """
        names = [agent.agent_name for agent in self.registry.agents]
        available = set(names if available_agents is None else available_agents)
        done = set(completed)
        if unknown := sorted(available - set(names)):
            raise InputError(
                f"agent {unknown[0]!r} is not registered; name one of {', '.join(names)}"
            )
        if unknown := sorted(done - graph.tasks.keys()):
            raise InputError(
                f"completed task {unknown[0]!r} is not among the {len(graph)} tasks; remove it"
            )
        planned = _Planning(self, available).explain(graph, done)
        explanations = {
            task_id: planned[task_id] for task_id in graph.order() if task_id in planned
        }
        return RoutingPlan(
            assignments={i: e.agent for i, e in explanations.items() if e.agent is not None},
            explanations=explanations,
            unassigned=tuple(i for i, e in explanations.items() if e.agent is None),
            metadata={"seed": self.seed, "optimize_cost": self.optimize_cost},
        )


class _Planning:
    """One plan in the making."""

    def __init__(self, router: Router, available: Set[str]) -> None:
        self._router = router
        self._available = available
        self._loads = Loads(router.registry.agents)
        self._rules = router.registry.ordered_rules()
        self._rules_of: dict[str, list[RoutingRule]] = {}
        self._candidates: dict[tuple[str, tuple[str, ...]], Candidates] = {}

    def explain(self, graph: TaskGraph, done: Set[str]) -> dict[str, Explanation]:
        """Return why each task that is not done goes where, in the order in which they start."""
        position = {task_id: place for place, task_id in enumerate(graph.order())}
        waits_for = {
            task_id: {needed for needed in graph.tasks[task_id].depends_on if needed not in done}
            for task_id in position
            if task_id not in done
        }
        # Tasks that are ready at one time go in the order of the graph.
        ready = [(0.0, position[task_id]) for task_id, needed in waits_for.items() if not needed]
        heapify(ready)
        explanations: dict[str, Explanation] = {}
        while ready:
            time, place = heappop(ready)
            task_id = graph.order()[place]
            self._loads.advance(time)
            explanations[task_id] = self._explain_task(graph.tasks[task_id], time)
            for dependent in graph.dependents()[task_id]:
                # A dependent may be done already, whatever it depends on.
                if not (needed := waits_for.get(dependent)):
                    continue
                needed.remove(task_id)
                if not needed:
                    start = max(
                        explanations[other].end
                        for other in graph.tasks[dependent].depends_on
                        if other in explanations
                    )
                    heappush(ready, (start, position[dependent]))
        return explanations

    def _explain_task(self, task: Task, ready: float) -> Explanation:
        """Choose the agent of a task that is ready at a time, and take its place."""
        candidates = self._find_candidates(task)
        if not candidates.by_name:
            return Explanation(
                agent=None,
                words=self._describe_missing(task),
                alternatives=candidates.incapable,
                start=ready,
                end=ready,
            )
        choice = self._choose_agent(task, candidates)
        words = self._describe_choice(choice, candidates)
        start, end = self._loads.take(choice.agent, ready, task.duration)
        if start > ready:
            words += f"; waits until {start:g} for a free place"
        return Explanation(
            agent=choice.agent,
            rule=choice.rule.rule_id if choice.rule else "",
            words=words,
            alternatives=choice.others,
            start=start,
            end=end,
        )

    def _choose_agent(self, task: Task, candidates: Candidates) -> "_Choice":
        full: list[RoutingRule] = []
        for rule in self._yield_matching(task, candidates):
            if self._loads.is_free(rule.target_agent):
                return _choose_by_rule(rule, candidates, full)
            full.append(rule)
        if chosen := candidates.best_free():
            return _Choice(chosen, None, candidates.others_of_match(chosen))
        if full:
            return _choose_by_rule(full[0], candidates, full[1:])
        chosen = candidates.first_to_be_free()
        return _Choice(chosen, None, candidates.others_of_wait(chosen))

    def _yield_matching(self, task: Task, candidates: Candidates) -> Iterator[RoutingRule]:
        """Yield the rules that match, in order, if their target can do the task."""
        if task.type not in self._rules_of:
            self._rules_of[task.type] = [
                rule
                for rule in self._rules
                if rule.condition.get("task_type", task.type) == task.type
            ]
        for rule in self._rules_of[task.type]:
            if rule.target_agent in candidates.by_name and all(
                key == "task_type" or task.metadata.get(key) == value
                for key, value in rule.condition.items()
            ):
                yield rule

    def _describe_choice(self, choice: "_Choice", candidates: Candidates) -> str:
        if choice.rule:
            return f"Rule {choice.rule.rule_id}: {choice.rule.explanation or choice.agent}"
        at_work, capacity = self._loads.at_work[choice.agent], self._loads.capacity[choice.agent]
        chosen = candidates.by_name[choice.agent]
        return (
            f"Capability match: success rate {chosen.rate}, {at_work} of {capacity} at work, "
            f"{chosen.tier}"
        )

    def _find_candidates(self, task: Task) -> Candidates:
        # Kept for the whole plan: only loads change while it is made, and those are read anew.
        key = (task.type, task.skills)
        if key not in self._candidates:
            capable: list[AgentCapability] = []
            incapable: dict[str, list[str]] = defaultdict(list)
            for agent in self._router.registry.agents:
                if obstacle := self._find_obstacle(task, agent):
                    incapable[obstacle].append(agent.agent_name)
                else:
                    capable.append(agent)
            self._candidates[key] = Candidates(
                self._rate_agents(task.type, capable), group_agents(incapable), self._loads
            )
        return self._candidates[key]

    def _find_obstacle(self, task: Task, agent: AgentCapability) -> str:
        """Return why an agent cannot do a task; empty if it can."""
        if task.type not in agent.supported_task_types:
            return f"does not support {task.type!r}"
        if agent.agent_name not in self._available:
            return "is not available"
        if missing := [skill for skill in task.skills if skill not in agent.skills]:
            return f"lacks {_name_skills(missing)}"
        return ""

    def _rate_agents(self, task_type: str, agents: Sequence[AgentCapability]) -> list[Candidate]:
        history, seed = self._router.history, self._router.seed
        rates = []
        for agent in agents:
            seen = history.success(agent.agent_name, task_type) if history else (0, 0)
            rates.append(success_rate(*seen, agent.success_rate))
        # The largest mean decides, which is the first field of a rate.
        enough = max(rates).low if rates else 0.0
        return [
            Candidate(
                name=agent.agent_name,
                tier=agent.cost_tier,
                rate=rate,
                tie=blake2b(f"{seed}/{agent.agent_name}".encode(), digest_size=8).digest(),
                may_be_cheaper=self._router.optimize_cost and rate.high >= enough,
            )
            for agent, rate in zip(agents, rates, strict=True)
        ]

    def _describe_missing(self, task: Task) -> str:
        supporting = [
            agent
            for agent in self._router.registry.agents
            if task.type in agent.supported_task_types
        ]
        if not supporting:
            return f"no agent supports {task.type!r}"
        if not any(agent.agent_name in self._available for agent in supporting):
            return f"no agent that supports {task.type!r} is available"
        return f"no available agent that supports {task.type!r} has {_name_skills(task.skills)}"


class _Choice(NamedTuple):
    agent: str
    rule: RoutingRule | None
    others: tuple[Alternative, ...]


def _choose_by_rule(
    rule: RoutingRule, candidates: Candidates, full: Iterable[RoutingRule]
) -> _Choice:
    """Choose a rule's target; `full` are rules that match too, with targets at capacity."""
    passed = {other.target_agent for other in full} - {rule.target_agent}
    others = candidates.others_of_rule(rule.target_agent, rule.rule_id, passed)
    return _Choice(rule.target_agent, rule, others)


def _name_skills(names: Sequence[str]) -> str:
    return f"the skill{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
