"""Tables of a release for a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from waltzrl.foundation.texts import moment
from waltzrl.operations.release.decision import LIMIT_OF, Decision, format_rate
from waltzrl.operations.release.plan import (
    METRICS,
    WORDS,
    ReleaseLimits,
    ReleasePlan,
    ReleaseStep,
    format_duration,
)
from waltzrl.operations.release.state import describe_place
from waltzrl.operations.release.view import NOTHING_COUNTED, ReleaseView, Transition


def release_page(view: ReleaseView, changes: Sequence[str]) -> RenderableType:
    """Return the state of a release, the evidence on its arms, and what it waits for.

    Args:
        view: of the release.
        changes: how its candidate differs from the bundle that it may replace.
    """
    release = view.release
    named = f"policy {release.policy}, " if release.policy else ""
    head = Text(f"release {release.id}, {named}plan {release.plan.name}: ")
    head.append(describe_place(release.state, release.percentage), style="bold")
    head.append(", held" if release.held else "")
    bundles = Text(f"candidate {release.candidate}, serving {release.serving}")
    bundles.append("".join(f"\nchanged: {change}" for change in changes))
    evidence: list[RenderableType] = []
    if view.decision is not None:
        notes = [Text(f"note: {note}") for note in view.decision.notes]
        evidence = [_tabulate_arms(view.decision), _format_evidence(view.decision), *notes]
    return Group(head, bundles, *evidence, Text(_describe_outlook(view)))


def history_table(moves: Sequence[Transition]) -> Table:
    table = Table("time (UTC)", "who", "what", "from", "to", "%", "why", box=None)
    for move in moves:
        places = (move.before, move.after, f"{move.percentage:g}")
        table.add_row(moment(move.time), move.by, move.action, *places, move.why)
    return table


def plans_table(plans: Sequence[ReleasePlan]) -> Table:
    table = Table("plan", "shadow", "canary", "targets", "limits", box=None)
    for plan in plans:
        shadow = "none" if plan.shadow is None else _format_step(plan.shadow)
        canary = "\n".join(map(_format_step, plan.canary))
        table.add_row(
            plan.name, shadow, canary, _format_bounds(plan.targets), _format_bounds(plan.limits)
        )
    return table


def _format_step(step: ReleaseStep) -> str:
    return f"{step.percentage:g} %, {format_duration(step.seconds)}, {step.samples} judged"


def _format_bounds(bounds: ReleaseLimits) -> str:
    return f"unsafe {bounds.unsafe:.0%}\nover-refusals {bounds.overrefusal:.0%}"


def _tabulate_arms(decision: Decision) -> Table:
    table = Table("", *decision.rates, "e-value", box=None)
    for metric in METRICS:
        rates = [format_rate(arm[metric]) for arm in decision.rates.values()]
        table.add_row(WORDS[metric], *rates, f"{decision.e_values[metric]:.3g}")
    return table


def _format_evidence(decision: Decision) -> Text:
    limits = ", ".join(
        f"{WORDS[metric]} {decision.e_values[test]:.3g}" for test, metric in LIMIT_OF.items()
    )
    corrected = " and ".join(WORDS[metric] for metric in decision.corrected) or "none"
    return Text(
        "rates with 95 % intervals that hold at all times; corrected for the judge's error: "
        f"{corrected}\n"
        f"e-values against the limits: {limits}\n"
        f"combined {decision.e_value:.3g}; {decision.needed:.3g} rolls back"
    )


def _describe_outlook(view: ReleaseView) -> str:
    """Return what the release waits for, or who ended it and why."""
    release, last = view.release, view.history[-1]
    if not release.is_open:
        return f"{describe_place(release.state, release.percentage)} by {last.by}: {last.why}"
    if view.decision is None:
        return NOTHING_COUNTED
    by_hand = view.decision.action == "advance" and not release.plan.automatic
    action = "waits for a person to advance it" if by_hand else view.decision.action
    return f"{action}: {view.decision.why}"
