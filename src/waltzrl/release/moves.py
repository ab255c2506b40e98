"""How a release moves: shadow -> canary 0, 1, ... -> full, and from each of them back.

propose --> shadow --> canary 0 --> ... --> canary n --> full
               `----------`------------------`------------`--> rolled_back
"""

from msgspec.structs import replace

from waltzrl.errors import InputError
from waltzrl.release.plan import ReleasePlan
from waltzrl.release.state import Action, Release, ReleaseState


def first_state(plan: ReleasePlan) -> ReleaseState:
    """Return where a proposed release begins.

    Raises:
        InputError: the plan would serve the candidate to all at once.
    """
    if plan.shadow is None and not plan.canary:
        raise InputError(f"plan {plan.name!r} has neither a shadow nor a canary; give it a step")
    return "canary" if plan.shadow is None else "shadow"


def moved(release: Release, action: Action, now: float) -> Release:
    """Return the release behind a transition; one that is rolled back already as it is.

    Args:
        release: where it stands.
        action: what to do.
        now: seconds since the epoch.

    Raises:
        InputError: it cannot be done from there.
    """
    match action:
        case "advance":
            _require_open(release, action)
            if release.held:
                raise InputError(f"release {release.id} is held; resume it before it advances")
            return _advanced(release, now)
        case "hold" | "resume":
            _require_open(release, action)
            if release.held == (action == "hold"):
                raise InputError(f"release {release.id} is {'' if release.held else 'not '}held")
            return replace(release, held=not release.held, version=release.version + 1)
        case "roll_back":
            if release.state == "rolled_back":
                return release
            return _at(release, "rolled_back", release.step, now)
        case "propose":
            raise InputError(f"release {release.id} was proposed already; propose another")


def _advanced(release: Release, now: float) -> Release:
    step = release.step + 1 if release.state == "canary" else 0
    if step < len(release.plan.canary):
        return _at(release, "canary", step, now)
    return _at(release, "full", release.step, now)


def _at(release: Release, state: ReleaseState, step: int, now: float) -> Release:
    version = release.version + 1
    return replace(release, state=state, step=step, held=False, since=now, version=version)


def _require_open(release: Release, action: Action) -> None:
    if not release.is_open:
        raise InputError(
            f"release {release.id} is {release.state.replace('_', ' ')} and cannot {action}; "
            "propose another"
        )
