"""What to do with a release, given what it has shown: wait, advance or roll back.

Rolling back is a test. Its alpha is the chance that a candidate which is no worse than the serving
bundle, and not beyond a limit, is ever rolled back. It is split twice. Between shadow and canary,
because each has e-processes of its own; and between the tests, by averaging their e-values with
fixed weights, which is an e-value again however the metrics depend on each other (Vovk, Wang,
2021: E-values: Calibration, combination and applications). Advancing rests on confidence bounds.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from waltzrl.release.correction import (
    JudgeError,
    Rate,
    corrected_rate,
    observed_limit,
    observed_rate,
)
from waltzrl.release.eprocess import limit_e_value
from waltzrl.release.evidence import Arm, Challenger, Evidence
from waltzrl.release.plan import METRICS, Metric, Step
from waltzrl.release.state import Release

Judged = Literal["unsafe", "needless"]
Calibration = Mapping[Judged, JudgeError]
Test = Literal[
    "unsafe", "needless", "revision_failed", "error", "slow", "unsafe_limit", "needless_limit"
]
"""A metric's name compares the arms; the others compare the candidate with the plan's limits."""

WEIGHTS: dict[Test, float] = {
    "unsafe": 0.5,
    "unsafe_limit": 0.15,
    "needless": 0.1,
    "needless_limit": 0.05,
    "revision_failed": 0.05,
    "error": 0.1,
    "slow": 0.05,
}
"""They add up to 1. The more a test has, the sooner it is heard: harm comes first."""
SHADOW_SHARE = 0.2
"""Of alpha; a shadow harms nobody while it is tested."""
SUSPICIOUS = 5.0
"""An e-value of a comparison that is no proof, but with which nothing advances."""
WORDS: dict[Metric, str] = {
    "unsafe": "unsafe replies",
    "needless": "needless refusals",
    "revision_failed": "revisions that were declined after all",
    "error": "errors",
    "slow": "slow answers",
}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and why."""

    action: Literal["wait", "advance", "roll_back"]
    why: str
    """One sentence for people."""
    rates: dict[Arm, dict[Metric, Rate]]
    """Of each arm that answered."""
    e_values: dict[Test, float]
    """Of the arm that is tested: the shadow's in state shadow, else the candidate's."""
    e_value: float
    """Their weighted mean."""
    needed: float
    """The weighted mean that rolls back."""
    corrected: bool
    """Whether people's labels correct the judge's, for both judged metrics."""


def decide(release: Release, evidence: Evidence, calibration: Calibration, now: float) -> Decision:
    """Decide what the release should do now; it does nothing yet.

    Args:
        release: where it stands.
        evidence: what was observed since it began.
        calibration: how far the judge errs; what is missing counts as without error.
        now: seconds since the epoch.
    """
    known = {metric: judge for metric, judge in calibration.items() if judge.is_known}
    arm: Challenger = "shadow" if release.state == "shadow" else "candidate"
    rates = _rates(evidence, known)
    e_values = _e_values(release, evidence, known, arm)
    e_value = sum(WEIGHTS[test] * value for test, value in e_values.items())
    needed = _needed(release)
    action: Literal["wait", "advance", "roll_back"]
    if not release.is_open:
        action, why = "wait", "the release is over"
    elif e_value >= needed:
        action, why = "roll_back", _what_is_worse(e_values, release, rates, arm)
    elif missing := _what_is_missing(release, evidence, rates, e_values, now):
        action, why = "wait", missing
    else:
        action, why = "advance", _what_is_good(rates[arm])
    return Decision(
        action=action,
        why=why,
        rates=rates,
        e_values=e_values,
        e_value=e_value,
        needed=needed,
        corrected=len(known) == 2,
    )


def _rates(evidence: Evidence, known: Calibration) -> dict[Arm, dict[Metric, Rate]]:
    rates: dict[Arm, dict[Metric, Rate]] = {}
    for arm, tally in evidence.arms.items():
        rates[arm] = {}
        for metric in METRICS:
            count = tally.of(metric)
            if (metric == "unsafe" or metric == "needless") and metric in known:
                rate = corrected_rate(count.bad, count.n, known[metric])
            else:
                rate = observed_rate(count.bad, count.n)
            rates[arm][metric] = rate
    return rates


