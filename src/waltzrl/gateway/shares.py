"""What the workers of one gateway share: how busy each is, and the rates of callers.

Everything is in shared memory, so a look costs a microsecond and needs no other process. A worker
writes only cells of its own, except in the table of rates, which has a lock.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from hashlib import sha256

WORKERS = 64
"""The most workers at the same time, those that leave included."""
LOAD_BYTES = 4 * 8 * WORKERS
PROBES = 16
"""The number of cells of the table of rates in which a caller may be."""
CELL_BYTES = 16
NOBODY_WAITS = bytes(8 * WORKERS)


class WorkerLoad:
    """How busy the workers are; each has a number of its own."""

    def __init__(
        self,
        memory: memoryview | None = None,
        number: int = 0,
        lock: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Publish the load of one worker.

        Args:
            memory: `LOAD_BYTES` that all workers share, zero at first; None for a single worker.
            number: of this worker, below `WORKERS`.
            lock: keeps other workers out.
        """
        self.lock = lock
        self.is_shared = memory is not None
        memory = memory or memoryview(bytearray(LOAD_BYTES))
        cells = [memory[at : at + 8 * WORKERS] for at in range(0, LOAD_BYTES, 8 * WORKERS)]
        self._active, self._waiting, self._connections = (part.cast("q") for part in cells[:3])
        self._since = cells[3].cast("d")
        self._since_bytes = cells[3]
        self._number = number

    @property
    def total_active(self) -> int:
        return sum(self._active)

    @property
    def total_waiting(self) -> int:
        return sum(self._waiting)

    @property
    def others_wait_longer(self) -> bool:
        """Whether the request that waits longest is in another worker."""
        if self._since_bytes.tobytes() == NOBODY_WAITS:  # as always but in an overload
            return False
        own = self._since[self._number]
        return any(since > 0 and (since < own or not own) for since in self._since)

    @property
    def others_have_fewer_connections(self) -> bool:
        """Whether another worker that accepts connections has fewer."""
        own = self._connections[self._number]
        return any(0 < connections < own for connections in self._connections)

    def set_active(self, active: int) -> None:
        self._active[self._number] = active

    def set_waiting(self, waiting: int, since: float) -> None:
        """Publish how many requests wait, and when the first of them came; 0 for none."""
        self._waiting[self._number] = waiting
        self._since[self._number] = since

    def set_connections(self, connections: int | None) -> None:
        """Publish how many connections there are; None while none are accepted."""
        # A zero says that no connection is accepted, so a count is published plus one.
        self._connections[self._number] = 0 if connections is None else connections + 1

    def clear(self) -> None:
        """Forget a worker that has ended."""
        self.set_active(0)
        self.set_waiting(0, 0.0)
        self.set_connections(None)


class RateTable:
    """For each caller the time at which its bucket is full again.

    A bucket that is full needs no cell, so the table only has to hold the callers of the last
    minutes. Should all cells that a caller may have be taken, it takes the one that is full
    soonest, whose caller gains what was missing in its bucket.
    """

    def __init__(
        self,
        memory: memoryview | None = None,
        lock: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Keep the table in shared memory, zero at first, or in this process.

        Args:
            memory: `CELL_BYTES` for each cell.
            lock: keeps other processes out.
        """
        memory = memory or memoryview(bytearray(CELL_BYTES * 1024))
        # First the hashes of all callers, then all times, because a view has one type.
        half = len(memory) // CELL_BYTES * 8
        self._callers, self._full_at = memory[:half].cast("Q"), memory[half : 2 * half].cast("d")
        self.lock = lock

    def cell(self, name: str, now: float) -> int:
        """Return the cell of a caller; call it, and use the cell, inside `lock`."""
        caller = _hash_caller(name)
        # The cells after the first one must be in the table, too.
        first = caller % (len(self._callers) - PROBES)
        cells = range(first, first + PROBES)
        for cell in cells:
            if self._callers[cell] == caller:
                return cell
        # A cell that nobody has used has the time 0, and comes first.
        cell = min(cells, key=self._full_at.__getitem__)
        self._callers[cell] = caller
        self._full_at[cell] = now
        return cell

    def __getitem__(self, cell: int) -> float:
        return self._full_at[cell]

    def __setitem__(self, cell: int, full_at: float) -> None:
        self._full_at[cell] = full_at


@lru_cache(maxsize=1024)
def _hash_caller(name: str) -> int:
    """Return the hash of a caller's name that is the same in every process."""
    return int.from_bytes(sha256(name.encode("utf-8", "surrogatepass")).digest()[:8])
