"""Agents, the rules that send tasks to them, and the document that holds both."""

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from waltzrl.errors import InputError
from waltzrl_routing.documents import VERSION, read_document

SAFETY_CRITICAL = (
    "user_interaction",
    "customer_support",
    "data_access",
    "security",
    "code_generation",
    "content_generation",
    "api_call",
)
"""Types of tasks whose results are reviewed, unless a document says otherwise."""

CostTier: TypeAlias = Literal["cheap", "medium", "expensive"]
Scalar: TypeAlias = str | int | float | bool


class AgentCapability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent can do."""

    agent_name: str
    supported_task_types: tuple[str, ...]
    skills: tuple[str, ...] = ()
    cost_tier: CostTier = "medium"
    success_rate: float | None = None
    """Somebody's estimate, 0 to 1; a weak prior that observed results soon outweigh."""
    max_concurrent_tasks: int = 10


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks that a given agent does."""

    rule_id: str
    condition: dict[str, Scalar]
    """The values that must all be equal: `task_type`, and keys of the task's metadata."""
    target_agent: str
    priority: int = 10
    """The order in which rules are tried: the higher first; among equals the id that sorts
    first."""
    explanation: str = ""


class AgentRegistry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agents that tasks can go to, and the rules by which they do."""

    version: int = VERSION
    agents: tuple[AgentCapability, ...]
    rules: tuple[RoutingRule, ...] = ()
    safety_critical: tuple[str, ...] = SAFETY_CRITICAL
    """Types of tasks whose results are reviewed."""

    def __post_init__(self) -> None:
        """Check agents and rules.

        Raises:
            InputError: a name is used twice, an agent is invalid, a rule can never match, or no
                agent supports a safety-critical type.
        """
        _require_unique("agent", (agent.agent_name for agent in self.agents))
        _require_unique("rule", (rule.rule_id for rule in self.rules))
        for agent in self.agents:
            _check_agent(agent)
        supported = {type_ for agent in self.agents for type_ in agent.supported_task_types}
        for type_ in self.safety_critical:
            if type_ not in supported and type_ not in SAFETY_CRITICAL:
                raise InputError(
                    f"safety_critical has {type_!r}, which no agent supports, so that nothing "
                    f"would be reviewed; name one of {', '.join(sorted(supported))}"
                )
        agents = {agent.agent_name: agent for agent in self.agents}
        earlier: list[RoutingRule] = []
        for rule in self.ordered_rules():
            _check_rule(rule, agents)
            for other in earlier:
                if _always_wins(other, rule, agents):
                    raise InputError(
                        f"rule {rule.rule_id!r} can never match: rule {other.rule_id!r} comes "
                        "first and matches whatever it matches; raise its priority, narrow "
                        f"{other.rule_id!r}, or remove one"
                    )
            earlier.append(rule)

    def ordered_rules(self) -> list[RoutingRule]:
        """Return the rules in the order in which they are tried."""
        return sorted(self.rules, key=lambda rule: (-rule.priority, rule.rule_id))


def load_registry(path: Path | None = None) -> AgentRegistry:
    """Read agents and rules, TOML or JSON.

    Args:
        path: the file; None for the sixteen agents that come with waltzrl.

    Raises:
        InputError: the file cannot be read, or an agent or a rule is invalid; names file and
            place.
    """
    shipped = Path(str(files("waltzrl_routing") / "agents.toml"))
    return read_document(path or shipped, AgentRegistry)


def _require_unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name.strip():
            raise InputError(f"the name of one {kind} is empty; names must be unique")
        if name in seen:
            raise InputError(f"{kind} {name!r} is defined twice; names must be unique")
        seen.add(name)


def _check_agent(agent: AgentCapability) -> None:
    name = f"agent {agent.agent_name!r}"
    if not agent.supported_task_types or not all(agent.supported_task_types):
        raise InputError(f"{name} supports no type of task; list some in supported_task_types")
    if agent.success_rate is not None and not 0 <= agent.success_rate <= 1:
        raise InputError(f"{name} has a success_rate of {agent.success_rate}; need 0 to 1")
    if agent.max_concurrent_tasks < 1:
        raise InputError(
            f"{name} has max_concurrent_tasks = {agent.max_concurrent_tasks}; need 1 or more"
        )


def _check_rule(rule: RoutingRule, agents: dict[str, AgentCapability]) -> None:
    target = agents.get(rule.target_agent)
    if target is None:
        raise InputError(
            f"rule {rule.rule_id!r} can never match: its target {rule.target_agent!r} is not "
            f"registered; register it, or name one of {', '.join(agents) or 'no agents'}"
        )
    task_type = rule.condition.get("task_type")
    if task_type is not None and task_type not in target.supported_task_types:
        raise InputError(
            f"rule {rule.rule_id!r} can never match: its target {rule.target_agent!r} does not "
            f"support {task_type!r}, only {', '.join(target.supported_task_types)}"
        )


def _always_wins(
    first: RoutingRule, second: RoutingRule, agents: dict[str, AgentCapability]
) -> bool:
    """Whether `first`, tried before, takes every task that `second` could take.

    A rule is passed over where its target does not support the task's type or lacks a skill.
    """
    if not first.condition.items() <= second.condition.items():
        return False
    winner, loser = agents[first.target_agent], agents[second.target_agent]
    # A rule without a type takes every type that its target supports.
    types = {second.condition.get("task_type")} - {None} or {*loser.supported_task_types}
    return types <= {*winner.supported_task_types} and {*loser.skills} <= {*winner.skills}
