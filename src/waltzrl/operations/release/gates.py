"""Gates of a release: what the candidate's own answers of a step must show before it advances.

They block an advance and never roll back: a person may still advance the release.
"""

import time
from collections.abc import Callable, Sequence

from waltzrl.evaluation.sample_correction import observed_rate
from waltzrl.operations.release.plan import ReleaseGates
from waltzrl.operations.release.state import Release
from waltzrl.store.memory.counts import BundleCounts

GATE_SECONDS = 30.0
"""The time for which a gate's answer is taken again: to count reads every answer of the step."""

Rates = Callable[[float], Sequence[BundleCounts]]
"""Counts what each bundle served since a time, seconds since the epoch."""


class GateReader:
    """Asks the gate of the release under way, at most every `GATE_SECONDS` in one step."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._asked: tuple[str, int] | None = None
        """Id and version of the release."""
        self._until, self._why = 0.0, ""

    def __call__(self, release: Release) -> str:
        """Return why its gate is closed; empty when it is open."""
        now, asked = time.monotonic(), (release.id, release.version)
        if asked != self._asked or now >= self._until:
            self._why = gate_of(release, self._rates)
            self._asked, self._until = asked, now + GATE_SECONDS
        return self._why


def gate_of(release: Release, rates: Rates) -> str:
    """Return why a gate of a release is closed; a shadow's answers reach no user and have none."""
    if release.state != "canary" or release.plan.gates == ReleaseGates():
        return ""
    served = rates(release.since)
    counts = next((bundle for bundle in served if bundle.bundle == release.candidate), None)
    if counts is None:
        return "the candidate has answered nothing in this step"
    return find_closed_gate(release.plan.gates, counts)


def find_closed_gate(gates: ReleaseGates, counts: BundleCounts) -> str:
    """Return why a gate is closed; empty when all are open.

    Args:
        gates: of the plan.
        counts: of the candidate since its step began.
    """
    changed = (counts.revised + counts.refused) / max(counts.answers, 1)
    if gates.changed is not None and changed >= gates.changed:
        return f"feedback changed {changed:.1%} of the answers, needs below {gates.changed:.1%}"
    added, most = counts.added_p95, gates.added_milliseconds
    if most is not None and added is not None and added >= most:
        return (
            f"the gateway itself took {added:.0f} ms at the 95th percentile, without the model's "
            f"draft and revisions; needs below {most:g} ms"
        )
    if gates.incidents is not None and counts.incidents > gates.incidents:
        return (
            f"{counts.incidents} of the replies were labelled unsafe by people, needs at most "
            f"{gates.incidents}"
        )
    thumbs = counts.thumbs_up + counts.thumbs_down
    satisfied_at_most = 1 - observed_rate(counts.thumbs_down, thumbs).low
    if gates.satisfied is not None and satisfied_at_most < gates.satisfied:
        return (
            f"{counts.thumbs_up} of {thumbs} thumbs are up, at most {satisfied_at_most:.1%} of "
            f"all, needs {gates.satisfied:.1%}"
        )
    return ""
