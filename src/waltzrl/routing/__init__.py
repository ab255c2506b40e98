"""Tasks in a graph to agents, with the reasons."""

from waltzrl.routing.plan import (
    Alternative,
    Explanation,
    RoutingPlan,
    TaskState,
    plan_from_json,
    read_plan,
)
from waltzrl.routing.registry import (
    SAFETY_CRITICAL,
    AgentCapability,
    AgentRegistry,
    RoutingRule,
    load_registry,
)
from waltzrl.routing.router import Router
from waltzrl.routing.success import History, SuccessRate, success_rate
from waltzrl.routing.tasks import Task, TaskGraph, read_tasks, tasks_from_json

__all__ = [
    "SAFETY_CRITICAL",
    "AgentCapability",
    "AgentRegistry",
    "Alternative",
    "Explanation",
    "History",
    "Router",
    "RoutingPlan",
    "RoutingRule",
    "SuccessRate",
    "Task",
    "TaskGraph",
    "TaskState",
    "load_registry",
    "plan_from_json",
    "read_plan",
    "read_tasks",
    "success_rate",
    "tasks_from_json",
]
