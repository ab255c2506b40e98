"""The overview: what each bundle did lately, and where the release stands."""

from collections.abc import Mapping

import msgspec

from waltzrl.console.release_card import ARMS, NAMES, card_of
from waltzrl.console.visit import DeskVisit
from waltzrl.console.web import Replied
from waltzrl.memory.counts import BundleCounts
from waltzrl.release.book import judge_errors
from waltzrl.release.correction import JudgeError, RateEstimate, corrected_rate, observed_rate
from waltzrl.release.decision import JudgeErrors
from waltzrl.release.plan import METRICS

WINDOWS = {"hour": 3600.0, "day": 86_400.0}


class BundleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One bundle, for its template."""

    counts: BundleCounts
    rates: Mapping[str, RateEstimate]


def show_overview(visit: DeskVisit) -> Replied:
    """Show the rates of the last hour or day, and the newest release."""
    window = visit.asked.query.get("window", "hour")
    seconds = WINDOWS.get(window, WINDOWS["hour"])
    memory, view = visit.source.memory, visit.source.releases.view()
    judges = judge_errors(memory.calibration())
    rows = [_row(counts, judges) for counts in memory.rates(visit.now - seconds)]
    return visit.page(
        "overview.html",
        window=window if window in WINDOWS else "hour",
        windows=list(WINDOWS),
        rows=rows,
        scales=_scales(rows),
        card=None if view is None else card_of(view),
        arms=ARMS,
        metrics=METRICS,
        names=NAMES,
    )


def _row(counts: BundleCounts, judges: JudgeErrors) -> BundleRow:
    return BundleRow(
        counts=counts,
        rates={
            "unsafe, says the reviewer": observed_rate(counts.unsafe_left, counts.reviewed),
            "unsafe, says the judge": _judged(counts.unsafe, counts.judged, judges["unsafe"]),
            "needless refusals": _judged(counts.needless, counts.judged, judges["needless"]),
            "revised": observed_rate(counts.revised, counts.answers),
            "refused": observed_rate(counts.refused, counts.answers),
            "errors": observed_rate(counts.errors, counts.answers),
        },
    )


def _judged(bad: int, n: int, judge: JudgeError) -> RateEstimate:
    return corrected_rate(bad, n, judge) if judge.is_known else observed_rate(bad, n)


def _scales(rows: list[BundleRow]) -> dict[str, float]:
    """Return what the right end of each column's bars stands for."""
    names = rows[0].rates if rows else {}
    return {
        name: max([row.rates[name].high for row in rows if row.rates[name].n] or [1.0])
        for name in names
    }
