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
    from waltzrl_routing.plan import RoutingPlan as RoutingPlan
    from waltzrl_routing.registry import AgentCapability as AgentCapability
    from waltzrl_routing.registry import AgentRegistry as AgentRegistry
    from waltzrl_routing.registry import RoutingRule as RoutingRule
    from waltzrl_routing.registry import load_registry as load_registry
    from waltzrl_routing.router import Router as Router
    from waltzrl_routing.tasks import Task as Task
    from waltzrl_routing.tasks import TaskGraph as TaskGraph
    from waltzrl_routing.tasks import read_tasks as read_tasks
    from waltzrl_routing.tokens import AgentTokens as AgentTokens
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "halo": ("HALORouter", "HALORouterWithSafety", "TaskDAG", "TeamValidationResult"),
            "picture": ("plan_as_mermaid", "plan_as_svg"),
            "plan": ("RoutingPlan",),
            "registry": ("AgentCapability", "AgentRegistry", "RoutingRule", "load_registry"),
            "router": ("Router",),
            "tasks": ("Task", "TaskGraph", "read_tasks"),
            "tokens": ("AgentTokens",),
        },
    )
