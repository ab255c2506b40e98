"""Metrics of the memory and of releases, in addition to the gateway's own."""

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
        self,
        recorder_status: Callable[[], RecorderStatus],
        releases: ReleaseFollower,
        shadows: Shadows,
    ) -> None:
        """Read from these sources."""
        self._recorder_status, self._releases, self._shadows = recorder_status, releases, shadows

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, for the registry."""
        status = self._recorder_status()
        recorder = status.recorder
        for name, description, count in (
            ("remember_told", "Exchanges accepted to be remembered.", status.accepted),
            ("remember_dropped", "Exchanges dropped for lack of room.", status.dropped),
            ("scribe_restarts", "Recorders that died and were replaced.", status.restarts),
            ("remember_stored", "Exchanges stored in the memory.", recorder.stored),
            ("remember_failed", "Exchanges that cannot be stored.", recorder.failed),
            ("judged", "Replies judged by the online judge.", recorder.judged),
            ("unjudged", "Sampled replies without a verdict.", recorder.unjudged),
            (
                "shadows_left_out",
                "Shadow answers skipped because of their cost.",
                self._shadows.left_out,
            ),
        ):
            yield CounterMetricFamily(f"waltzrl_{name}", description, value=count)
        for name, description, value in (
            ("remember_waiting", "Exchanges waiting to be stored.", status.pending),
            ("memory_failing", "1 while the database is unavailable.", recorder.database_failing),
            (
                "release_percentage",
                "Percentage that the candidate serves.",
                self._releases.percentage,
            ),
        ):
            yield GaugeMetricFamily(f"waltzrl_{name}", description, value=value)
        state = GaugeMetricFamily(
            "waltzrl_release", "1 for the state of the current release.", labels=["state"]
        )
        for name in ("off", *get_args(ReleaseState)):
            state.add_metric([name], name == self._releases.state)
        yield state
