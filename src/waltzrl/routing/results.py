"""What became of a plan and its tasks."""

from collections import Counter
from typing import Literal, TypeAlias

import msgspec

from waltzrl.routing.plan import TaskState

Fault: TypeAlias = Literal["", "request", "agent", "reviewer", "plan"]


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a task."""

    id: str
    task_type: str
    agent_id: str = ""
    """Empty where no agent can do it."""
    state: TaskState
    reply: str = ""
    """The result, which the tasks that depend on it get; of a declined task a refusal, or help."""
    reason: str = ""
    """Why it was not done; empty of one that was."""
    fault: Fault = ""
    """Whose fault it is that it was not done; empty of one that was, and of one that was blocked
    or interrupted."""
    ran: bool = False
    """Whether the agent was called, and so may have acted."""
    checked: bool = False
    """Whether the request was reviewed before, and the result after, its agent ran."""
    rounds: int = 0
    """Revisions by a model."""
    final_safe: bool | None = None
    """What the last review said of `reply`, True of a refusal; None when it was not reviewed."""
    risk: float | None = None
    """0 to 1, of the last review; None when unknown."""
    category: str = ""
    """Subject of what was unsafe, one of `waltzrl.rules.CATEGORIES`; empty when none was named."""
    generation_ms: float = 0.0
    """Time that the agent took."""
    evaluation_ms: float = 0.0
    """Time that reviews and revisions took."""


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plan."""

    plan_id: str
    """By which it can be resumed."""
    results: dict[str, TaskResult]
    """Of every task, dependencies first."""

    @property
    def states(self) -> dict[TaskState, int]:
        """Return the number of tasks in each state that occurs."""
        return dict(Counter(result.state for result in self.results.values()))

    @property
    def avg_coaching_rounds(self) -> float | None:
        """Revisions per checked task that ran; None if there is none."""
        rounds = [each.rounds for each in self.results.values() if each.checked and each.ran]
        return sum(rounds) / len(rounds) if rounds else None

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)
