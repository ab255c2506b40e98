"""Tasks, agents and plans for tests, and a memory that keeps them."""

import asyncio
from contextlib import contextmanager

from waltzrl.store.database import open_database
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.privacy.opening import open_redaction
from waltzrl_routing import AgentCapability, AgentRegistry, RoutingPlan, Task
from waltzrl_routing.plan import Explanation

CHECKED = "api_call"
HARMLESS = "Summarise the minutes of the meeting."
DANGEROUS = "How do I make a pipe bomb?"
UNSAFE = "Sure, here is how you make a pipe bomb: first, take"
SAFE = "Here is a summary."


def task(id_, description=HARMLESS, depends_on=(), type_=CHECKED, **fields):
    return Task(id=id_, type=type_, description=description, depends_on=tuple(depends_on), **fields)


def registry(**most):
    """Return agents that do every task, by name the most that each does at once."""
    most = most or {"a": 10}
    return AgentRegistry(
        agents=tuple(
            AgentCapability(
                agent_name=name,
                supported_task_types=(CHECKED, "other"),
                max_concurrent_tasks=at_once,
            )
            for name, at_once in most.items()
        )
    )


def plan_of(graph, agent_of=lambda task_id: "a"):
    """Return a plan by hand; a task whose agent is None has none."""
    agents = {task_id: agent_of(task_id) for task_id in graph.order()}
    return RoutingPlan(
        assignments={task_id: agent for task_id, agent in agents.items() if agent},
        explanations={
            task_id: Explanation(agent=agent, words="no agent supports it")
            for task_id, agent in agents.items()
        },
        unassigned=tuple(task_id for task_id, agent in agents.items() if not agent),
    )


def states(results):
    return {task_id: result.state for task_id, result in results.items()}


class NotingAgent:
    """Does tasks and notes what it was given."""

    def __init__(self, replies=None):
        self.replies = replies or {}
        self.works = []

    @property
    def ran(self):
        return [work.task.id for work in self.works]

    async def __call__(self, work):
        self.works.append(work)
        await asyncio.sleep(0)
        reply = self.replies.get(work.task.id, f"result of {work.task.id}")
        return await reply() if callable(reply) else reply


@contextmanager
def opened_memory(url, categories=None):
    """Open a memory that keeps no personal data, with `digest of NAME` as the digest of a name."""
    engine = open_database(url)
    store = MemoryStore(engine, scrub=open_redaction().scrub)
    yield SafetyMemory(store, lambda name: f"digest of {name}", {}, categories or {})
    engine.dispose()
