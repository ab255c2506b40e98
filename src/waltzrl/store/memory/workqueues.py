"""Queues by name: which evaluations, for whom, in which order, and how they are labelled."""

from collections.abc import Mapping

import msgspec

from waltzrl.store.memory.store import MemoryStore

QUEUES = ("desk", "queues")
"""Namespace; the key is the queue's name."""
MOST_QUEUES = 100


class WorkQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A list that people label together."""

    name: str
    instructions: str = ""
    people: tuple[str, ...] = ()
    """Names of their keys; empty for everybody who may label."""
    filters: Mapping[str, str] = {}
    """Fields of a list's address, its order included."""
    until: float | None = None
    """Seconds since the epoch: only what was served before; None: also what is served later."""
    labels_each: int = 1
    """People who label each evaluation."""
    blind: bool = False
    """Whether verdicts and labels of others are hidden from a person until they have labelled."""
    asks: tuple[str, ...] = ()
    """The questions about an unsafe reply beside the label: `category`, `severity`."""

    def is_for(self, name: str) -> bool:
        """Whether a person may work on it."""
        return not self.people or name in self.people


def read_queues(store: MemoryStore) -> list[WorkQueue]:
    """Return all queues, by name."""
    items = store.search(QUEUES, limit=MOST_QUEUES)
    return sorted(
        (msgspec.convert(item.value, WorkQueue) for item in items), key=lambda queue: queue.name
    )


def find_queue(store: MemoryStore, name: str) -> WorkQueue | None:
    """Return a queue; None when there is none of this name.

    Raises:
        InputError: the name is none of a queue.
    """
    item = store.get(QUEUES, name)
    return None if item is None else msgspec.convert(item.value, WorkQueue)


def put_queue(store: MemoryStore, queue: WorkQueue) -> None:
    """Store a queue, in place of any of its name."""
    store.put(QUEUES, queue.name, msgspec.to_builtins(queue), index=False)


def drop_queue(store: MemoryStore, name: str) -> None:
    """Delete a queue; the labels stay."""
    store.delete(QUEUES, name)