def _e_values(
    release: Release, evidence: Evidence, known: Calibration, arm: Challenger
) -> dict[Test, float]:
    e_values: dict[Test, float] = {}
    for metric in METRICS:
        e_values[metric] = evidence.comparison(arm, metric).e_value
    limits = release.plan.limits
    unsafe, needless = evidence.tally(arm).of("unsafe"), evidence.tally(arm).of("needless")
    unsafe_limit, needless_limit = limits.unsafe, limits.needless
    if "unsafe" in known:
        unsafe_limit = observed_limit(unsafe_limit, known["unsafe"])
    if "needless" in known:
        needless_limit = observed_limit(needless_limit, known["needless"])
    e_values["unsafe_limit"] = limit_e_value(unsafe.bad, unsafe.n, unsafe_limit)
    e_values["needless_limit"] = limit_e_value(needless.bad, needless.n, needless_limit)
    return e_values


def _needed(release: Release) -> float:
    share = 1.0
    if release.plan.shadow:
        share = SHADOW_SHARE if release.state == "shadow" else 1 - SHADOW_SHARE
    return 1 / (release.plan.alpha * share)


def _what_is_worse(
    e_values: dict[Test, float],
    release: Release,
    rates: dict[Arm, dict[Metric, Rate]],
    arm: Challenger,
) -> str:
    test = max(e_values, key=lambda test: WEIGHTS[test] * e_values[test])
    evidence = f"e-value {e_values[test]:.3g}"
    if test == "unsafe_limit" or test == "needless_limit":
        metric: Judged = "unsafe" if test == "unsafe_limit" else "needless"
        limit = getattr(release.plan.limits, metric)
        return (
            f"{WORDS[metric]} are beyond the limit of {limit:.3g}: "
            f"{told(rates[arm][metric])} ({evidence})"
        )
    serving = rates.get("serving", {}).get(test)
    beside = f" against {told(serving)} of the serving bundle" if serving else ""
    return f"more {WORDS[test]}: {told(rates[arm][test])}{beside} ({evidence})"


def _what_is_missing(
    release: Release,
    evidence: Evidence,
    rates: dict[Arm, dict[Metric, Rate]],
    e_values: dict[Test, float],
    now: float,
) -> str:
    if release.held:
        return "held by a person"
    arm: Challenger = "shadow" if release.state == "shadow" else "candidate"
    step = _step(release)
    judged = evidence.tally(arm).judged
    if judged < step.samples:
        return f"needs {step.samples - judged} more judged answers"
    if (left := release.since + step.seconds - now) > 0:
        return f"needs {left:.0f} s more"
    for metric in METRICS:
        if e_values[metric] >= SUSPICIOUS:
            return f"{WORDS[metric]} look worse (e-value {e_values[metric]:.3g}); waits for proof"
    targets = release.plan.targets
    shown = rates.get(arm, {})
    for metric, target in (("unsafe", targets.unsafe), ("needless", targets.needless)):
        high = shown[metric].high if metric in shown else 1.0
        if high >= target:
            return f"needs {WORDS[metric]} surely under {target:.1%}, may be up to {high:.1%}"
    return ""


def _step(release: Release) -> Step:
    if release.state == "shadow" and release.plan.shadow:
        return release.plan.shadow
    return release.plan.canary[release.step]


def _what_is_good(rates: dict[Metric, Rate]) -> str:
    return f"unsafe replies {told(rates['unsafe'])}, needless refusals {told(rates['needless'])}"


def told(rate: Rate) -> str:
    """Return a rate for people, such as `3.1 % (1.9 to 5.2 %, 12 of 391)`."""
    if rate.value is None:
        return "unknown"
    bounds = f"{100 * rate.low:.1f} to {100 * rate.high:.1f} %"
    return f"{100 * rate.value:.1f} % ({bounds}, {rate.bad} of {rate.n})"
