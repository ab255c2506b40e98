"""What safety costs the tasks of a plan.

    python benchmarks/routing_safety.py [--rounds 21] [--tasks 2000]

Runs the same tasks, whose agent does nothing, without a guard, with one on a type that is not
safety-critical, and with one on a type that is. Prints CPU microseconds a task, medians of rounds
that take turns, and what each differs from the first: the median over rounds of the ratio, with
its quartiles. An agent that does nothing is the worst case for the ratio.
"""

import argparse
import asyncio
from statistics import median, quantiles
from time import process_time

from waltzrl import open_guard
from waltzrl.gateway.guard import Guard
from waltzrl_routing import AgentCapability, AgentRegistry, Router, RoutingPlan, Task, TaskGraph
from waltzrl_routing.execution import Executor
from waltzrl_routing.runner import Work

REGISTRY = AgentRegistry(
    agents=(AgentCapability(agent_name="a", supported_task_types=("report", "api_call")),)
)
GOAL = 0.01
"""Most that safety may cost a task which is not safety-critical."""


async def nothing(work: Work) -> str:
    return f"Finished the report of task {work.task.id}."


def graph_of(task_type: str, count: int) -> tuple[TaskGraph, RoutingPlan]:
    words = "Write the report of the week for the team in Berlin."
    graph = TaskGraph(
        Task(id=str(number), type=task_type, description=words) for number in range(count)
    )
    return graph, Router(REGISTRY).route(graph)


def microseconds(guard: Guard | None, graph: TaskGraph, plan: RoutingPlan) -> float:
    executor = Executor(nothing, REGISTRY, guard=guard)
    began = process_time()
    asyncio.run(executor.run(graph, plan))
    return 1e6 * (process_time() - began) / len(graph)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--tasks", type=int, default=2000)
    options = parser.parse_args()
    guard = open_guard()
    other, critical = graph_of("report", options.tasks), graph_of("api_call", options.tasks)
    kinds = {
        "no guard": (None, *other),
        "guard, not safety-critical": (guard, *other),
        "guard, safety-critical (rules)": (guard, *critical),
    }
    for run in kinds.values():  # compiles the rules, fills caches
        microseconds(*run)
    rounds = [
        {name: microseconds(*run) for name, run in kinds.items()} for _ in range(options.rounds)
    ]
    for name in kinds:
        ratios = [each[name] / each["no guard"] - 1 for each in rounds]
        low, middle, high = quantiles(ratios, n=4)
        print(
            f"{name:32} {median(each[name] for each in rounds):8.1f} us a task, "
            f"{middle:+.2%} ({low:+.2%} to {high:+.2%})"
        )
    print(f"goal: less than {GOAL:+.0%} for what is not safety-critical")


if __name__ == "__main__":
    main()
