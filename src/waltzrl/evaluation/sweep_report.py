"""A self-contained HTML page about a sweep: how good every point was on the validation set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzrl.evaluation.plots import plot_seed_dots, training_curves
from waltzrl.evaluation.report import read_curve, render_page, write_page

Line = Mapping[str, float]
"""A validation: its `step`, and the rates under their names in metrics.jsonl."""
F1, ASR, ORR = "validation/f1", "validation/asr", "validation/orr"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What came of one point."""

    name: str
    setting: str
    """Points of one setting differ in their seed only."""
    values: Mapping[str, object]
    """The values that the point sets, by the keys of the recipe."""
    run: Path
    curve: Sequence[Line]
    """All validations, in order; none if the run has not begun."""
    diverged: str
    """The reason why training was stopped; empty if it was not."""

    @property
    def best(self) -> Line | None:
        """The validation with the highest F1, the latest of several: the one that is exported."""
        rated = [line for line in self.curve if F1 in line]
        return max(rated, key=lambda line: (line[F1], line["step"]), default=None)

    @property
    def last(self) -> Line | None:
        return self.curve[-1] if self.curve else None


def read_validations(run: Path) -> list[Line]:
    """Return what a run measured on its validation set; nothing if it has not begun.

    Raises:
        InputError: its metrics are damaged.
    """
    if not (run / "metrics.jsonl").exists():
        return []
    lines = [
        {name: value for name, value in line.items() if name in {"step", F1, ASR, ORR}}
        for line in read_curve(run)
    ]
    return [line for line in lines if len(line) > 1]


def sort_by_best(results: Sequence[SweepResult]) -> list[SweepResult]:
    """Return the points with the highest F1 first, and last those without any."""
    return sorted(results, key=lambda result: -(result.best or {}).get(F1, -1.0))


def write_sweep_report(folder: Path, results: Sequence[SweepResult], title: str) -> Path:
    """Write `report.html`, `points.png` and `curves.png` into `folder`; return the page's path.

    Raises:
        InputError: the folder cannot be written.
    """
    ranked = sort_by_best(results)
    dots: dict[str, list[float]] = {}
    for result in ranked:
        if result.best is not None:
            dots.setdefault(result.setting, []).append(result.best[F1])
    plots = {
        "points": plot_seed_dots(dots, "highest F1 on the validation set"),
        "curves": training_curves({result.name: result.curve for result in ranked}),
    }
    keys = list(results[0].values)
    page = render_page("sweep.html", title=title, keys=keys, results=ranked, plots=plots)
    return write_page(folder, page, plots)
