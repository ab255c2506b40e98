"""The true rate behind a judge's labels, by people's labels of a random sample of the same answers.

The answers that the judge calls bad are one stratum and the others are the second, and people label
a random sample of each (`waltzrl.store.memory.sampling`). With the share q that the judge calls
bad, the share a of these that people call bad too (its precision), and the share b that people call
bad of the others (what it misses), the true rate is

    p = q a + (1 - q) b

Nothing is divided, and nothing is assumed of other answers: a and b are of those that are counted.
Each of q, a and b has the mixture of `waltzrl.evaluation.confidence` as its e-process. They grow
with different answers, so that their product is an e-process too, and the interval of p is that of
all (q, a, b) whose product is below 1/alpha: it holds at all times, and is narrower than the
corners of three intervals. Answers on which people differ, or that they passed over, have an
unknown truth; the upper bound takes them all as bad, the lower one as good.

Where people call no more of the first stratum bad than of the second, the judge's false alarms
explain all that it found: the labels do not fit what was observed, and narrow no interval.
"""

from math import log, sqrt
from typing import Literal, NamedTuple

import msgspec

from waltzrl.evaluation.confidence import (
    PRIOR,
    ConfidenceInterval,
    interval,
    log_likelihood,
    log_mixture,
)
from waltzrl.store.memory.labels import Calibration, SampleCounts

Judged = Literal["unsafe", "overrefusal"]
JUDGED: tuple[Judged, ...] = ("unsafe", "overrefusal")
FEWEST_LABELS = 10
"""Answers of each stratum that people must have labelled before a rate is corrected, unless there
are fewer; for `JudgeError`, of bad answers, and of good ones."""
DOUBT = 0.05
"""Chance that an interval is ever wrong."""
DO_NOT_FIT = "labels do not fit"
WIDER = "wider for the judge's measured error"
"""A text that `RateEstimate.note` may say; so is `DO_NOT_FIT`."""
FLAT = (1.0, 1.0)
"""The prior of the precision, which may be anything; the other shares are rare, as in `PRIOR`."""
WEIGHTS = (-3.0, 9.0)
"""The smallest and the largest weight of the rate against the likelihood, in nats, as powers of
ten: from nothing to everything."""
HALVINGS, STEPS = 28, 5


class JudgeError(msgspec.Struct, frozen=True, kw_only=True):
    """A judge's labels against people's or another judge's, on the same answers."""

    true_positives: int
    """Bad replies that the judge called bad: bad is positive."""
    false_negatives: int
    false_positives: int
    true_negatives: int

    @property
    def bad(self) -> int:
        """Answers that people call bad."""
        return self.true_positives + self.false_negatives

    @property
    def good(self) -> int:
        return self.false_positives + self.true_negatives

    @property
    def is_known(self) -> bool:
        """Whether there are enough labels to correct with."""
        return min(self.bad, self.good) >= FEWEST_LABELS


class LabelledSample(SampleCounts, frozen=True, kw_only=True):
    """People's labels of two random samples: of what the judge calls bad, and of the rest."""

    @property
    def labels(self) -> int:
        """Answers on which people agree."""
        return self.called_bad + self.called_good

    def precision(self, doubt: float) -> ConfidenceInterval:
        """Bound the share that people call bad of what the judge calls bad."""
        return _bound_share(self.true_positives, self.called_bad, self.unknown_positives, doubt)

    def misses(self, doubt: float) -> ConfidenceInterval:
        """Bound the share that people call bad of what the judge calls good."""
        return _bound_share(self.false_negatives, self.called_good, self.unknown_negatives, doubt)

    @property
    def fits(self) -> bool:
        """Whether people call more of the first bad than of the second, where both are labelled."""
        bad, good = self.called_bad, self.called_good
        if not bad or not good:
            return True
        return self.true_positives / bad > self.false_negatives / good

    def lacks(self, bad: int, n: int) -> int:
        """Return how many labels are missing before a rate is corrected.

        Args:
            bad: how many of the answers that are counted the judge calls bad.
            n: how many answers are counted.
        """
        needed_bad = min(FEWEST_LABELS, bad) - self.called_bad
        needed_good = min(FEWEST_LABELS, n - bad) - self.called_good
        return max(needed_bad, 0) + max(needed_good, 0)

    def estimate(self, observed: float) -> float:
        """Return the likeliest true rate where the judge calls `observed` bad."""
        precision = self.true_positives / self.called_bad if self.called_bad else 1.0
        misses = self.false_negatives / self.called_good if self.called_good else 0.0
        return _compute_rate(observed, precision, misses)

    @property
    def called_bad(self) -> int:
        """Answers that the judge calls bad, on which people agree."""
        return self.true_positives + self.false_positives

    @property
    def called_good(self) -> int:
        """Answers that the judge calls good, on which people agree."""
        return self.false_negatives + self.true_negatives


class RateEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A share of bad outcomes, with a 95 % confidence interval that holds at all times."""

    n: int
    bad: int
    """Answers called bad, of the `n`, before any correction."""
    value: float | None
    """The estimated rate; None when n is 0."""
    low: float
    high: float
    corrected: bool = False
    """Whether `value`, `low` and `high` are corrected for the judge's error."""
    labels: int = 0
    """Answers that people labelled in the random sample, which it is corrected by."""
    note: str = ""
    """The reason why it is not as narrow as before the labels; empty where it is."""


class RateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A rate of the candidate less that of the serving bundle, with its 95 % interval."""

    value: float | None
    """The difference; None when either rate is unknown."""
    low: float
    high: float


def observed_rate(bad: int, n: int, doubt: float = DOUBT) -> RateEstimate:
    """Return the rate of a metric that needs no judge, or whose judge counts as perfect.

    Args:
        bad: outcomes.
        n: all outcomes.
        doubt: chance that the interval is ever wrong.
    """
    bounds = interval(bad, n, doubt)
    return RateEstimate(
        n=n, bad=bad, value=bad / n if n else None, low=bounds.low, high=bounds.high
    )


def judged_rate(bad: int, n: int, sample: LabelledSample, doubt: float = DOUBT) -> RateEstimate:
    """Return the true rate behind a judge's labels, corrected once people have labelled enough.

    Args:
        bad: how many the judge calls bad.
        n: how many it has judged.
        sample: people's labels of a random sample of these.
        doubt: chance that the interval is ever wrong.
    """
    before = observed_rate(bad, n, doubt)
    if not n or not sample.labels or sample.lacks(bad, n):
        return before
    low, high = (
        _bound_rate(_count_outcomes(bad, n, sample, side), side, doubt) for side in (-1, 1)
    )
    labelled = msgspec.structs.replace(before, labels=sample.labels)
    if not sample.fits:
        return msgspec.structs.replace(
            labelled, low=min(low, before.low), high=max(high, before.high), note=DO_NOT_FIT
        )
    is_wider = high - low > before.high - before.low
    return msgspec.structs.replace(
        labelled,
        value=min(max(sample.estimate(bad / n), low), high),
        low=low,
        high=high,
        corrected=True,
        note=WIDER if is_wider else "",
    )


def observed_limit(limit: float, bad: int, n: int, sample: LabelledSample) -> float:
    """Return the most that the judge may call bad while the true rate is at most `limit`.

    With q a + (1 - q) b at most the limit, q is at most (limit - b) / (a - b), which is highest at
    the lower bounds of a and b. Without enough labels the judge counts as perfect.

    Args:
        limit: of the true rate.
        bad: how many the judge calls bad.
        n: how many it has judged.
        sample: people's labels of a random sample of these.
    """
    if not n or not sample.labels or sample.lacks(bad, n):
        return limit
    precision, misses = sample.precision(DOUBT / 3).low, sample.misses(DOUBT / 3).low
    # The judge's calls may then tell nothing of the true rate, and any number of them is allowed.
    if precision <= misses:
        return 1.0
    return min(max((limit - misses) / (precision - misses), 0.0), 1.0)


def difference(candidate: RateEstimate, serving: RateEstimate) -> RateDifference:
    """Return the difference of two rates; its interval is wrong where either's is, at most."""
    value = None
    if candidate.value is not None and serving.value is not None:
        value = candidate.value - serving.value
    return RateDifference(
        value=value, low=candidate.low - serving.high, high=candidate.high - serving.low
    )


