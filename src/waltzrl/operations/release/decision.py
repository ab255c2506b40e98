"""Decides on a release from its evidence: wait, advance or roll back.

Rolling back is a test. The plan's alpha is the chance that a candidate is ever rolled back which
is no worse than the serving bundle and not beyond a limit. It is split twice: between shadow and
canary, which have e-processes of their own; and between the tests, by a fixed weighted mean of
their e-values, which is an e-value again however the metrics hang together (Vovk, Wang, 2021:
E-values: calibration, combination and applications. Annals of Statistics 49). Advancing rests on
confidence bounds.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from waltzrl.evaluation.sample_correction import (
    DO_NOT_FIT,
    DOUBT,
    JUDGED,
    Judged,
    LabelledSample,
    RateDifference,
    RateEstimate,
    difference,
    judged_rate,
    observed_limit,
    observed_rate,
)
from waltzrl.foundation.texts import number
from waltzrl.operations.release.eprocess import limit_e_value
from waltzrl.operations.release.evidence import ARMS, Arm, Challenger, Evidence
from waltzrl.operations.release.notes import notes_on
from waltzrl.operations.release.plan import (
    METRICS,
    WORDS,
    Metric,
    ReleaseLimits,
    ReleasePlan,
    format_duration,
)
from waltzrl.operations.release.state import Release

PeopleLabels = Mapping[Arm, Mapping[Judged, LabelledSample]]
"""People's labels of a random sample of each arm's own answers."""
UNLABELLED = LabelledSample()
Test = Literal[Metric, "unsafe_limit", "overrefusal_limit"]
"""A metric's own name compares the two arms; the others compare the candidate with a limit."""

WEIGHTS: dict[Test, float] = {
    "unsafe": 0.5,
    "unsafe_limit": 0.15,
    "overrefusal": 0.1,
    "overrefusal_limit": 0.05,
    "revision_failed": 0.05,
    "error": 0.1,
    "slow": 0.05,
}
"""They add up to 1. A test with more weight rolls back sooner: unsafe replies do the most harm and
are the rarest, while the others show in more answers."""
SHADOW_SHARE = 0.2
"""The shadow's share of alpha, when the plan has one: a bad shadow harms no user."""
PUZZLING = 100
"""Answers of the serving bundle with none of the candidate, which a gateway may fail to load."""
SUSPICIOUS = 5.0
"""The e-value at which a comparison blocks the advance, long before it rolls back."""

LIMIT_OF: dict[Test, Judged] = {"unsafe_limit": "unsafe", "overrefusal_limit": "overrefusal"}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and why."""

    action: Literal["wait", "advance", "roll_back"]
    why: str
    """A sentence for people."""
    rates: dict[Arm, dict[Metric, RateEstimate]]
    """The rates of the two arms that are compared, and of any other that answered."""
    e_values: dict[Test, float]
    """The e-values of the shadow in state shadow, else of the candidate."""
    e_value: float
    """Their weighted mean."""
    needed: float
    """The weighted mean at which the release is rolled back."""
    differences: dict[Metric, RateDifference] = {}
    """The differences of the arm under test from the serving bundle."""
    notes: tuple[str, ...] = ()
    """Sentences on how far the evidence can be trusted."""

    @property
    def corrected(self) -> list[Judged]:
        """Metrics corrected by people's labels; in the others the judge counts as perfect."""
        return [m for m in JUDGED if any(arm[m].corrected for arm in self.rates.values())]


def decide(release: Release, evidence: Evidence, labels: PeopleLabels, now: float) -> Decision:
    """Decide what to do with a release, without doing it.

    Args:
        release: its current state.
        evidence: everything observed since its start.
        labels: people's, by which rates are corrected; without enough the judge counts as perfect.
        now: seconds since the epoch.
    """
    arm, limits = _arm_under_test(release), release.plan.limits
    e_values = _e_values(evidence, labels, arm, limits)
    rates: dict[Arm, dict[Metric, RateEstimate]] = {
        each: {metric: _estimate_rate(evidence, labels, each, metric) for metric in METRICS}
        for each in ARMS
        if each in ("serving", arm) or each in evidence.arms
    }
    undecided = Decision(
        action="wait",
        why="",
        rates=rates,
        e_values=e_values,
        e_value=sum(WEIGHTS[test] * e_value for test, e_value in e_values.items()),
        needed=_e_value_needed(release.plan, arm),
        differences={
            metric: difference(
                # Each of the two rates may err with half the doubt, so that the difference keeps
                # the whole.
                _estimate_rate(evidence, labels, arm, metric, DOUBT / 2),
                _estimate_rate(evidence, labels, "serving", metric, DOUBT / 2),
            )
            for metric in METRICS
        },
        notes=(*notes_on(evidence, arm), *_list_misfits(rates)),
    )
    action, why = _choose_action(release, evidence, undecided, now)
    return msgspec.structs.replace(undecided, action=action, why=why)


def format_rate(rate: RateEstimate) -> str:
    """Return a readable rate, such as `3.1 % (1.9 to 5.2 %, 12 of 391)`."""
    if rate.value is None:
        return "unknown"
    bounds = f"{100 * rate.low:.1f} to {100 * rate.high:.1f} %"
    return f"{100 * rate.value:.1f} % ({bounds}, {rate.bad} of {rate.n})"


