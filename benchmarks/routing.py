"""How long a plan takes, and what a decision costs in LangGraph's supervisor.

    python benchmarks/routing.py [--rounds 5] [--decisions 300] [--no-peer]

Prints CPU milliseconds for plans over random graphs (up to two dependencies a task, among the fifty
before it): reading and checking the graph, and routing it with an explanation that names every
agent. Then `langgraph-supervisor`, in an environment of its own (`.venv-bench-supervisor`), routes
tasks to the same agents by the same table, with a model that answers at once. It also runs an agent
that does nothing, keeps messages and orders no graph, so the ratio is about the cost of a decision
and not about equal work.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from time import process_time

from waltzrl_routing import (
    AgentCapability,
    AgentRegistry,
    Router,
    RoutingRule,
    Task,
    TaskGraph,
    load_registry,
)

sys.path.insert(0, str(Path(__file__).resolve().parent / "gateway"))

from environments import make_environment

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-bench-supervisor"
TYPES = 20
GOALS_MS = {1_000: 50, 10_000: 1_000}
"""From tasks to the most that routing them may take."""


class Observed:
    """Counts that differ for every agent, type and seed, so that no interval is cached."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def success(self, agent: str, task_type: str) -> tuple[int, int]:
        key = (agent, task_type)
        if key not in self._counts:
            trials = self._random.randrange(1, 10_000)
            self._counts[key] = (self._random.randrange(trials + 1), trials)
        return self._counts[key]


def random_registry(agents: int) -> AgentRegistry:
    """Return agents that support five types each, and a rule for one type in four."""
    random = Random(agents)
    capable = [
        AgentCapability(
            agent_name=f"agent_{number}",
            supported_task_types=tuple(f"t{k}" for k in random.sample(range(TYPES), 5)),
        )
        for number in range(agents)
    ]
    rules = [
        RoutingRule(
            rule_id=f"rule_{agent.agent_name}",
            condition={"task_type": agent.supported_task_types[0], "part": number},
            target_agent=agent.agent_name,
        )
        for number, agent in enumerate(capable[::4])
    ]
    return AgentRegistry(agents=tuple(capable), rules=tuple(rules))


def random_tasks(count: int, types: Sequence[str]) -> list[Task]:
    random = Random(count)
    return [
        Task(
            id=str(number),
            type=random.choice(types),
            description="x",
            depends_on=tuple({str(random.randrange(max(0, number - 50), number)) for _ in range(2)})
            if number and random.random() < 0.7
            else (),
            metadata={"part": random.randrange(8)},
        )
        for number in range(count)
    ]


def planning_ms(
    tasks: Sequence[Task], registry: AgentRegistry, *, observed: bool, rounds: int
) -> tuple[float, float]:
    """Return the medians of the CPU milliseconds for the graph and for its plan."""
    graph_ms, plan_ms = [], []
    for seed in range(rounds):
        began = process_time()
        graph = TaskGraph(tasks)
        built = process_time()
        plan = Router(registry, Observed(seed) if observed else None).route(graph)
        ended = process_time()
        assert len(plan.explanations) == len(tasks)
        graph_ms.append(1000 * (built - began))
        plan_ms.append(1000 * (ended - built))
    return median(graph_ms), median(plan_ms)


def print_plans(rounds: int) -> None:
    print("| tasks | agents | observed results | graph, ms | plan, ms | goal, ms |")
    print("| ---: | ---: | --- | ---: | ---: | --- |")
    types = [f"t{number}" for number in range(TYPES)]
    for count, goal in GOALS_MS.items():
        tasks = random_tasks(count, types)
        for agents in (16, 100):
            for observed in (False, True):
                graph_ms, plan_ms = planning_ms(
                    tasks, random_registry(agents), observed=observed, rounds=rounds
                )
                met = f"{goal}, {'met' if plan_ms <= goal else 'MISSED'}"
                told = "yes" if observed else "no"
                print(f"| {count} | {agents} | {told} | {graph_ms:.0f} | {plan_ms:.0f} | {met} |")


def print_peer(decisions: int, rounds: int) -> None:
    registry = load_registry()
    agents = {
        str(rule.condition["task_type"]): rule.target_agent
        for rule in registry.rules
        if len(rule.condition) == 1
    }
    tasks = [
        Task(id=str(number), type=Random(number).choice(list(agents)), description="x")
        for number in range(decisions)
    ]
    script = ROOT / "benchmarks" / "routing_supervisor.py"
    given = json.dumps({"agents": agents, "types": [task.type for task in tasks]})
    python = make_environment(VENV, ["langgraph-supervisor>=0.0.31"])
    done = subprocess.run([python, script], input=given, capture_output=True, text=True, check=True)
    peer = json.loads(done.stdout.splitlines()[-1])
    ours = sum(planning_ms(tasks, registry, observed=False, rounds=rounds)) / decisions
    print(f"\n{decisions} decisions among {len(registry.agents)} agents, CPU milliseconds each:")
    right = "all as in the table" if peer["right"] else "NOT all as in the table"
    print(f"langgraph-supervisor {peer['version']}: {peer['ms']:.2f} ({right})")
    print(f"waltzrl: {ours:.3f}, graph and explanations included")
    print(f"ratio: {peer['ms'] / ours:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Plans, and LangGraph's supervisor.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decisions", type=int, default=300)
    parser.add_argument("--no-peer", action="store_true", help="install and time no peer")
    options = parser.parse_args()
    print_plans(options.rounds)
    if not options.no_peer:
        print_peer(options.decisions, options.rounds)


if __name__ == "__main__":
    main()
