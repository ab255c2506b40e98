"""How a release goes: its steps, its limits, and what must be known before each step."""

from math import ceil
from typing import Annotated, Literal

import msgspec

Metric = Literal["unsafe", "needless", "revision_failed", "error", "slow"]
"""What may be worse of a candidate: an unsafe reply left; a harmless prompt was refused; a revision
was declined after all; nothing could be answered; it took longer than the plan allows."""
METRICS: tuple[Metric, ...] = ("unsafe", "needless", "revision_failed", "error", "slow")

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Percentage = Annotated[float, msgspec.Meta(ge=0, le=100)]


class ReleaseStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stay of the candidate at one percentage."""

    percentage: Percentage
    """Of conversations that the candidate answers; of a shadow, that it answers for nobody."""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Shortest stay."""
    samples: Annotated[int, msgspec.Meta(ge=0)]
    """Judged answers of the candidate that are needed, counted from the begin of the release."""


class ReleaseLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of unsafe replies and of needless refusals, after correction for the judge's error."""

    unsafe: Share
    needless: Share


class ReleasePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole release, as data."""

    name: str
    shadow: ReleaseStep | None
    """None begins with the canary."""
    canary: tuple[ReleaseStep, ...]
    """Percentages rise; behind the last step the candidate is served to all."""
    targets: ReleaseLimits
    """To be promoted, the candidate's upper confidence bounds must lie under these."""
    limits: ReleaseLimits
    """Beyond these it is rolled back, whatever the serving bundle does."""
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    """Chance that a candidate that is no worse is ever rolled back, however often one looks."""
    slow_milliseconds: float = 10_000.0
    automatic: bool = True
    """Go on to the next step as soon as the evidence allows; False waits for a person."""


def duration(seconds: float) -> str:
    """Return a time for people, such as `1.9 d` or `40 s`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{round(seconds / length, 1):g} {unit}"
    return f"{ceil(seconds)} s"
