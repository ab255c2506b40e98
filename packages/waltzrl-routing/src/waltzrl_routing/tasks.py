"""Tasks, and the graph that their dependencies form."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from waltzrl.errors import CycleError, InputError, MissingExtraError
from waltzrl_routing.documents import VERSION, read_document

try:
    import networkx
except ModuleNotFoundError as missing:
    raise MissingExtraError("routing", "networkx", "routing") from missing

LONGEST_ID = 200
"""The most characters of an id: a name, which plans, pictures and the memory repeat."""
LONGEST_DURATION = 1e100
"""The longest duration, so that sums of durations are finite."""
LONGEST_CYCLE = 8
"""The number of tasks of a cycle that its error names."""


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that one agent is to do."""

    id: str
    type: str = "generic"
    """The kind of work it is; rules and agents name types."""
    description: str
    """The text that says what the agent is to do."""
    depends_on: tuple[str, ...] = ()
    """The ids of the tasks that must be done before."""
    metadata: dict[str, object] = {}
    """Any JSON values; rules compare them, and `estimated_duration` (a number above 0, 1 if
    absent) says how long the task takes, in a unit of the caller's choice."""
    skills: tuple[str, ...] = ()
    """The skills that the agent must have, all of them."""
    idempotent: bool = False
    """Whether it may be run again after a crash."""

    @property
    def duration(self) -> float:
        """Its `estimated_duration`, or 1."""
        value = self.metadata.get("estimated_duration", 1.0)
        return float(value) if isinstance(value, (int, float)) else 1.0


class TaskDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks as a file holds them."""

    version: int = VERSION
    tasks: tuple[Task, ...]


class TaskGraph:
    """Tasks in an order in which each comes after those it depends on."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        """Check the tasks and order them.

        Raises:
            InputError: an id is used twice, too long or not printable, a description is empty, a
                dependency is unknown, or an estimated duration is no positive number.
            CycleError: dependencies form a cycle.
        """
        self.tasks: dict[str, Task] = {}
        """The tasks by id, in the given order."""
        for task in tasks:
            if not isinstance(task, Task):
                raise InputError(f"tasks: got a {type(task).__name__}; need objects of type Task")
            if task.id in self.tasks:
                raise InputError(f"task id {task.id!r} is used twice; ids must be unique")
            self.tasks[task.id] = task
        for task in self.tasks.values():
            self._check(task)
        self._graph = networkx.DiGraph()
        self._graph.add_nodes_from(self.tasks)
        self._graph.add_edges_from(
            (needed, task.id) for task in self.tasks.values() for needed in task.depends_on
        )
        self._order = self._sort_tasks()

    def __len__(self) -> int:
        return len(self.tasks)

    def order(self) -> Sequence[str]:
        """Return all ids, dependencies first; of tasks that could come next, in the given order."""
        return self._order

    def depths(self) -> dict[str, int]:
        """Return for every task the length of the longest path that leads to it."""
        depths: dict[str, int] = {}
        for task_id in self._order:
            needed = self.tasks[task_id].depends_on
            depths[task_id] = max((depths[other] + 1 for other in needed), default=0)
        return depths

    def dependents(self) -> Mapping[str, Iterable[str]]:
        """Return for every task the ids of those that name it in `depends_on`."""
        successors: Mapping[str, Iterable[str]] = self._graph.adj
        return successors

    def _check(self, task: Task) -> None:
        for field in ("id", "type", "description"):
            if not getattr(task, field).strip():
                raise InputError(f"task {task.id!r} has an empty {field}; write one")
        if len(task.id) > LONGEST_ID or not task.id.isprintable():
            raise InputError(
                f"task id {task.id[:LONGEST_ID]!r} is longer than {LONGEST_ID} characters or has "
                "one that cannot be printed; use another id"
            )
        for needed in task.depends_on:
            if needed not in self.tasks:
                raise InputError(
                    f"task {task.id!r} depends on {needed!r}, which is not among the tasks; "
                    "add it, or remove it from depends_on"
                )
        duration = task.metadata.get("estimated_duration", 1.0)
        valid = isinstance(duration, (int, float)) and not isinstance(duration, bool)
        if not valid or not 0 < duration <= LONGEST_DURATION:  # type: ignore[operator]
            raise InputError(
                f"task {task.id!r} has an estimated_duration of {repr(duration)[:40]}; need a "
                f"number above 0, at most {LONGEST_DURATION:g}"
            )

    def _sort_tasks(self) -> tuple[str, ...]:
        position = {task_id: place for place, task_id in enumerate(self.tasks)}
        try:
            return tuple(
                networkx.lexicographical_topological_sort(self._graph, key=position.__getitem__)
            )
        except networkx.NetworkXUnfeasible:
            # The sort only says that there is a cycle.
            cycle = [task_id for task_id, _ in networkx.find_cycle(self._graph)]
        named = cycle[:LONGEST_CYCLE]
        if len(cycle) > LONGEST_CYCLE:
            named.append(f"({len(cycle) - LONGEST_CYCLE} more)")
        raise CycleError(
            f"dependencies form a cycle: {' -> '.join([*named, cycle[0]])}; remove one of them"
        )


def task_as_json(task: Task) -> bytes:
    """Return all fields of a task; equal tasks give equal bytes.

    Raises:
        InputError: something in it is not JSON.
    """
    try:
        return msgspec.json.encode(task, order="sorted")
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise InputError(
            f"task {task.id!r} cannot be written as JSON: {error}; need texts, numbers, lists and "
            "dicts in its metadata"
        ) from None


def read_tasks(path: Path) -> TaskGraph:
    """Read a file with `version` and `tasks`, TOML or JSON.

    Raises:
        InputError: the file cannot be read, or its tasks form no graph; names file and place.
    """
    document = read_document(path, TaskDocument)
    try:
        return TaskGraph(document.tasks)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from None
