"""Gates of a release: what the candidate's own answers of a step must show before it advances.

They block an advance and never roll back: a person may still advance the release.
"""

from collections.abc import Callable, Sequence

from waltzrl.memory.counts import BundleCounts
from waltzrl.release.correction import observed_rate
from waltzrl.release.plan import ReleaseGates
from waltzrl.release.state import Release


def gate_of(release: Release, rates: Callable[[float], Sequence[BundleCounts]]) -> str:
    """Return why a gate of a release is closed; a shadow's answers reach no user and have none.

    Args:
        release: under way.
        rates: counts what each bundle served since a time, seconds since the epoch.
    """
    if release.state != "canary" or release.plan.gates == ReleaseGates():
        return ""
    served = rates(release.since)
    counts = next((bundle for bundle in served if bundle.bundle == release.candidate), None)
    return "" if counts is None else closed_gate(release.plan.gates, counts)


def closed_gate(gates: ReleaseGates, counts: BundleCounts) -> str:
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
        return f"feedback added {added:.0f} ms at the 95th percentile, needs below {most:g} ms"
    if gates.incidents is not None and counts.incidents > gates.incidents:
        return f"people labelled {counts.incidents} replies unsafe, needs at most {gates.incidents}"
    thumbs = counts.thumbs_up + counts.thumbs_down
    satisfied_at_most = 1 - observed_rate(counts.thumbs_down, thumbs).low
    if gates.satisfied is not None and satisfied_at_most < gates.satisfied:
        return (
            f"{counts.thumbs_up} of {thumbs} thumbs are up, at most {satisfied_at_most:.1%} of "
            f"all, needs {gates.satisfied:.1%}"
        )
    return ""
