"""Plans that were run with the memory of a desk: every state, and a plan whose process ended."""

import asyncio

from support.routed import (
    DANGEROUS,
    SAFE,
    UNSAFE,
    NotingAgent,
    registry,
    task,
)
from waltzrl import open_guard
from waltzrl.policies import ScriptedPolicy
from waltzrl_routing import Router, TaskGraph
from waltzrl_routing.execution import Executor

MINUTES = [
    task("fetch", type_="other"),
    task("translate", depends_on=["fetch"]),
    task("summarise", depends_on=["translate", "fetch"]),
    task("threaten", DANGEROUS, ["fetch"]),
    task("post", depends_on=["threaten"], type_="other"),
    task("draw", depends_on=["fetch"], type_="art"),
]
"""Of which `summarise` is coached, `threaten` declined, and nobody can draw."""
AGENTS = registry(clerk=10)


class PowerCutError(BaseException):
    """Ends a run as a crash does: nothing is stored after it."""


async def power_cut():
    raise PowerCutError


def run_plan(memory, tasks, plan_id, replies=None, revisions=(SAFE,), **options):
    """Run a plan; `CHECKED` tasks are reviewed."""
    graph = TaskGraph(tasks)
    guard = open_guard(upstream=ScriptedPolicy([*revisions, "I will not."]))
    executor = Executor(NotingAgent(replies), AGENTS, guard=guard, memory=memory)
    plan = Router(AGENTS).route(graph)
    return asyncio.run(executor.run(graph, plan, plan_id=plan_id, **options)).results


def run_minutes(memory, plan_id="minutes"):
    """Run a plan that ends with a task in almost every state."""
    return run_plan(memory, MINUTES, plan_id, {"summarise": UNSAFE})
