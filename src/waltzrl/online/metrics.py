"""What operators watch of the memory and of releases, beside the gateway's own metrics."""

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from waltzrl.online.recorder_client import RecorderStatus
from waltzrl.online.release_follower import ReleaseFollower
from waltzrl.online.shadow import Shadows
from waltzrl.release.state import ReleaseState


class FlywheelMetrics(Collector):
    """Reads its numbers at every scrape."""

    def __init__(
        self, remembering: Callable[[], RecorderStatus], releases: ReleaseFollower, shadows: Shadows
    ) -> None:
        """Read from these."""
        self._remembering, self._releases, self._shadows = remembering, releases, shadows

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, for the registry."""
        now = self._remembering()
        recorder = now.recorder
        for name, what, count in (
            ("remember_told", "Interactions that were taken to be remembered.", now.told),
            ("remember_dropped", "Interactions that found no room, and are lost.", now.dropped),
            ("scribe_restarts", "Recorders that died and were started again.", now.restarts),
            ("remember_stored", "Interactions that are in the memory.", recorder.stored),
            ("remember_failed", "Interactions that the memory cannot keep.", recorder.failed),
            ("judged", "Answers that the online judge judged.", recorder.judged),
            ("unjudged", "Answers of its sample that it could not judge.", recorder.unjudged),
            (
                "shadows_left_out",
                "Shadow answers not given for their cost.",
                self._shadows.left_out,
            ),
        ):
            yield CounterMetricFamily(f"waltzrl_{name}", what, value=count)
        for name, what, value in (
            ("remember_waiting", "Interactions that wait to be remembered.", now.kept),
            ("memory_failing", "1 while the database does not answer.", recorder.database_failing),
            ("release_percentage", "Share that has the candidate.", self._releases.percentage),
        ):
            yield GaugeMetricFamily(f"waltzrl_{name}", what, value=value)
        state = GaugeMetricFamily(
            "waltzrl_release", "1 for the state of the release under way.", labels=["state"]
        )
        for name in ("off", *get_args(ReleaseState)):
            state.add_metric([name], name == self._releases.state)
        yield state
