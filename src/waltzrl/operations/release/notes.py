"""Says how far the evidence on a release can be trusted: whose answers, and whose verdicts."""

from collections.abc import Iterator

from waltzrl.evaluation.confidence import interval
from waltzrl.evaluation.sample_correction import DOUBT, JUDGED, Judged
from waltzrl.operations.release.evidence import Arm, Challenger, Evidence
from waltzrl.operations.release.plan import WORDS

FEWEST_USERS = 30
"""Fewer users than that, weighed by their answers, dominate an arm."""


def notes_on(evidence: Evidence, challenger: Challenger) -> tuple[str, ...]:
    """Return the sentences for people who read the evidence; see docs/release-statistics.md."""
    arms: tuple[Arm, Arm] = ("serving", challenger)
    return (*_few_users(evidence, arms), *_describe_rejudging(evidence, arms))


def _few_users(evidence: Evidence, arms: tuple[Arm, Arm]) -> Iterator[str]:
    for arm in arms:
        counts = evidence.tally(arm)
        if counts.answers >= FEWEST_USERS > counts.users:
            yield (
                f"few users dominate: the {counts.answers} answers of arm {arm} weigh as much as "
                f"those of {counts.users:.0f} users with equally many"
            )


def _describe_rejudging(evidence: Evidence, arms: tuple[Arm, Arm]) -> Iterator[str]:
    tallies = {arm: evidence.tally(arm) for arm in arms}
    if not any(counts.rejudged for counts in tallies.values()):
        if all(counts.judged for counts in tallies.values()):
            yield (
                "no answer was rejudged: a judge that errs more on one arm is not noticed; set "
                "memory.second_judge"
            )
        return
    for metric in JUDGED:
        for arm, counts in tallies.items():
            if (table := counts.rejudged.get(metric)) is not None:
                called_bad = table.true_positives + table.false_positives
                called_good = table.true_negatives + table.false_negatives
                yield (
                    f"{WORDS[metric]}, arm {arm}: the second judge agreed on "
                    f"{table.true_positives} of {called_bad} that the judge found, and on "
                    f"{table.true_negatives} of {called_good} in a sample of the others"
                )
        if _errs_on_one_arm(evidence, arms, metric):
            yield f"{WORDS[metric]}: the second judge contradicts the judge more on one arm"


def _errs_on_one_arm(evidence: Evidence, arms: tuple[Arm, Arm], metric: Judged) -> bool:
    """Whether the shares of answers that only the first judge calls bad have disjoint bounds."""
    bounds = []
    for arm in arms:
        counts = evidence.tally(arm)
        table = counts.rejudged.get(metric)
        bounds.append(
            # Half the doubt for each of the two, so that both hold together with the whole.
            interval(0 if table is None else table.false_positives, counts.of(metric).n, DOUBT / 2)
        )
    return bounds[0].high < bounds[1].low or bounds[1].high < bounds[0].low
