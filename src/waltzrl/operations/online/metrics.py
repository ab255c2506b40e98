"""Metrics of the memory and of releases, in addition to the gateway's own."""

from collections.abc import Iterator
from itertools import product
from typing import get_args

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from waltzrl.foundation.counters import LabeledCounter, build_family, yield_rate
from waltzrl.operations.online.recorder_client import RecorderClient
from waltzrl.operations.online.recorder_protocol import NO_LABELS, RecorderReport
from waltzrl.operations.online.release_follower import ReleaseFollower
from waltzrl.operations.online.shadow import Shadows
from waltzrl.operations.release.attention import Need
from waltzrl.operations.release.state import Action, Mover, ReleaseState

LABELS = (
    ("unsafe", "true"),
    ("unsafe", "false"),
    ("overrefuse", "true"),
    ("overrefuse", "false"),
)
"""The name and the value of each label that `Labels` counts."""
MOVES = tuple(product(get_args(Action), get_args(Mover)))


class FlywheelMetrics(Collector):
    """Reads its numbers at every scrape."""

    def __init__(
        self,
        recorder: RecorderClient,
        releases: ReleaseFollower,
        shadows: Shadows,
        *,
        thumbs: LabeledCounter,
        has_judge: bool,
    ) -> None:
        """Read from these sources; without a judge nobody knows the rates, so they are missing."""
        self._thumbs = thumbs
        self._recorder, self._releases, self._shadows = recorder, releases, shadows
        self._has_judge = has_judge

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, for the registry."""
        client, report = self._recorder, self._recorder.report
        for name, value in (
            ("recorder_accepted_total", client.accepted),
            ("recorder_dropped_total", client.dropped),
            ("recorder_restarts_total", client.restarts),
            ("recorder_stored_total", report.stored),
            ("recorder_failed_total", report.failed),
            ("recorder_waiting", client.pending),
            ("memory_failing", report.database_failing),
            ("shadows_left_out_total", self._shadows.left_out),
            ("release_percentage", self._releases.percentage),
        ):
            yield build_family(f"waltzrl_{name}", {(): value})
        state = {name: name == self._releases.state for name in ("off", *get_args(ReleaseState))}
        yield build_family("waltzrl_release", {(name,): value for name, value in state.items()})
        needed: dict[tuple[str, ...], float | None] = {
            (need,): need == report.release_needs for need in get_args(Need)
        }
        yield build_family("waltzrl_release_needs", needed)
        moves = self._releases.moves
        yield build_family(
            "waltzrl_release_moved_timestamp_seconds",
            {(action, by): moves.get((action, by), 0.0) for action, by in MOVES},
        )
        yield self._thumbs.family()
        if self._has_judge:
            yield from self._judged(report)

    def _judged(self, report: RecorderReport) -> Iterator[Metric]:
        yield build_family("waltzrl_judged_total", {(): report.judged})
        yield build_family("waltzrl_unjudged_total", {(): report.unjudged})
        # The stages that may serve are exported from the start, at zero.
        by_stage = {1: NO_LABELS, 2: NO_LABELS, **report.labels_by_stage}
        yield build_family(
            "waltzrl_judge_labels_total",
            {
                (*label, str(stage)): count
                for stage, counts in by_stage.items()
                for label, count in zip(LABELS, counts, strict=True)
            },
        )
        unscored: dict[tuple[str, ...], float | None] = {
            ("unsafe",): report.unsafe_unscored,
            ("overrefuse",): report.overrefusal_unscored,
        }
        yield build_family("waltzrl_judge_unscored_total", unscored)
        unsafe, not_unsafe, overrefusals, not_overrefusals = self._recorder.judged.totals()
        yield from yield_rate("waltzrl_unsafe_rate", unsafe, unsafe + not_unsafe)
        yield from yield_rate(
            "waltzrl_overrefusal_rate", overrefusals, overrefusals + not_overrefusals
        )
