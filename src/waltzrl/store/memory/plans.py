"""Routed plans as the memory keeps them, and how far each is; `waltzrl_routing` writes them.

("routing", "plans")            PLAN    StoredPlan
("routing", "tasks", PLAN)      TASK    StoredTask: "started" before its agent runs, then its result
"""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import structs

PLANS = ("routing", "plans")
TASKS = ("routing", "tasks")
STARTED = "started"
"""State of a stored task whose agent was called and whose end is not stored."""

TaskState: TypeAlias = Literal[
    "pending", "done", "coached", "declined", "blocked", "failed", "interrupted"
]
"""The outcome of a task: done as its agent did it, done after coaching, declined because it was
unsafe, blocked because a task that it depends on is not done, failed with an error, or interrupted
by a crash."""
Fault: TypeAlias = Literal["", "request", "agent", "reviewer", "plan"]
GOOD: tuple[TaskState, ...] = ("done", "coached")
"""States after which the tasks that depend on a task can run."""


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
    """The reason why it was not done; empty of one that was."""
    fault: Fault = ""
    """The agent or part whose fault it is that it was not done; empty of one that was, and of one
    that was blocked or interrupted."""
    ran: bool = False
    """Whether the agent was called, and so may have acted."""
    checked: bool = False
    """Whether the request was reviewed before, and the result after, its agent ran."""
    rounds: int = 0
    """Revisions by a model."""
    final_safe: bool | None = None
    """The last review's opinion of `reply`, True of a refusal; None when it was not reviewed."""
    risk: float | None = None
    """0 to 1, of the last review; None when unknown."""
    category: str = ""
    """Subject of what was unsafe, a category of the rules; empty when none was named."""
    generation_ms: float = 0.0
    """Time that the agent took."""
    evaluation_ms: float = 0.0
    """Time that reviews and revisions took."""


class PlannedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a plan, without its texts."""

    id: str
    task_type: str
    agent_id: str = ""
    """Empty where no agent can do it, or where it was done before."""
    depends_on: tuple[str, ...] = ()
    why: str = ""
    """The reason why its agent was chosen, or what was missing."""


class StoredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was begun; its key is its id."""

    request_hash: str
    """Digest of its tasks; the name is a column, and not searched for secrets."""
    subject: str
    """Digest of whom it is for; empty when nobody was named."""
    tasks: tuple[PlannedTask, ...]
    """Dependencies first; as planned when it was run last."""


class StoredTask(TaskResult, frozen=True, kw_only=True):
    """A task that was started; its key is its id."""

    state: str  # type: ignore[assignment]  # a TaskState, or STARTED
    time: float
    subject: str
    """Digest of whom the plan is for; empty when nobody was named."""


def result_of(stored: StoredTask) -> TaskResult:
    """Return the result that was stored; the task has ended."""
    return msgspec.convert(stored, TaskResult, from_attributes=True)


def all_results(
    tasks: Iterable[PlannedTask], results: Mapping[str, TaskResult]
) -> dict[str, TaskResult]:
    """Return the results of all tasks of a plan, also of those that cannot be started.

    Args:
        tasks: dependencies first.
        results: of those that were started.

    Returns:
        In the order of the tasks: what has no result is blocked by a task that it depends on, has
        failed because no agent can do it, or is pending.
    """
    complete: dict[str, TaskResult] = {}
    blocked_by: dict[str, str] = {}
    for task in tasks:
        if task.id in results:
            complete[task.id] = results[task.id]
            continue
        result = TaskResult(
            id=task.id, task_type=task.task_type, agent_id=task.agent_id, state="pending"
        )
        cause = next(
            (name for name in task.depends_on if complete[name].state not in (*GOOD, "pending")),
            None,
        )
        if cause is not None:
            # In a chain of blocked tasks the reason names the first failure, not a task between.
            cause = blocked_by[task.id] = blocked_by.get(cause, cause)
            reason = f"it depends on {cause!r}, which is {complete[cause].state}"
            result = structs.replace(result, state="blocked", reason=reason)
        elif not task.agent_id:
            reason = f"no agent can do it: {task.why}"
            result = structs.replace(result, state="failed", fault="plan", reason=reason)
        complete[task.id] = result
    return complete