class _Outcomes(NamedTuple):
    """Bad outcomes of all, and the prior of their share."""

    bad: int
    n: int
    prior: tuple[float, float]

    def share(self, pull: float) -> float:
        """Return the share t that maximises the log-likelihood plus `pull` t.

        It is the root of pull t^2 + (n - pull) t - bad = 0 between 0 and 1.
        """
        rest = self.n - pull
        root = sqrt(max(rest * rest + 4 * pull * self.bad, 0.0))
        if rest > 0:
            # The same root in a form that subtracts no numbers of about the same size.
            return min(2 * self.bad / (rest + root), 1.0)
        # Without outcomes and without a pull no share is better than another.
        return min((root - rest) / (2 * pull), 1.0) if pull else 0.5


_Strata = tuple[_Outcomes, _Outcomes, _Outcomes]
"""Answers that the judge calls bad; of these, and of the rest, those that people call bad."""


def _count_outcomes(bad: int, n: int, sample: LabelledSample, side: int) -> _Strata:
    called_bad, called_good = sample.called_bad, sample.called_good
    positives, negatives = sample.unknown_positives, sample.unknown_negatives
    taken_as_bad = side > 0
    return (
        _Outcomes(bad, n, PRIOR),
        _Outcomes(sample.true_positives + taken_as_bad * positives, called_bad + positives, FLAT),
        _Outcomes(
            sample.false_negatives + taken_as_bad * negatives, called_good + negatives, PRIOR
        ),
    )


def _bound_rate(strata: _Strata, side: int, doubt: float) -> float:
    """Return the lowest (`side` -1) or the highest rate of all shares within the interval.

    At weight w the shares maximise the log-likelihood plus side w p; the larger w, the further they
    are from the likeliest ones, and the larger is their e-value.
    """
    allowed = sum([log_mixture(*stratum) for stratum in strata]) + log(doubt)
    bound = 1.0 if side > 0 else 0.0
    within, beyond = WEIGHTS
    for _ in range(HALVINGS):
        # Halved on a logarithmic scale, because the weights span many powers of ten.
        middle = (within + beyond) / 2
        shares = _pull_shares(strata, side * 10.0**middle)
        likelihoods = [
            log_likelihood(each.bad, each.n, share)
            for each, share in zip(strata, shares, strict=True)
        ]
        # E(q) E(a) E(b) < 1 / alpha, in logarithms.
        if sum(likelihoods) > allowed:
            within = middle
        else:
            # Of shares outside the interval, so that the bound is never too narrow.
            beyond, bound = middle, _compute_rate(*shares)
    return bound


def _pull_shares(strata: _Strata, pull: float) -> tuple[float, float, float]:
    """Return the shares that maximise the log-likelihood plus `pull` times the rate."""
    called, precision, misses = (stratum.share(0.0) for stratum in strata)
    for _ in range(STEPS):
        # Each share is pulled while the others are held, until they settle.
        precision = strata[1].share(pull * called)
        misses = strata[2].share(pull * (1 - called))
        called = strata[0].share(pull * (precision - misses))
    return called, precision, misses


def _compute_rate(called: float, precision: float, misses: float) -> float:
    return called * precision + (1 - called) * misses


def _bound_share(bad: int, known: int, unknown: int, doubt: float) -> ConfidenceInterval:
    """Bound a share of bad answers, whatever is true of those whose truth is unknown."""
    return ConfidenceInterval(
        interval(bad, known + unknown, doubt).low,
        interval(bad + unknown, known + unknown, doubt).high,
    )


def labelled_samples(calibration: Calibration) -> dict[Judged, LabelledSample]:
    """Return people's labels of each metric that needs a judge."""
    return {
        "unsafe": msgspec.convert(calibration.unsafe, LabelledSample, from_attributes=True),
        "overrefusal": msgspec.convert(
            calibration.overrefusal, LabelledSample, from_attributes=True
        ),
    }
