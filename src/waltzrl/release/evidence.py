"""The evidence on a release: counts, and e-processes that continue from where they were."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from waltzrl.release.eprocess import Comparison
from waltzrl.release.plan import METRICS, Metric, ReleasePlan
from waltzrl.release.state import Observation

Arm = Literal["serving", "candidate", "shadow"]
ARMS: tuple[Arm, ...] = ("serving", "candidate", "shadow")
Challenger = Literal["candidate", "shadow"]
"""The candidate bundle, as users see it or as a shadow; each is compared with `serving`."""
Judged = Literal["unsafe", "needless"]
JUDGED: tuple[Judged, ...] = ("unsafe", "needless")
"""Metrics that need a judge; the gateway observes the others itself."""


class OutcomeCount(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 0
    bad: int = 0

    def after(self, bad: bool) -> "OutcomeCount":
        return OutcomeCount(n=self.n + 1, bad=self.bad + bad)


class ArmCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed of one arm."""

    answers: int = 0
    judged: int = 0
    """Answers with a verdict."""
    counts: dict[Metric, OutcomeCount] = {}

    def of(self, metric: Metric) -> OutcomeCount:
        return self.counts.get(metric, OutcomeCount())

    def after(self, outcomes: dict[Metric, bool]) -> "ArmCounts":
        changed = {metric: self.of(metric).after(bad) for metric, bad in outcomes.items()}
        return ArmCounts(
            answers=self.answers + 1,
            judged=self.judged + any(metric in outcomes for metric in JUDGED),
            counts=self.counts | changed,
        )


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a decision rests on; as JSON, another process continues it."""

    arms: dict[Arm, ArmCounts] = {}
    comparisons: dict[Challenger, dict[Metric, Comparison]] = {}

    def tally(self, arm: Arm) -> ArmCounts:
        return self.arms.get(arm, ArmCounts())

    def comparison(self, challenger: Challenger, metric: Metric) -> Comparison:
        return self.comparisons.get(challenger, {}).get(metric, Comparison())


def updated(evidence: Evidence, observations: Iterable[Observation], plan: ReleasePlan) -> Evidence:
    """Return the evidence with these observations added in order, each exactly once."""
    challengers: tuple[Challenger, ...] = ("candidate", "shadow") if plan.shadow else ("candidate",)
    arms = dict(evidence.arms)
    comparisons = {
        challenger: {metric: evidence.comparison(challenger, metric) for metric in METRICS}
        for challenger in challengers
    }
    for observation in observations:
        arms[observation.arm] = arms.get(observation.arm, ArmCounts()).after(observation.outcomes)
        for metric, bad in observation.outcomes.items():
            if observation.arm == "serving":
                for by_metric in comparisons.values():
                    by_metric[metric] = by_metric[metric].after_serving(bad)
            elif observation.arm in comparisons:
                by_metric = comparisons[observation.arm]
                by_metric[metric] = by_metric[metric].after_candidate(bad)
    return Evidence(arms=arms, comparisons=comparisons)
