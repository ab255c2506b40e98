"""How many tasks each agent has at a simulated time."""

from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace

from waltzrl_routing.registry import AgentCapability


class Loads:
    """The agents' places, taken and released as time advances.

    A task that comes to an agent without a free place waits for the first that becomes free.
    """

    def __init__(self, agents: Iterable[AgentCapability]) -> None:
        self.capacity = {agent.agent_name: agent.max_concurrent_tasks for agent in agents}
        self.at_work = dict.fromkeys(self.capacity, 0)
        """Tasks that hold or wait for a place now."""
        self._ends: dict[str, list[float]] = {name: [] for name in self.capacity}
        """A heap for each agent: when the taken places become free."""
        self._releases: list[tuple[float, str]] = []

    def advance(self, time: float) -> None:
        """Release what ends by `time`, which never decreases."""
        while self._releases and self._releases[0][0] <= time:
            name = heappop(self._releases)[1]
            ends = self._ends[name]
            # Nothing ends where the place was passed on: its new end has an entry of its own.
            while ends and ends[0] <= time:
                heappop(ends)
            self.at_work[name] = len(ends)

    def is_free(self, name: str) -> bool:
        return self.at_work[name] < self.capacity[name]

    def free_at(self, name: str) -> float:
        """Return when the next place of an agent without a free one becomes free."""
        return self._ends[name][0]

    def take(self, name: str, time: float, duration: float) -> tuple[float, float]:
        """Give a task that is ready at `time` a place; return when it starts and ends."""
        ends = self._ends[name]
        start = time if self.is_free(name) else ends[0]
        end = start + duration
        if self.is_free(name):
            heappush(ends, end)
        else:
            # The place passes from the task that ends first to this one, and stays taken.
            heapreplace(ends, end)
        self.at_work[name] = len(ends)
        heappush(self._releases, (end, name))
        return start, end
