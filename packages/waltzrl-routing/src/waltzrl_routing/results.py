"""What became of a plan."""

from collections import Counter

import msgspec

from waltzrl.store.memory.plans import TaskResult, TaskState


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plan."""

    plan_id: str
    """The id by which the plan can be resumed."""
    results: dict[str, TaskResult]
    """The result of every task, dependencies first."""

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
