"""The plan of a release, from a preset or a TOML file: its steps, its limits, what each needs."""

import tomllib
from importlib.resources import files
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation.sample_correction import JUDGED, Judged
from waltzrl.foundation.jsonl import read_text

PRESETS = ("weekly", "seven_days", "quick")
"""The names of the plans that come with waltzrl."""

Metric = Literal["unsafe", "overrefusal", "revision_failed", "error", "slow"]
"""The ways in which a candidate may be worse: an unsafe reply was returned; a harmless prompt was
refused (an over-refusal); a revision ended in a canned refusal; the request failed; the answer took
longer than the plan allows. Each is a share of answers: a candidate with better drafts has fewer
and harder revisions, and as a share of these more would fail."""
METRICS: tuple[Metric, ...] = ("unsafe", "overrefusal", "revision_failed", "error", "slow")
WORDS: dict[Metric, str] = {
    "unsafe": "unsafe replies",
    "overrefusal": "over-refusals",
    "revision_failed": "failed revisions",
    "error": "errors",
    "slow": "slow answers",
}

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Percentage = Annotated[float, msgspec.Meta(ge=0, le=100)]


class ReleaseStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A period with the candidate at one percentage."""

    percentage: Percentage
    """Share of conversations that the candidate answers; as a shadow, unseen by users."""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Minimum duration."""
    samples: Annotated[int, msgspec.Meta(ge=0)]
    """Judged answers of the candidate that are needed, counted from the start of the release."""


class ReleaseLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of unsafe replies and of over-refusals, after correction for the judge's error."""

    unsafe: Share
    overrefusal: Share
    """Over-refusals."""

    def of(self, metric: Judged) -> float:
        return self.unsafe if metric == "unsafe" else self.overrefusal


class ReleaseGates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on the answers of the candidate to users since its step began; None for no bound."""

    changed: Share | None = None
    """Share of answers that feedback changed, by a revision or a refusal: must be below it."""
    added_milliseconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Time that the gateway takes itself, reviews included and the model's draft and revisions not,
    at the 95th percentile: must be below it."""
    incidents: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Replies that people labelled unsafe at the desk: at most."""
    satisfied: Share | None = None
    """Share of thumbs up: closed while the whole 95 % interval is below it."""


class ReleasePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole release, as data."""

    name: str
    shadow: ReleaseStep | None
    """The shadow step; None starts with the canary."""
    canary: tuple[ReleaseStep, ...]
    """Percentages rise; after the last step the candidate serves everyone."""
    targets: ReleaseLimits
    """The candidate advances only with upper confidence bounds at or below these."""
    limits: ReleaseLimits
    """Beyond these it is rolled back, even if the serving bundle is as bad."""
    gates: ReleaseGates = ReleaseGates()
    """The conditions on the candidate's answers to users before it advances."""
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    """Chance that a candidate that is no worse is ever rolled back, however often it is tested."""
    slow_milliseconds: float = 10_000.0
    automatic: bool = True
    """Advance as soon as the evidence allows; False waits for a person."""


def load_plan(name_or_path: str) -> ReleasePlan:
    """Return a plan.

    Args:
        name_or_path: one of `PRESETS`, or a TOML file; a file without `shadow` has no shadow.

    Raises:
        InputError: there is no such plan, or it is invalid.
    """
    if name_or_path in PRESETS:
        folder = files("waltzrl.operations.release") / "plans"
        text, source = (folder / f"{name_or_path}.toml").read_text("utf-8"), f"plan {name_or_path}"
    elif Path(name_or_path).suffix:
        text, source = read_text(Path(name_or_path)), name_or_path
    else:
        raise InputError(
            f"there is no plan {name_or_path!r}; use {', '.join(PRESETS)}, or a TOML file"
        )
    try:
        # TOML has no null, so a file says that there is no shadow by leaving it out.
        plan = msgspec.convert({"shadow": None} | tomllib.loads(text), ReleasePlan)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{source}: not a valid release plan: {error}") from None
    percentages = [step.percentage for step in plan.canary]
    if not percentages or any(later <= sooner for sooner, later in pairwise([0.0, *percentages])):
        raise InputError(f"{source}: need canary steps whose percentages rise from above 0")
    if any(plan.targets.of(metric) > plan.limits.of(metric) for metric in JUDGED):
        raise InputError(f"{source}: a target is above its limit; lower it, or raise the limit")
    return plan


def format_duration(seconds: float) -> str:
    """Return a readable time, such as `1.9 d` or `40 s`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{round(seconds / length, 1):g} {unit}"
    return f"{ceil(seconds)} s"
