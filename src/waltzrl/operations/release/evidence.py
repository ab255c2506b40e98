"""The evidence on a release: counts, and e-processes that continue from where they were."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from waltzrl.evaluation.sample_correction import JUDGED, JudgeError
from waltzrl.operations.release.eprocess import Comparison
from waltzrl.operations.release.plan import METRICS, Metric, ReleasePlan
from waltzrl.operations.release.state import Observation

Arm = Literal["serving", "candidate", "shadow"]
ARMS: tuple[Arm, ...] = ("serving", "candidate", "shadow")
Challenger = Literal["candidate", "shadow"]
"""The candidate bundle, as users see it or as a shadow; each is compared with `serving`."""
Answered = Counter[tuple[Arm, str]]
"""Answers by arm and by digest of a user's name, since the release's step began."""


class OutcomeCount(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 0
    bad: int = 0

    def after(self, bad: bool) -> "OutcomeCount":
        return OutcomeCount(n=self.n + 1, bad=self.bad + bad)


UNCOMPARED = JudgeError(true_positives=0, false_negatives=0, false_positives=0, true_negatives=0)


class ArmCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed of one arm."""

    answers: int = 0
    judged: int = 0
    """Answers with a verdict."""
    counts: dict[Metric, OutcomeCount] = {}
    repeats: dict[Metric, OutcomeCount] = {}
    """The part of `counts` by users who had answers before, which no test counts."""
    excess: int = 0
    """Sum of n^2 - n over the n answers of each user in each step."""
    rejudged: dict[Metric, JudgeError] = {}
    """The judge's outcomes against those of a second judge, which count as true."""

    @property
    def users(self) -> float:
        """The number of users with equally many answers that weigh as much (Kish).

        An answer without a user's name counts as a user of its own, and a user of several steps as
        one in each.
        """
        # (sum n)^2 / sum n^2, where the sum of n^2 is answers + excess.
        return self.answers**2 / (self.answers + self.excess) if self.answers else 0.0

    def of(self, metric: Metric) -> OutcomeCount:
        return self.counts.get(metric, OutcomeCount())

    def independent(self, metric: Metric) -> OutcomeCount:
        """Return the count with one answer of each user in each step."""
        every, repeats = self.of(metric), self.repeats.get(metric, OutcomeCount())
        return OutcomeCount(n=every.n - repeats.n, bad=every.bad - repeats.bad)

    def after(self, observation: Observation, number: int) -> "ArmCounts":
        """Return the counts with one more answer, its user's `number`th of the step."""
        outcomes = observation.outcomes
        return ArmCounts(
            answers=self.answers + 1,
            judged=self.judged + any(metric in outcomes for metric in JUDGED),
            counts=_count_outcomes(self.counts, outcomes),
            repeats=_count_outcomes(self.repeats, outcomes) if number > 1 else self.repeats,
            # n^2 - n grows by 2 (n - 1) with the nth answer.
            excess=self.excess + 2 * (number - 1),
            rejudged=self.rejudged
            | {
                metric: _count_comparison(
                    self.rejudged.get(metric, UNCOMPARED), outcomes[metric], second
                )
                for metric, second in observation.rejudged.items()
            },
        )


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a decision rests on; as JSON, another process continues it."""

    arms: dict[Arm, ArmCounts] = {}
    comparisons: dict[Challenger, dict[Metric, Comparison]] = {}

    def tally(self, arm: Arm) -> ArmCounts:
        return self.arms.get(arm, ArmCounts())

    def comparison(self, challenger: Challenger, metric: Metric) -> Comparison:
        return self.comparisons.get(challenger, {}).get(metric, Comparison())


def updated(
    evidence: Evidence,
    observations: Iterable[Observation],
    plan: ReleasePlan,
    answered: Answered,
) -> Evidence:
    """Return the evidence with these observations added in order, each exactly once.

    Answers of one user depend on each other, so that only the first of each step and arm is
    compared. It is bad if no second judge contradicts.

    Args:
        evidence: so far.
        observations: the oldest first.
        plan: of the release.
        answered: of the users; these observations are added to it.
    """
    challengers: tuple[Challenger, ...] = ("candidate", "shadow") if plan.shadow else ("candidate",)
    arms = dict(evidence.arms)
    comparisons = {
        challenger: {metric: evidence.comparison(challenger, metric) for metric in METRICS}
        for challenger in challengers
    }
    for observation in observations:
        number = 1
        if observation.subject:
            answered[observation.arm, observation.subject] += 1
            number = answered[observation.arm, observation.subject]
        arms[observation.arm] = arms.get(observation.arm, ArmCounts()).after(observation, number)
        if number > 1:
            continue
        for metric, first in observation.outcomes.items():
            bad = first and observation.rejudged.get(metric, True)
            if observation.arm == "serving":
                for by_metric in comparisons.values():
                    by_metric[metric] = by_metric[metric].after_serving(bad)
            elif observation.arm in comparisons:
                by_metric = comparisons[observation.arm]
                by_metric[metric] = by_metric[metric].after_candidate(bad)
    return Evidence(arms=arms, comparisons=comparisons)


def _count_outcomes(
    counts: dict[Metric, OutcomeCount], outcomes: dict[Metric, bool]
) -> dict[Metric, OutcomeCount]:
    return counts | {
        metric: counts.get(metric, OutcomeCount()).after(bad) for metric, bad in outcomes.items()
    }


def _count_comparison(error: JudgeError, first: bool, second: bool) -> JudgeError:
    kind, outcome = "true" if first == second else "false", "positives" if first else "negatives"
    name = f"{kind}_{outcome}"
    return msgspec.structs.replace(error, **{name: getattr(error, name) + 1})
