"""Metrics of tasks that a program runs, under the requirement's names."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from waltzrl.foundation.counters import Histogram, LabeledCounter
from waltzrl.store.memory.schemas import ROUTE
from waltzrl_routing.runner import EndedTask


class TaskMetrics:
    """Counts tasks; a collector for prometheus-client.

    Example:
        metrics = TaskMetrics()
        prometheus_client.REGISTRY.register(metrics)
        executor.observers.append(metrics.add)
    """

    def __init__(self) -> None:
        self._tasks = LabeledCounter("waltzrl_tasks_total")
        self._rounds = Histogram("waltzrl_coaching_rounds")
        self._generation = Histogram("waltzrl_conversation_generation_time_ms")
        self._evaluation = Histogram("waltzrl_feedback_evaluation_time_ms")

    def add(self, ended: EndedTask) -> None:
        """Count a task that has ended; rounds and times of those that were run or reviewed."""
        result = ended.result
        self._tasks.add(result.agent_id, result.state)
        if result.ran:
            self._generation.add(result.generation_ms, result.agent_id)
        if ended.collaboration is not None:
            self._rounds.add(result.rounds, ROUTE, "")
            self._evaluation.add(result.evaluation_ms, result.agent_id)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as prometheus-client asks for them."""
        for metric in (self._tasks, self._rounds, self._generation, self._evaluation):
            yield metric.family()
