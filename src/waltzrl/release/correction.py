"""The true rate behind a judge's labels, given how often the judge errs.

Rogan, Gladen (1978): Estimating prevalence from the results of a screening test. American Journal
of Epidemiology 107. Of a true rate p the judge calls q = p sensitivity + (1 - p) false_alarms bad,
hence p = (q - false_alarms) / (sensitivity - false_alarms).

Answers on which people differ have an unknown truth; the bounds of the judge's two rates hold
whichever way each dispute is settled.

All bounds hold jointly and at all times with the stated confidence: each of the three numbers
behind a corrected rate gets a third of the error, and the worst corner of the box counts.
"""

import msgspec

from waltzrl.release.confidence import ConfidenceInterval, interval

FEWEST_LABELS = 10
"""Of bad answers, and of good ones, that people must have labelled before rates are corrected."""
DOUBT = 0.05
"""Chance that an interval is ever wrong."""


class JudgeError(msgspec.Struct, frozen=True, kw_only=True):
    """A judge's labels against people's, on the same answers; bad is positive."""

    true_positives: int
    false_negatives: int
    false_positives: int
    true_negatives: int
    disputed_positives: int = 0
    """Answers that the judge calls bad, and some people but not others."""
    disputed_negatives: int = 0
    """Answers that the judge calls good, and some people but not others."""

    @property
    def bad(self) -> int:
        """Answers that people call bad, without the disputed ones."""
        return self.true_positives + self.false_negatives

    @property
    def good(self) -> int:
        return self.false_positives + self.true_negatives

    @property
    def is_known(self) -> bool:
        """Whether there are enough labels to correct with."""
        return min(self.bad, self.good) >= FEWEST_LABELS

    @property
    def sensitivity(self) -> ConfidenceInterval:
        """Share of the bad answers that the judge calls bad."""
        wrong, right = self.disputed_negatives, self.disputed_positives
        most_missed = interval(self.false_negatives + wrong, self.bad + wrong, DOUBT / 3).high
        least_missed = interval(self.false_negatives, self.bad + right, DOUBT / 3).low
        return ConfidenceInterval(1 - most_missed, 1 - least_missed)

    @property
    def false_alarms(self) -> ConfidenceInterval:
        """Share of the good answers that the judge calls bad: 1 - specificity."""
        wrong, right = self.disputed_positives, self.disputed_negatives
        return ConfidenceInterval(
            interval(self.false_positives, self.good + right, DOUBT / 3).low,
            interval(self.false_positives + wrong, self.good + wrong, DOUBT / 3).high,
        )


class RateEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A share of bad outcomes, with a 95 % confidence interval that holds at all times."""

    n: int
    bad: int
    """Of the `n`, before any correction."""
    value: float | None
    """None when n is 0."""
    low: float
    high: float
    corrected: bool = False
    """Whether `value`, `low` and `high` are corrected for the judge's error."""


def observed_rate(bad: int, n: int) -> RateEstimate:
    """Return the rate of a metric that needs no judge, or whose judge counts as perfect."""
    bounds = interval(bad, n, DOUBT)
    return RateEstimate(
        n=n, bad=bad, value=bad / n if n else None, low=bounds.low, high=bounds.high
    )


def corrected_rate(bad: int, n: int, judge: JudgeError) -> RateEstimate:
    """Return the true rate behind a judge's labels; `judge.is_known` must hold."""
    observed = interval(bad, n, DOUBT / 3)
    hits, alarms = judge.sensitivity, judge.false_alarms
    low = _true_rate(observed.low, hits.high, alarms.high, useless=0.0)
    high = _true_rate(observed.high, hits.low, alarms.low, useless=1.0)
    value = None
    if n:
        sensitivity = judge.true_positives / judge.bad
        false_alarms = judge.false_positives / judge.good
        point = _true_rate(bad / n, sensitivity, false_alarms, useless=bad / n)
        value = min(max(point, low), high)
    return RateEstimate(n=n, bad=bad, value=value, low=low, high=high, corrected=True)


def observed_limit(limit: float, judge: JudgeError) -> float:
    """Return the most that the judge may call bad while the true rate is at most `limit`.

    A judge that may call more of the good answers bad than of the bad ones does so at a rate of 0.
    """
    alarms = judge.false_alarms.high
    return max(alarms, limit * judge.sensitivity.high + (1 - limit) * alarms)


def _true_rate(observed: float, sensitivity: float, false_alarms: float, useless: float) -> float:
    """Rogan and Gladen's; `useless` is the result when the labels of such a judge carry nothing."""
    if sensitivity <= false_alarms:
        return useless
    return min(max((observed - false_alarms) / (sensitivity - false_alarms), 0.0), 1.0)
