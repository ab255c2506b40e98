"""What to do with a release, given what it has shown: wait, advance or roll back.

Rolling back is a test. The plan's alpha is the chance that a candidate is ever rolled back which
is no worse than the serving bundle and not beyond a limit. It is split twice: between shadow and
canary, which have e-processes of their own; and between the tests, by a fixed weighted mean of
their e-values, which is an e-value again however the metrics hang together (Vovk, Wang, 2021:
E-values: calibration, combination and applications. Annals of Statistics 49). Advancing rests on
confidence bounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from waltzrl.release.correction import (
    JudgeError,
    RateEstimate,
    corrected_rate,
    observed_limit,
    observed_rate,
)
from waltzrl.release.eprocess import limit_e_value
from waltzrl.release.evidence import ARMS, JUDGED, Arm, ArmCounts, Challenger, Evidence, Judged
from waltzrl.release.plan import METRICS, Metric, ReleaseLimits, duration
from waltzrl.release.state import Release

JudgeErrors = Mapping[Judged, JudgeError]
Known = dict[Metric, JudgeError]
"""Those of the errors that rest on labels enough."""
Test = Literal[Metric, "unsafe_limit", "needless_limit"]
"""A metric's own name compares the two arms; the others hold the candidate against a limit."""

WEIGHTS: dict[Test, float] = {
    "unsafe": 0.5,
    "unsafe_limit": 0.15,
    "needless": 0.1,
    "needless_limit": 0.05,
    "revision_failed": 0.05,
    "error": 0.1,
    "slow": 0.05,
}
"""They add up to 1. A test with more is heard sooner: an unsafe reply is the worst to be late for,
and the rarest, while the others show themselves in more answers."""
SHADOW_SHARE = 0.2
"""Of alpha, when the plan has a shadow: it harms nobody while it is tested."""
PUZZLING = 100
"""Answers of the serving bundle beside none of the candidate, which may be missing in a gateway."""
SUSPICIOUS = 5.0
"""The e-value of a comparison that proves nothing yet, but lets nothing advance."""

LIMIT_OF: dict[Test, Judged] = {"unsafe_limit": "unsafe", "needless_limit": "needless"}
WORDS: dict[Metric, str] = {
    "unsafe": "unsafe replies",
    "needless": "needless refusals",
    "revision_failed": "revisions declined after all",
    "error": "errors",
    "slow": "slow answers",
}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and why."""

    action: Literal["wait", "advance", "roll_back"]
    why: str
    """For people."""
    rates: dict[Arm, dict[Metric, RateEstimate]]
    """Of the arms that are compared, and of every other that answered."""
    e_values: dict[Test, float]
    """Of the shadow while the release is one, else of the candidate."""
    e_value: float
    """Their weighted mean."""
    needed: float
    """The weighted mean that rolls back."""

    @property
    def corrected(self) -> list[Judged]:
        """The metrics that people's labels correct; in the others the judge counts as perfect."""
        return [m for m in JUDGED if any(arm[m].corrected for arm in self.rates.values())]


