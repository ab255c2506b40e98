"""Tasks in a graph to agents, with the reasons."""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl_routing.halo import HALORouter as HALORouter
    from waltzrl_routing.halo import HALORouterWithSafety as HALORouterWithSafety
    from waltzrl_routing.halo import TaskDAG as TaskDAG
    from waltzrl_routing.halo import TeamValidationResult as TeamValidationResult
    from waltzrl_routing.picture import plan_as_mermaid as plan_as_mermaid
    from waltzrl_routing.picture import plan_as_svg as plan_as_svg
    from waltzrl_routing.plan import Alternative as Alternative
    from waltzrl_routing.plan import Explanation as Explanation
    from waltzrl_routing.plan import RoutingPlan as RoutingPlan
    from waltzrl_routing.plan import plan_from_json as plan_from_json
    from waltzrl_routing.plan import read_plan as read_plan
    from waltzrl_routing.registry import SAFETY_CRITICAL as SAFETY_CRITICAL
    from waltzrl_routing.registry import AgentCapability as AgentCapability
    from waltzrl_routing.registry import AgentRegistry as AgentRegistry
    from waltzrl_routing.registry import RoutingRule as RoutingRule
    from waltzrl_routing.registry import load_registry as load_registry
    from waltzrl_routing.router import Router as Router
    from waltzrl_routing.success import History as History
    from waltzrl_routing.success import SuccessRate as SuccessRate
    from waltzrl_routing.success import success_rate as success_rate
    from waltzrl_routing.tasks import Task as Task
    from waltzrl_routing.tasks import TaskGraph as TaskGraph
    from waltzrl_routing.tasks import read_tasks as read_tasks
    from waltzrl_routing.tasks import tasks_from_json as tasks_from_json
    from waltzrl_routing.tokens import AgentTokens as AgentTokens
    from waltzrl_routing.tokens import AuthRegistry as AuthRegistry
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "halo": (
                "HALORouter",
                "HALORouterWithSafety",
                "TaskDAG",
                "TeamValidationResult",
            ),
            "picture": (
                "plan_as_mermaid",
                "plan_as_svg",
            ),
            "plan": (
                "Alternative",
                "Explanation",
                "RoutingPlan",
                "plan_from_json",
                "read_plan",
            ),
            "registry": (
                "SAFETY_CRITICAL",
                "AgentCapability",
                "AgentRegistry",
                "RoutingRule",
                "load_registry",
            ),
            "router": ("Router",),
            "success": (
                "History",
                "SuccessRate",
                "success_rate",
            ),
            "tasks": (
                "Task",
                "TaskGraph",
                "read_tasks",
                "tasks_from_json",
            ),
            "tokens": (
                "AgentTokens",
                "AuthRegistry",
            ),
        },
    )
