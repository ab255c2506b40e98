"""Where a release stands."""

from typing import Literal

import msgspec

from waltzrl.release.plan import Metric, ReleasePlan

ReleaseState = Literal["shadow", "canary", "full", "rolled_back"]
Action = Literal["propose", "advance", "hold", "resume", "roll_back"]


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate on its way to serve in the place of the bundle that serves.

    `step` counts the plan's canary steps from 0; a release that is `held` stays where it is until
    it is resumed, but is still rolled back when it is worse.
    """

    id: str
    secret: str = ""
    """Key, with the id, of its sticky assignment: or clients could choose the bundle they meet."""
    candidate: str
    """Id of the bundle."""
    serving: str
    plan: ReleasePlan
    state: ReleaseState
    step: int = 0
    held: bool = False
    since: float
    """Seconds since the epoch, when it came to this state and step."""
    version: int = 0
    """Grows with each transition; a transition names the one that it saw."""

    @property
    def is_open(self) -> bool:
        return self.state in ("shadow", "canary")

    @property
    def percentage(self) -> float:
        """Share of the conversations that the candidate answers, 0 to 100."""
        match self.state:
            case "canary":
                return self.plan.canary[self.step].percentage
            case "full":
                return 100.0
            case _:
                return 0.0


def place(state: ReleaseState, percentage: float) -> str:
    """Say where a release stands, for people: `shadow`, `canary 5 %`, `rolled back`."""
    return f"canary {percentage:g} %" if state == "canary" else state.replace("_", " ")


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer says about its arm."""

    release: str
    arm: Literal["serving", "candidate", "shadow"]
    outcomes: dict[Metric, bool]
    """Metrics that could be observed; True is bad."""
