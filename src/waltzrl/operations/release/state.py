"""The state of a release, and its transitions.

propose --> shadow --> canary 0 --> ... --> canary n --> full
               `----------`------------------`------------`--> rolled_back
"""

from typing import Literal

import msgspec
from msgspec.structs import replace

from waltzrl.errors import InputError
from waltzrl.operations.release.plan import Metric, ReleasePlan

ReleaseState = Literal["shadow", "canary", "full", "rolled_back"]
Action = Literal["propose", "advance", "hold", "resume", "roll_back"]
Mover = Literal["itself", "person"]
"""The mover of a release: the release itself, by the evidence, or a person."""


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that is to replace the bundle that serves."""

    id: str
    secret: str = ""
    """Part of the key of the sticky assignment, so that clients cannot choose their bundle."""
    candidate: str
    """Id of the bundle."""
    serving: str
    plan: ReleasePlan
    state: ReleaseState
    step: int = 0
    """Index of the plan's canary step."""
    held: bool = False
    """It does not advance until it is resumed, but is still rolled back when it is worse."""
    since: float
    """Seconds since the epoch, when it reached this state and step."""
    version: int = 0
    """Grows with each transition; a transition must name the current one."""
    policy: str = ""
    """The name of the policy whose requests take part; empty for those without one."""

    @property
    def is_open(self) -> bool:
        return self.state in ("shadow", "canary")

    @property
    def may_roll_back(self) -> bool:
        """Whether the candidate answers somebody, or may soon."""
        return self.is_open or self.state == "full"

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


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer shows about its arm."""

    release: str
    arm: Literal["serving", "candidate", "shadow"]
    outcomes: dict[Metric, bool]
    """The metrics that were observed; True is bad."""
    rejudged: dict[Metric, bool] = {}
    """The outcomes that a second judge looked at too, with its own outcome; True is bad."""
    subject: str = ""
    """Digest of the user's name; empty without one."""


def describe_place(state: ReleaseState, percentage: float) -> str:
    """Describe the position of a release: `shadow`, `canary 5 %`, `rolled back`."""
    return f"canary {percentage:g} %" if state == "canary" else state.replace("_", " ")


def first_state(plan: ReleasePlan) -> ReleaseState:
    """Return the state in which a proposed release starts.

    Raises:
        InputError: the plan has no step.
    """
    if plan.shadow is None and not plan.canary:
        raise InputError(f"plan {plan.name!r} has neither a shadow nor a canary; add a step")
    return "canary" if plan.shadow is None else "shadow"


def apply_action(release: Release, action: Action, now: float) -> Release:
    """Return the release after a transition; rolling back twice changes nothing.

    Args:
        release: before it.
        action: what to do.
        now: seconds since the epoch.

    Raises:
        InputError: the action is impossible in this state.
    """
    match action:
        case "advance":
            _require_open(release, action)
            if release.held:
                raise InputError(f"release {release.id} is held; resume it before it advances")
            return _advance_release(release, now)
        case "hold" | "resume":
            _require_open(release, action)
            if release.held == (action == "hold"):
                raise InputError(f"release {release.id} is {'' if release.held else 'not '}held")
            return replace(release, held=not release.held, version=release.version + 1)
        case "roll_back":
            if release.state == "rolled_back":
                return release
            return _move_to(release, "rolled_back", release.step, now)
        case "propose":
            raise InputError(f"release {release.id} was proposed already; propose another")


def _advance_release(release: Release, now: float) -> Release:
    step = release.step + 1 if release.state == "canary" else 0
    if step < len(release.plan.canary):
        return _move_to(release, "canary", step, now)
    return _move_to(release, "full", release.step, now)


def _move_to(release: Release, state: ReleaseState, step: int, now: float) -> Release:
    version = release.version + 1
    return replace(release, state=state, step=step, held=False, since=now, version=version)


def _require_open(release: Release, action: Action) -> None:
    if not release.is_open:
        raise InputError(
            f"release {release.id} is {release.state.replace('_', ' ')} and cannot {action}; "
            "propose another"
        )
