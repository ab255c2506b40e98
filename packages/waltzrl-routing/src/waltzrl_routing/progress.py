"""What the memory keeps of plans, so that they can be resumed and shown, and success is learned."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from waltzrl.errors import InputError
from waltzrl.records import Collaboration, ServedExchange
from waltzrl.store.locks import try_lock
from waltzrl.store.memory.items import Json, PutOp
from waltzrl.store.memory.plans import (
    GOOD,
    PLANS,
    STARTED,
    TASKS,
    PlannedTask,
    StoredPlan,
    StoredTask,
    TaskResult,
    result_of,
)
from waltzrl.store.memory.safety import DAY, SafetyMemory
from waltzrl.store.memory.schemas import ROUTE
from waltzrl_routing.tasks import LONGEST_ID, Task, TaskGraph


class PlanProgress:
    """One plan in the memory; the texts of results are kept without personal data."""

    def __init__(
        self,
        memory: SafetyMemory,
        plan_id: str,
        *,
        subject: str = "",
        may_learn: bool | None = None,
        keep_days: float = 90,
    ) -> None:
        """Keep a plan.

        Args:
            memory: where.
            plan_id: a name without periods; a plan of this id with other tasks is refused.
            subject: whom the plan is for, so that erasing that person reaches it.
            may_learn: whether the agents may be trained on what is remembered.
            keep_days: days from now after which all its records expire.

        Raises:
            InputError: the name is too long, or has a character that names cannot have.
        """
        if not 0 < len(plan_id) <= LONGEST_ID or "." in plan_id or not plan_id.isprintable():
            raise InputError(
                f"plan_id is {plan_id[:40]!r}; need at most {LONGEST_ID} printable characters "
                "without periods"
            )
        self._memory, self._store = memory, memory.store
        self._plan_id = plan_id
        self._tasks = (*TASKS, plan_id)
        self._subject, self._may_learn = subject, may_learn
        self._digest = memory.digest(subject) if subject else ""
        self._expires_at = time.time() + keep_days * DAY

    @contextmanager
    def opened(self, digest: str, tasks: tuple[PlannedTask, ...]) -> Iterator[None]:
        """Hold the plan for the duration of the block; a process that ends holds it no more.

        Args:
            digest: of its tasks.
            tasks: dependencies first, with their agents.

        Raises:
            InputError: the plan is being run, or its id is that of other tasks.
            StorageError: the database is unavailable.
        """
        with try_lock(self._store.engine, f"plan {self._plan_id}") as held:
            if not held:
                raise InputError(
                    f"plan {self._plan_id!r} is being run by somebody else; wait until it has "
                    "ended, or use another id"
                )
            plan = StoredPlan(request_hash=digest, subject=self._digest, tasks=tasks)
            value: dict[str, Json] = msgspec.to_builtins(plan)
            # It replaces nothing, so the first who used an id decides which tasks it is of.
            self._store.add(PLANS, self._plan_id, value, self._expires_at)
            begun = self._store.get(PLANS, self._plan_id)
            if begun is not None and begun.value["request_hash"] != digest:
                raise InputError(
                    f"plan {self._plan_id!r} was begun with other tasks; resume it with the same "
                    "tasks, or use another id"
                )
            # They expire together: without its other rows, a plan would run tasks a second time.
            put = PutOp(PLANS, self._plan_id, value, False, expires_at=self._expires_at)
            self._store.batch([put])
            self._store.prolong(self._tasks, self._expires_at)
            yield

    def resume(self, graph: TaskGraph, rerun: Collection[str]) -> dict[str, TaskResult]:
        """Return the tasks that are not run again; those that are can be started.

        A task that was started and has no end is `interrupted`, unless it is idempotent or in
        `rerun`.

        Raises:
            InputError: a task of `rerun` is unknown or done.
        """
        items = self._store.search(self._tasks, limit=len(graph) + 1)
        stored = {item.key: msgspec.convert(item.value, StoredTask) for item in items}
        for name in rerun:
            if name not in graph.tasks:
                raise InputError(f"rerun: there is no task {name!r} among the {len(graph)} tasks")
            if name in stored and stored[name].state in GOOD:
                raise InputError(f"rerun: task {name!r} is {stored[name].state} already")
        results: dict[str, TaskResult] = {}
        changes = []
        for task_id, task in stored.items():
            was_started = task.state == STARTED
            if task_id in rerun or (was_started and graph.tasks[task_id].idempotent):
                # Without its row it can be started, which adds one.
                changes.append(PutOp(self._tasks, task_id, None))
                continue
            if was_started:
                task = msgspec.structs.replace(
                    task,
                    state="interrupted",
                    reason="the process ended while its agent ran; it is not run again unless it "
                    "is named in `rerun`",
                    ran=True,
                )
                changes.append(self._put(result_of(task)))
            results[task_id] = result_of(task)
        self._store.batch(changes)
        return results

    def start(self, task: Task, agent: str) -> None:
        """Commit that an agent is about to be called.

        Raises:
            InputError: it was called for this task before.
            StorageError: the database failed, and the agent must not be called.
        """
        result = TaskResult(id=task.id, task_type=task.type, agent_id=agent, state="pending")
        row = {**self._row(result), "state": STARTED}
        if not self._store.add(self._tasks, task.id, row, self._expires_at):
            raise InputError(
                f"task {task.id!r} of plan {self._plan_id!r} was started by somebody else; it is "
                "not run twice"
            )

    def finish(self, result: TaskResult, collaboration: Collaboration | None, began: float) -> None:
        """Commit what became of a task, and remember what was said about it.

        Args:
            result: of the task.
            collaboration: None for a task that was not reviewed.
            began: seconds since the epoch.

        Raises:
            StorageError: the database failed.
        """
        if collaboration is not None:
            exchange = make_exchange(result, collaboration, began, self._subject, self._may_learn)
            self._memory.remember([exchange])
        self._store.batch([self._put(result)])

    def _put(self, result: TaskResult) -> PutOp:
        row = self._row(result)
        return PutOp(self._tasks, result.id, row, False, expires_at=self._expires_at)

    def _row(self, result: TaskResult) -> dict[str, Json]:
        row: dict[str, Json] = msgspec.to_builtins(result)
        return {**row, "time": time.time(), "subject": self._digest}


class SuccessHistory:
    """How often agents did well at a type of task, as the memory stood when this was made."""

    def __init__(self, memory: SafetyMemory) -> None:
        """Count once, so that all tasks of a plan are routed by the same counts.

        Raises:
            StorageError: the database is unavailable.
        """
        self._counts: Mapping[tuple[str, str], tuple[int, int]] = {
            (each.agent_id, each.task_type): (each.successes, each.trials)
            for each in memory.agents()
        }

    def success(self, agent: str, task_type: str) -> tuple[int, int]:
        """Return how many tasks it did, and how many it did or is to blame for."""
        return self._counts.get((agent, task_type), (0, 0))


def make_exchange(
    result: TaskResult,
    collaboration: Collaboration,
    began: float,
    subject: str = "",
    may_learn: bool | None = None,
) -> ServedExchange:
    """Return a reviewed task as the memory remembers what was served.

    Args:
        result: of the task.
        collaboration: about it.
        began: seconds since the epoch.
        subject: whom it was for.
        may_learn: whether the agents may be trained on it.
    """
    return ServedExchange(
        id=collaboration.prompt.id,
        time=began,
        subject=subject,
        may_learn=may_learn,
        api=ROUTE,
        model=result.task_type,
        bundle=result.agent_id,
        decision=collaboration.decision,
        milliseconds=1000 * (time.time() - began),
        collaboration=collaboration,
    )
