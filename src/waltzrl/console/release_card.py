"""What the overview tells of the newest release."""

from typing import NamedTuple

import msgspec

from waltzrl.console.curve import Curve, curve_of
from waltzrl.release.decision import WEIGHTS, WORDS, Test
from waltzrl.release.evidence import Arm
from waltzrl.release.state import Action, Release
from waltzrl.release.view import ALL, ReleaseView

ARMS: dict[Arm, str] = {
    "serving": "serving bundle",
    "candidate": "candidate",
    "shadow": "candidate as shadow",
}
NAMES: dict[str, str] = {
    ALL: "all together",
    "unsafe": WORDS["unsafe"],
    "needless": WORDS["needless"],
    "revision_failed": "declined after all",
    "error": WORDS["error"],
    "slow": WORDS["slow"],
    "unsafe_limit": "unsafe, against the limit",
    "needless_limit": "needless, against the limit",
}
"""Tests, for people."""
QUESTIONS: dict[Action, str] = {
    "advance": "The candidate goes to the next step now, whatever evidence is missing.",
    "hold": "It stays at this step until it is resumed; it is still rolled back when it is worse.",
    "resume": "It goes on as the evidence allows.",
    "roll_back": "Every replica serves the other bundle again within a second. There is no way "
    "on from there but a new release.",
}
"""What each move means, asked before it is made."""


class ReleaseStage(NamedTuple):
    """A stop on the release's way."""

    name: str
    is_past: bool
    is_here: bool


class TestShown(NamedTuple):
    """One test of the candidate."""

    name: str
    weight: float
    e_value: float


class ReleaseCard(msgspec.Struct, frozen=True, kw_only=True):
    """The newest release, for its template."""

    view: ReleaseView
    stages: tuple[ReleaseStage, ...]
    tests: tuple[TestShown, ...]
    curve: Curve | None
    moves: tuple[tuple[Action, str], ...]
    """What may be done to it, and what that means."""


def card_of(view: ReleaseView) -> ReleaseCard:
    """Put the card together."""
    release, decision = view.release, view.decision
    e_values = {} if decision is None else decision.e_values
    return ReleaseCard(
        view=view,
        stages=tuple(_stages(view)),
        tests=tuple(_shown(test, e_value) for test, e_value in e_values.items()),
        curve=None if decision is None else curve_of(view, decision.needed),
        moves=tuple((move, QUESTIONS[move]) for move in _moves(release)),
    )


def _shown(test: Test, e_value: float) -> TestShown:
    return TestShown(NAMES[test], WEIGHTS[test], e_value)


def _stages(view: ReleaseView) -> list[ReleaseStage]:
    release, plan = view.release, view.release.plan
    names = [f"{step.percentage:g} %" for step in plan.canary]
    names = [*(["shadow"] if plan.shadow else []), *names, "full"]
    match view.history[-1].before if release.state == "rolled_back" else release.state:
        case "canary":
            here = release.step + (1 if plan.shadow else 0)
        case "full":
            here = len(names) - 1
        case _:
            here = 0
    return [ReleaseStage(name, number < here, number == here) for number, name in enumerate(names)]


def _moves(release: Release) -> list[Action]:
    if release.is_open:
        return ["resume", "roll_back"] if release.held else ["advance", "hold", "roll_back"]
    return ["roll_back"] if release.state == "full" else []
