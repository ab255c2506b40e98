"""Tasks in a graph to agents, with the reasons."""

from typing import TYPE_CHECKING

from waltzrl.foundation.first_use import imported_on_first_use

if TYPE_CHECKING:
    from waltzrl.routing.halo import HALORouter, TaskDAG, TeamValidationResult
    from waltzrl.routing.picture import plan_as_mermaid, plan_as_svg
    from waltzrl.routing.plan import (
        Alternative,
        Explanation,
        RoutingPlan,
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
    from waltzrl.routing.tokens import AgentTokens, AuthRegistry
    from waltzrl.store.memory.plans import TaskState

__all__ = [
    "SAFETY_CRITICAL",
    "AgentCapability",
    "AgentRegistry",
    "AgentTokens",
    "Alternative",
    "AuthRegistry",
    "Explanation",
    "HALORouter",
    "History",
    "Router",
    "RoutingPlan",
    "RoutingRule",
    "SuccessRate",
    "Task",
    "TaskDAG",
    "TaskGraph",
    "TaskState",
    "TeamValidationResult",
    "load_registry",
    "plan_as_mermaid",
    "plan_as_svg",
    "plan_from_json",
    "read_plan",
    "read_tasks",
    "success_rate",
    "tasks_from_json",
]

# To type checkers a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:
    __getattr__ = imported_on_first_use(
        __name__,
        {
            ".halo": ("HALORouter", "TaskDAG", "TeamValidationResult"),
            ".picture": ("plan_as_mermaid", "plan_as_svg"),
            ".plan": ("Alternative", "Explanation", "RoutingPlan", "plan_from_json", "read_plan"),
            ".registry": (
                "SAFETY_CRITICAL",
                "AgentCapability",
                "AgentRegistry",
                "RoutingRule",
                "load_registry",
            ),
            ".router": ("Router",),
            ".success": ("History", "SuccessRate", "success_rate"),
            ".tasks": ("Task", "TaskGraph", "read_tasks", "tasks_from_json"),
            ".tokens": ("AgentTokens", "AuthRegistry"),
            "waltzrl.store.memory.plans": ("TaskState",),
        },
    )
