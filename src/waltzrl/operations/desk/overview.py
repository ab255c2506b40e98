"""The overview: how each bundle did lately, where the release stands, and what moves it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, get_args

from starlette.responses import Response

from waltzrl.errors import InputError
from waltzrl.evaluation.judges.agreement import agreement
from waltzrl.evaluation.sample_correction import (
    RateEstimate,
    judged_rate,
    labelled_samples,
    observed_rate,
)
from waltzrl.operations.desk.curve import draw_curve
from waltzrl.operations.desk.queue import SLOWER, list_path, sample_offers
from waltzrl.operations.desk.request import PageRequest, page_error, redirect_to
from waltzrl.operations.release.decision import WEIGHTS
from waltzrl.operations.release.evidence import Arm
from waltzrl.operations.release.plan import METRICS, WORDS, Metric
from waltzrl.operations.release.state import Action, Release
from waltzrl.operations.release.view import ALL, ReleaseView
from waltzrl.store.memory.counts import BundleCounts, ServedCounts

WINDOWS = {"hour": 3600.0, "day": 86_400.0}
ACTIONS: tuple[Action, ...] = tuple(action for action in get_args(Action) if action != "propose")
MAX_REASON = 300
ARMS: dict[Arm, str] = {
    "serving": "serving bundle",
    "candidate": "candidate",
    "shadow": "candidate in shadow",
}
TEST_NAMES: dict[str, str] = {
    ALL: "all together",
    **dict[str, str](WORDS.items()),
    "unsafe_limit": "unsafe replies, limit",
    "overrefusal_limit": "over-refusals, limit",
}
CONSEQUENCES: dict[Action, str] = {
    "advance": "Moves the candidate to the next step now, even if evidence is missing.",
    "hold": "Keeps the candidate at this step until it is resumed. It is still rolled back if it "
    "is worse.",
    "resume": "Lets the release advance again as the evidence allows.",
}
"""Shown before an operator confirms an action."""


class BundleRow(NamedTuple):
    """One bundle in the table of what was served."""

    counts: BundleCounts
    rates: Mapping[str, RateEstimate]
    listed: Mapping[str, str]
    """Addresses of what each rate counts as bad."""


def show_overview(request: PageRequest) -> Response:
    """Show the rates of the last hour or day, the newest release, and how far people agree."""
    window = request.query.get("window", "hour")
    seconds = WINDOWS.get(window, WINDOWS["hour"])
    memory, view = request.memory, request.releases.view()
    since, served = request.now - seconds, memory.rates(request.now - seconds)
    rows = [
        BundleRow(counts, estimate_served_rates(counts), _link_rates(counts.bundle, since))
        for counts in served
    ]
    return request.page(
        "overview.html",
        200,
        window=window if window in WINDOWS else "hour",
        windows=list(WINDOWS),
        rows=rows,
        scales=scales_of([row.rates for row in rows]),
        view=view,
        **({} if view is None else _describe_release(view)),
        changes=() if view is None else request.releases.changes(view.release),
        raters={
            question: agreement([first for first, _ in pairs], [second for _, second in pairs])
            for question, pairs in memory.double_answers().items()
            if pairs
        },
        arms=ARMS,
        metrics=METRICS,
        names=TEST_NAMES,
        samples=sample_offers(served),
    )


def move_release(request: PageRequest) -> Response:
    """Do to the release what the form says, if it has not moved since the form was loaded.

    Raises:
        RequestError: 403, 400 for an incomplete form, 404, or 409 when it cannot be done any more.
    """
    request.require("operator")
    form = request.form
    why = request.source.redact(" ".join(form.get("why", "").split())[:MAX_REASON])
    action = next((action for action in ACTIONS if action == form.get("action")), None)
    if not why or action is None:
        raise page_error(400, "choose an action and give a reason")
    book = request.releases
    release = book.release(form.get("release", ""))
    if release is None:
        raise page_error(404, "this release does not exist")
    # a roll-back is safe at every step, and must not be lost to a race
    if action != "roll_back" and str(release.version) != form.get("version"):
        raise page_error(409, "the release has changed; reload the page")
    try:
        book.move(release, action, request.name, why)
    except InputError as error:
        raise page_error(409, str(error)) from error
    return redirect_to("/desk")


def estimate_served_rates(counts: ServedCounts) -> dict[str, RateEstimate]:
    """Estimate rates, the judge's corrected by people's labels once there are enough."""
    labels = labelled_samples(counts.labels)
    return {
        "unsafe (reviewer)": observed_rate(counts.unsafe_left, counts.reviewed),
        "unsafe (judge)": judged_rate(counts.unsafe, counts.unsafe_scored, labels["unsafe"]),
        "over-refusals": judged_rate(
            counts.overrefusal, counts.overrefusal_scored, labels["overrefusal"]
        ),
        "revised": observed_rate(counts.revised, counts.answers),
        "refused": observed_rate(counts.refused, counts.answers),
        "errors": observed_rate(counts.errors, counts.answers),
        "thumbs down": observed_rate(counts.thumbs_down, counts.thumbs_up + counts.thumbs_down),
    }


def scales_of(rows: Sequence[Mapping[str, RateEstimate]]) -> dict[str, float]:
    """Return the right end of all bars of each column: the highest bound in it, never 0."""
    return {
        name: max([row[name].high for row in rows if row[name].n], default=0.0) or 1.0
        for name in (rows[0] if rows else ())
    }


def _describe_release(view: ReleaseView) -> dict[str, object]:
    """Return what the template of a release needs beside its record."""
    release, decision = view.release, view.decision
    stages, here = find_stage(view)
    return {
        "stages": stages,
        "stage_now": here,
        "listed": {
            arm: _link_metrics(release, arm) for arm in (decision.rates if decision else ())
        },
        "curve": None if decision is None else draw_curve(view, decision.needed),
        "weights": WEIGHTS,
        "actions": [(action, CONSEQUENCES[action]) for action in _list_actions(release)],
    }


def _link_rates(bundle: str, since: float) -> dict[str, str]:
    """Return the address of what each of `estimate_served_rates` counts as bad."""
    counted = {
        "unsafe (reviewer)": {"safe": "no"},
        "unsafe (judge)": {"judge": "unsafe"},
        "over-refusals": {"judge": "overrefusal"},
        "revised": {"decision": "revised"},
        "refused": {"decision": "refused"},
        "errors": {"decision": "error"},
        "thumbs down": {"thumb": "down"},
    }
    begin = datetime.fromtimestamp(since, UTC).replace(tzinfo=None).isoformat()
    served = {"bundle": bundle, "served": "users", "since": begin}
    return {name: list_path({**filters, **served}) for name, filters in counted.items()}


def _link_metrics(release: Release, arm: Arm) -> dict[Metric, str]:
    """Return the address of what each metric counts as bad in an arm of a release."""
    counted: dict[Metric, dict[str, str]] = {
        "unsafe": {"judge": "unsafe"},
        "overrefusal": {"judge": "overrefusal"},
        "revision_failed": {"decision": "refused"},
        "error": {"decision": "error"},
        "slow": {SLOWER: f"{release.plan.slow_milliseconds:.0f}"},
    }
    served = {"release": release.id, "arm": arm, "served": "answers"}
    return {metric: list_path({**filters, **served}) for metric, filters in counted.items()}


def find_stage(view: ReleaseView) -> tuple[list[str], int]:
    """Return the stages on a release's way to full traffic, and the place of its own."""
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
    return names, here


def _list_actions(release: Release) -> list[Action]:
    if not release.is_open:
        return []
    return ["resume"] if release.held else ["advance", "hold"]
