"""Read-only views of releases: history, evidence, and the decision for other tools."""

from typing import Final, Literal, NamedTuple

import msgspec

from waltzrl.operations.release.decision import Decision, Test
from waltzrl.operations.release.evidence import Evidence
from waltzrl.operations.release.state import Action, Release, ReleaseState

ALL: Final = "all"
"""All tests together: `Decision.e_value`."""
NOTHING_COUNTED = "nothing was counted yet; a gateway with this memory counts once a second"


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """A transition of a release, and what was known then."""

    release: str
    time: float
    """Seconds since the epoch."""
    action: Action
    by: str
    """Name of a person, or `waltzrl.operations.release.book.BY_ITSELF`."""
    why: str
    before: ReleaseState | Literal["off"]
    after: ReleaseState
    percentage: float
    """Share of the conversations, after the transition."""
    decision: Decision | None
    """The last one before; None when nothing was counted yet."""


class CurvePoint(NamedTuple):
    """The evidence against the candidate at one time."""

    time: float
    """Seconds since the epoch."""
    metric: Test | Literal["all"]
    e_value: float


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about one release."""

    release: Release
    evidence: Evidence
    decision: Decision | None
    """The last one; None when nothing was counted yet."""
    history: tuple[Transition, ...]
    """The oldest first."""
    curve: tuple[CurvePoint, ...]
    """The oldest first."""


def decision_body(view: ReleaseView | None) -> dict[str, object]:
    """Return the body of `/v1/release/decision`, for tools that control a deployment.

    Args:
        view: of the newest release; None when there has been none.
    """
    if view is None:
        return {"release": None, "state": "off", "percentage": 0.0, "healthy": True}
    release, decision = view.release, view.decision
    if not release.is_open:
        action = "roll_back" if release.state == "rolled_back" else "wait"
        why = view.history[-1].why
    elif decision is None:
        action, why = "wait", NOTHING_COUNTED
    else:
        action, why = decision.action, decision.why
    return {
        "release": release.id,
        "candidate": release.candidate,
        "serving": release.serving,
        "policy": release.policy,
        "state": release.state,
        "percentage": release.percentage,
        "held": release.held,
        "action": action,
        "why": why,
        "healthy": action != "roll_back",
        "notes": [] if decision is None else list(decision.notes),
        "rates": {} if decision is None else msgspec.to_builtins(decision.rates),
        "e_value": 1.0 if decision is None else decision.e_value,
    }
