"""Which agent does which task, and why."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from waltzrl_routing.documents import VERSION, read_document


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Agents that were not chosen for one reason."""

    reason: str
    agents: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a task went to its agent, or to none."""

    agent: str | None
    """The name of the agent; None if no agent can do the task."""
    rule: str = ""
    """The id of the rule that chose; empty if the agent was chosen by its capability."""
    words: str
    """The reason: `Rule ID: ...`, `Capability match: ...`, or what was missing."""
    alternatives: tuple[Alternative, ...] = ()
    """Every other agent of the registry, once, by the reason it was not chosen."""
    start: float = 0.0
    """The time when the task starts if every task takes as long as estimated."""
    end: float = 0.0


class RoutingPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agents of all tasks that were to be done."""

    version: int = VERSION
    assignments: dict[str, str]
    """The agent of each task, by its id, dependencies first."""
    explanations: dict[str, Explanation]
    """The reasons for every task, assigned or not."""
    unassigned: tuple[str, ...] = ()
    """The tasks that no agent can do."""
    metadata: dict[str, object] = {}

    def is_complete(self) -> bool:
        return not self.unassigned

    def get_agent_workload(self) -> dict[str, int]:
        """Return the number of tasks of every agent that has one."""
        return dict(Counter(self.assignments.values()))

    @property
    def unassigned_tasks(self) -> Sequence[str]:
        return self.unassigned

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)


def read_plan(path: Path) -> RoutingPlan:
    """Read a plan, JSON or TOML.

    Raises:
        InputError: the file cannot be read, or is no plan.
    """
    return read_document(path, RoutingPlan)