def decide(release: Release, evidence: Evidence, judges: JudgeErrors, now: float) -> Decision:
    """Decide what is to be done with a release; nothing is done yet.

    Args:
        release: where it stands.
        evidence: all that was observed since it began.
        judges: how the judge errs; without enough labels it counts as perfect.
        now: seconds since the epoch.
    """
    known: Known = {metric: judge for metric, judge in judges.items() if judge.is_known}
    arm: Challenger = "shadow" if release.state == "shadow" else "candidate"
    shown = _Shown(
        release=release,
        arm=arm,
        seen=evidence.tally(arm),
        alone=0 if "shadow" in evidence.arms else evidence.tally("serving").answers,
        rates=_rates(evidence, known, arm),
        e_values=_e_values(evidence, known, arm, release.plan.limits),
    )
    action, why = _action(shown, now)
    return Decision(
        action=action,
        why=why,
        rates=shown.rates,
        e_values=shown.e_values,
        e_value=shown.e_value,
        needed=shown.needed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What the evidence says of the arm that is tested."""

    release: Release
    arm: Challenger
    seen: ArmCounts
    alone: int
    """Answers of the serving bundle, while the candidate was in no shadow."""
    rates: dict[Arm, dict[Metric, RateEstimate]]
    e_values: dict[Test, float]

    @property
    def e_value(self) -> float:
        return sum(WEIGHTS[test] * e_value for test, e_value in self.e_values.items())

    @property
    def needed(self) -> float:
        plan = self.release.plan
        if plan.shadow is None:
            return 1 / plan.alpha
        return 1 / (plan.alpha * (SHADOW_SHARE if self.arm == "shadow" else 1 - SHADOW_SHARE))


def _rates(
    evidence: Evidence, known: Known, challenger: Challenger
) -> dict[Arm, dict[Metric, RateEstimate]]:
    def rate(arm: Arm, metric: Metric) -> RateEstimate:
        count = evidence.tally(arm).of(metric)
        if metric in known:
            return corrected_rate(count.bad, count.n, known[metric])
        return observed_rate(count.bad, count.n)

    arms = [arm for arm in ARMS if arm in ("serving", challenger) or arm in evidence.arms]
    return {arm: {metric: rate(arm, metric) for metric in METRICS} for arm in arms}


def _e_values(
    evidence: Evidence, known: Known, arm: Challenger, limits: ReleaseLimits
) -> dict[Test, float]:
    e_values: dict[Test, float] = {
        metric: evidence.comparison(arm, metric).e_value for metric in METRICS
    }
    for test, metric in LIMIT_OF.items():
        count, limit = evidence.tally(arm).of(metric), _of(limits, metric)
        if metric in known:
            limit = observed_limit(limit, known[metric])
        e_values[test] = limit_e_value(count.bad, count.n, limit)
    return e_values


def _action(shown: _Shown, now: float) -> tuple[Literal["wait", "advance", "roll_back"], str]:
    if not shown.release.is_open:
        return "wait", "the release is over"
    if shown.e_value >= shown.needed:
        return "roll_back", _what_is_worse(shown)
    if missing := _what_is_missing(shown, now):
        return "wait", missing
    return "advance", "; ".join(
        f"{WORDS[metric]} {told(shown.rates[shown.arm][metric])}" for metric in JUDGED
    )


def _what_is_worse(shown: _Shown) -> str:
    """Name the test that weighs most, what it saw, and the other side of it."""
    test = max(shown.e_values, key=lambda test: WEIGHTS[test] * shown.e_values[test])
    metric: Metric
    match test:
        case "unsafe_limit" | "needless_limit":
            metric = LIMIT_OF[test]
            limit = _of(shown.release.plan.limits, LIMIT_OF[test])
            beside = f"beyond the limit of {100 * limit:g} %"
        case _:
            metric = test
            beside = f"against {told(shown.rates['serving'][metric])} of the serving bundle"
    rate, e_value = told(shown.rates[shown.arm][metric]), shown.e_values[test]
    return f"{WORDS[metric]}: {rate} of the {shown.arm} {beside}, e-value {e_value:.3g}"


def _what_is_missing(shown: _Shown, now: float) -> str:
    """Return what an advance still needs; empty when nothing is missing."""
    release, plan = shown.release, shown.release.plan
    step = plan.shadow if release.state == "shadow" else plan.canary[release.step]
    assert step is not None
    if release.held:
        return "held, and its history says why"
    if (samples := step.samples - shown.seen.judged) > 0:
        return f"needs {samples} more judged answers{_why_none(shown)}"
    if (seconds := release.since + step.seconds - now) > 0:
        return f"needs {duration(seconds)} more"
    for metric in METRICS:
        if (e_value := shown.e_values[metric]) >= SUSPICIOUS:
            return f"{WORDS[metric]} may be more than before, e-value {e_value:.3g}"
    for judged in JUDGED:
        high, target = shown.rates[shown.arm][judged].high, _of(plan.targets, judged)
        if high > target:
            return f"{WORDS[judged]} may be {100 * high:.2f} %, needs at most {100 * target:g} %"
    return ""


def _why_none(shown: _Shown) -> str:
    """Say what to see to when no answer was judged at all; empty when nothing seems wrong."""
    if shown.seen.judged:
        return ""
    if shown.seen.answers:
        return f"; of {shown.seen.answers} none was: see to memory.judge"
    if shown.alone >= PUZZLING:
        return f"; of {shown.alone} none was its own: see the gateways' logs"
    return ""


def _of(bounds: ReleaseLimits, metric: Judged) -> float:
    return bounds.unsafe if metric == "unsafe" else bounds.needless


def told(rate: RateEstimate) -> str:
    """Return a rate for people, such as `3.1 % (1.9 to 5.2 %, 12 of 391)`."""
    if rate.value is None:
        return "unknown"
    bounds = f"{100 * rate.low:.1f} to {100 * rate.high:.1f} %"
    return f"{100 * rate.value:.1f} % ({bounds}, {rate.bad} of {rate.n})"
