"""Says what people must do for a release to go on, so that somebody is told of it."""

from typing import Literal

from waltzrl.evaluation.sample_correction import JUDGED, observed_rate
from waltzrl.operations.release.decision import Decision
from waltzrl.operations.release.state import Release

Need = Literal["advance", "resume", "label"]
"""A person must advance it, as its plan is not automatic; resume it, as it is held; or label
answers, as only the unknown error of the judge keeps it."""


def find_need(release: Release, decision: Decision) -> Need | None:
    """Return what a release waits for people to do; None while it needs nobody.

    Args:
        release: after the decision was followed.
        decision: the last one on it.
    """
    if not release.is_open:
        return None
    if release.held:
        return "resume"
    if decision.action == "advance" and not release.plan.automatic:
        return "advance"
    return "label" if _labels_would_help(release, decision) else None


def _labels_would_help(release: Release, decision: Decision) -> bool:
    """Whether a bound misses its target for the doubt of people's labels, and not without it."""
    rates = decision.rates["shadow" if release.state == "shadow" else "candidate"]
    for metric in JUDGED:
        rate, target = rates[metric], release.plan.targets.of(metric)
        if rate.labels and rate.high > target >= observed_rate(rate.bad, rate.n).high:
            return True
    return False
