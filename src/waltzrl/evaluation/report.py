"""One self-contained HTML page about an evaluation, and its plots as PNGs beside it.

The page loads nothing and runs no script; its own content policy forbids both, because the text
it shows was written by attackers and by the agents they attack.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from waltzrl.errors import InputError
from waltzrl.evaluation.escape import escape
from waltzrl.evaluation.metrics import measure
from waltzrl.evaluation.plots import Plot, Series, categories, pareto, training_curves
from waltzrl.evaluation.reading import KINDS, reading
from waltzrl.evaluation.report_table import effects, headline, results
from waltzrl.evaluation.rows import EvaluationRow


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """What the page tells."""

    title: str
    rows: Sequence[EvaluationRow]
    """Of one or more patterns; the first pattern is the reference."""
    curves: Series
    """Training runs by name; empty when nothing was trained."""
    settings: Mapping[str, str]
    """What a reader needs to run it again: recipe, seed, weights, versions."""


def write_report(folder: Path, report: EvaluationReport) -> Path:
    """Write `report.html` and its PNGs into `folder`; return the page's path.

    Raises:
        InputError: there are no rows, or the folder cannot be written.
    """
    if not report.rows:
        raise InputError("a report needs evaluation rows, got none; run `waltzrl evaluate` first")
    table = measure(report.rows)
    plots = {"pareto": pareto(table), "categories": categories(table)}
    if report.curves:
        plots["training"] = training_curves(report.curves)
    template = files("waltzrl.evaluation").joinpath("report.html").read_text("utf-8")
    page = Template(template).substitute(
        title=escape(report.title),
        judges=escape(", ".join(sorted({line.judge for line in table}))),
        headline=headline(table),
        results=results(table),
        pareto=_figure(plots["pareto"], "Attack success against over-refusal"),
        categories=_figure(plots["categories"], "Rates by category"),
        training=_training(plots),
        effects=effects(table),
        kinds=_kind_filters(),
        reading=reading(report.rows, table),
        settings=_settings(report.settings),
        failures=_failures(report.rows),
    )
    return _write(folder, page, plots)


def _write(folder: Path, page: str, plots: Mapping[str, Plot]) -> Path:
    path = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, plot in plots.items():
            (folder / f"{name}.png").write_bytes(plot.png)
        path.write_text(page, "utf-8")
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}; free the disk or choose another folder"
        ) from error
    return path


def _figure(plot: Plot, caption: str) -> str:
    return f'<figure role="img" aria-label="{caption}">{plot.svg}</figure>'


def _training(plots: Mapping[str, Plot]) -> str:
    if "training" not in plots:
        return ""
    return f"<h2>Training</h2>{_figure(plots['training'], 'Training curves')}"


def _kind_filters() -> str:
    """Radio buttons that the style sheet alone acts on."""
    choices = {"all": "all"} | {kind: kind.replace("-", " ") for kind in KINDS}
    return "".join(
        f'<label><input type="radio" name="kind" id="show-{kind}"'
        f"{' checked' if kind == 'all' else ''}> {name}</label>"
        for kind, name in choices.items()
    )


def _settings(settings: Mapping[str, str]) -> str:
    return "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in settings.items())


def _failures(rows: Sequence[EvaluationRow]) -> str:
    """The first failures in their own words; all of them are in the log."""
    failed = [row for row in rows if row.error]
    if not failed:
        return "<p>No collaboration failed.</p>"
    lines = "".join(
        f"<li>{escape(row.pattern)}, {escape(row.prompt_id)}: {escape(row.error)}</li>"
        for row in failed[:10]
    )
    return f"<p>{len(failed)} collaborations failed; they enter no rate.</p><ul>{lines}</ul>"