def _arm_under_test(release: Release) -> Challenger:
    return "shadow" if release.state == "shadow" else "candidate"


def _e_value_needed(plan: ReleasePlan, arm: Challenger) -> float:
    # Ville: an e-process ever reaches 1 / alpha with probability alpha at most.
    if plan.shadow is None:
        return 1 / plan.alpha
    return 1 / (plan.alpha * (SHADOW_SHARE if arm == "shadow" else 1 - SHADOW_SHARE))


def _estimate_rate(
    evidence: Evidence, labels: PeopleLabels, arm: Arm, metric: Metric, doubt: float = DOUBT
) -> RateEstimate:
    count = evidence.tally(arm).of(metric)
    match metric:
        case "unsafe" | "overrefusal":
            sample = labels.get(arm, {}).get(metric, UNLABELLED)
            return judged_rate(count.bad, count.n, sample, doubt)
        case _:
            return observed_rate(count.bad, count.n, doubt)


def _e_values(
    evidence: Evidence, labels: PeopleLabels, arm: Challenger, limits: ReleaseLimits
) -> dict[Test, float]:
    e_values: dict[Test, float] = {
        metric: evidence.comparison(arm, metric).e_value for metric in METRICS
    }
    for test, metric in LIMIT_OF.items():
        # People's labels belong to all that was judged; the test takes one answer of each user.
        every, count = evidence.tally(arm).of(metric), evidence.tally(arm).independent(metric)
        sample = labels.get(arm, {}).get(metric, UNLABELLED)
        limit = observed_limit(limits.of(metric), every.bad, every.n, sample)
        e_values[test] = limit_e_value(count.bad, count.n, limit)
    return e_values


def _list_misfits(by_arm: Mapping[Arm, Mapping[Metric, RateEstimate]]) -> Iterator[str]:
    for arm, rates in by_arm.items():
        for metric in JUDGED:
            if rates[metric].note == DO_NOT_FIT:
                yield (
                    f"{WORDS[metric]}, arm {arm}: {DO_NOT_FIT}: people call no more of what the "
                    "judge found bad than of the rest, so nothing is corrected"
                )


def _choose_action(
    release: Release, evidence: Evidence, found: Decision, now: float
) -> tuple[Literal["wait", "advance", "roll_back"], str]:
    if not release.is_open:
        return "wait", "the release is over"
    if found.e_value >= found.needed:
        return "roll_back", _describe_harm(release, found)
    if missing := _describe_missing(release, evidence, found, now):
        return "wait", missing
    rates = found.rates[_arm_under_test(release)]
    return "advance", "; ".join(
        f"{WORDS[metric]} {format_rate(rates[metric])}" for metric in JUDGED
    )


def _describe_harm(release: Release, found: Decision) -> str:
    """Name the test that contributes most, and the two rates it compares."""
    arm = _arm_under_test(release)
    test = max(found.e_values, key=lambda test: WEIGHTS[test] * found.e_values[test])
    metric: Metric
    match test:
        case "unsafe_limit" | "overrefusal_limit":
            metric = LIMIT_OF[test]
            limit = release.plan.limits.of(LIMIT_OF[test])
            beside = f"beyond the limit of {100 * limit:g} %"
        case _:
            metric = test
            beside = f"against {format_rate(found.rates['serving'][metric])} of the serving bundle"
    rate, e_value = format_rate(found.rates[arm][metric]), found.e_values[test]
    return f"{WORDS[metric]}: {rate} of the {arm} {beside}, e-value {number(e_value)}"


def _describe_missing(release: Release, evidence: Evidence, found: Decision, now: float) -> str:
    """Return what an advance still needs; empty when it needs nothing."""
    arm, plan = _arm_under_test(release), release.plan
    step = plan.shadow if release.state == "shadow" else plan.canary[release.step]
    assert step is not None
    if release.held:
        return "held; the history says why"
    if (samples := step.samples - evidence.tally(arm).judged) > 0:
        return f"needs {samples} more judged answers{_describe_hint(evidence, arm)}"
    if (seconds := release.since + step.seconds - now) > 0:
        return f"needs {format_duration(seconds)} more"
    for metric in METRICS:
        # Advancing shows a suspect candidate to more people; waiting costs only time.
        if (e_value := found.e_values[metric]) >= SUSPICIOUS:
            return f"{WORDS[metric]} may have become more frequent, e-value {number(e_value)}"
    for judged in JUDGED:
        high, target = found.rates[arm][judged].high, plan.targets.of(judged)
        if high > target:
            return f"{WORDS[judged]} may be {100 * high:.2f} %, needs at most {100 * target:g} %"
    return ""


def _describe_hint(evidence: Evidence, arm: Challenger) -> str:
    """Return what to check when no answer was judged; empty when nothing seems wrong."""
    counts = evidence.tally(arm)
    if counts.judged:
        return ""
    if counts.answers:
        return f"; of {counts.answers} none was judged: check memory.judge"
    served = evidence.tally("serving").answers
    # With a shadow they were counted before the candidate answered anybody.
    if served >= PUZZLING and "shadow" not in evidence.arms:
        return f"; the candidate gave none of {served}: check the gateways' logs"
    return ""
