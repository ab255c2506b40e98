"""A self-contained HTML page about an evaluation, and its plots as PNGs beside it.

The page loads nothing and runs no script; its own content policy forbids both, because the text
it shows was written by attackers and by the agents they attack.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waltzrl.errors import InputError, MissingExtraError
from waltzrl.evaluation.correction import MeasuredJudge
from waltzrl.evaluation.metrics import Metrics, find_best, measure, render_percent, render_plain
from waltzrl.evaluation.plots import (
    CURVES,
    Plot,
    Series,
    plot_categories,
    plot_pareto,
    training_curves,
)
from waltzrl.evaluation.rates import ClusterField, draft_acceptable, final_acceptable
from waltzrl.evaluation.rows import EvaluationRow
from waltzrl.evaluation.study_tables import StudyTable
from waltzrl.evaluation.terminal import list_headings
from waltzrl.foundation.files import disk_errors
from waltzrl.foundation.jsonl import read_objects
from waltzrl.foundation.texts import make_visible
from waltzrl.records import Feedback, JudgedCollaboration, Verdict

try:
    from waltzrl.foundation.html import page_environment
except ModuleNotFoundError as missing:
    raise MissingExtraError("the report", "jinja2", "report") from missing

TEMPLATES = Path(__file__).with_name("templates")
KINDS = {
    "repaired": "Repaired: a bad draft became a good reply",
    "still-bad": "Still bad: the final reply is bad",
    "spoiled": "Spoiled: a good draft became a bad reply",
    "false-alarm": "False alarm: a good draft was revised and stayed good",
}
STORIES_PER_KIND = 4
"""Collaborations of one pattern and kind: a page that is too long is not read at all."""
MAX_FAILURES = 10
SECTIONS = {
    "results": "Results",
    "pareto": "Safe and helpful at once",
    "categories": "By category",
    "feedback": "Effect of feedback",
    "training": "Training",
    "examples": "Examples",
    "settings": "Settings",
    "glossary": "Glossary",
}
"""The sections of the page, anchor -> title."""
LOWER_IS_BETTER = {
    "asr",
    "asr_at_k",
    "orr",
    "non_answer",
    "ftr_general",
    "worsened",
    "harmed",
    "harm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """What the page shows."""

    title: str
    rows: Sequence[EvaluationRow]
    """Rows of one or more patterns; the first pattern is the reference."""
    curves: Series
    """Training runs by name; empty when nothing was trained."""
    settings: Mapping[str, str]
    """Facts that a reader needs to run it again: recipe, seed, weights, versions."""
    by: ClusterField = "cluster"
    """The field of the prompts that makes clusters."""
    judge: MeasuredJudge | None = None
    """The judge's error, if that was measured; then rates are corrected too."""
    tables: Sequence[StudyTable] = ()
    """Tables of text that stand first."""
    read_first: str = ""
    """A sentence on what to read first; empty where any row may matter most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryTurn:
    """A draft, a feedback or a revision to read."""

    title: str
    text: str
    reasoning: str = ""
    chips: tuple[tuple[str, str], ...]
    """Labels that the judge or the reviewer gives it, each with a colour."""
    is_advice: bool = False
    """Whether the turn is a feedback that could be read."""


def write_report(folder: Path, report: EvaluationReport) -> Path:
    """Write `report.html` and its PNGs into `folder`; return the page's path.

    Raises:
        InputError: there are no rows, or the folder cannot be written.
    """
    if not report.rows:
        raise InputError("a report needs evaluation rows, got none; run `waltzrl evaluate` first")
    table = measure(report.rows, report.by, report.judge)
    plots = {"pareto": plot_pareto(table), "categories": plot_categories(table)}
    if report.curves:
        plots["training"] = training_curves(report.curves)
    page = render_page(
        "report.html",
        title=report.title,
        read_first=report.read_first,
        sections={k: v for k, v in SECTIONS.items() if report.curves or k != "training"},
        judges=", ".join(sorted({line.judge for line in table})),
        table=table,
        winner=find_best(table),
        headings=list_headings(table),
        lower_is_better=LOWER_IS_BETTER,
        plots=plots,
        stories={line.pattern: _sort_stories(report.rows, line) for line in table},
        kinds=KINDS,
        turns=story_turns,
        settings=report.settings,
        text_tables=report.tables,
        failed=[row for row in report.rows if row.error],
        max_failures=MAX_FAILURES,
    )
    return write_page(folder, page, plots)


def render_page(template: str, **values: object) -> str:
    """Fill in a template of this package; all text in it is escaped."""
    page = _environment.get_template(template)
    return page.render(style=(TEMPLATES / "style.css").read_text("utf-8"), **values)


def write_page(folder: Path, page: str, plots: Mapping[str, Plot]) -> Path:
    """Write `report.html` and the plots as PNGs beside it; return the page's path.

    Raises:
        InputError: the folder cannot be written.
    """
    path = folder / "report.html"
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        for name, plot in plots.items():
            (folder / f"{name}.png").write_bytes(plot.png)
        path.write_text(page, "utf-8")
    return path


def read_curve(run: Path) -> list[dict[str, float]]:
    """Read what a training run measured at each step, as far as `CURVES` has it.

    Raises:
        InputError: the run has no metrics, or they are damaged.
    """
    path, lines, drawn = run / "metrics.jsonl", [], {"step", *CURVES}
    for number, fields in read_objects(path):
        try:
            measured = msgspec.convert(fields, dict[str, float | None])
        except msgspec.ValidationError as error:
            raise InputError(f"{path}:{number}: not a step's metrics: {error}") from None
        lines.append({k: v for k, v in measured.items() if k in drawn and v is not None})
    return lines


def kind_of(judged: JudgedCollaboration) -> str | None:
    """Return which of KINDS a collaboration is; None for unscored and uneventful ones."""
    before, after = draft_acceptable(judged), final_acceptable(judged)
    if before is None or after is None:
        return None
    if not after:
        return "spoiled" if before else "still-bad"
    if not before:
        return "repaired"
    return "false-alarm" if judged.collaboration.revised else None


def story_turns(judged: JudgedCollaboration) -> Iterator[StoryTurn]:
    """Yield a collaboration's texts in order, each with what the judge or the reviewer says."""
    # Each reply has a verdict, in this order; a feedback has none.
    collaboration, verdicts = judged.collaboration, iter(judged.verdicts)
    chips = (_verdict_chip(next(verdicts)),)
    yield StoryTurn(title="draft", text=collaboration.draft.text, chips=chips)
    for turn in collaboration.rounds:
        yield _feedback_turn(turn.feedback)
        if turn.revision is not None:
            chips = (_verdict_chip(next(verdicts)),)
            yield StoryTurn(title="revision", text=turn.revision.text, chips=chips)


def _sort_stories(
    rows: Sequence[EvaluationRow], line: Metrics
) -> dict[str, Sequence[JudgedCollaboration]]:
    """Return a pattern's collaborations of each kind."""
    stories: dict[str, list[JudgedCollaboration]] = {kind: [] for kind in KINDS}
    for row in rows:
        if row.pattern == line.pattern and row.judged and (kind := kind_of(row.judged)):
            stories[kind].append(row.judged)
    return {kind: judged for kind, judged in stories.items() if judged}


def _take_sample(stories: Sequence[JudgedCollaboration]) -> Sequence[JudgedCollaboration]:
    """Take a few, evenly over the set, so that no category crowds out the others."""
    # Rounded up, so that no more than `STORIES_PER_KIND` are taken.
    step = -(-len(stories) // STORIES_PER_KIND)
    return stories[::step]


def _feedback_turn(feedback: Feedback) -> StoryTurn:
    if not feedback.well_formed:
        text = feedback.reply.text if feedback.reply else ""
        return StoryTurn(title="feedback", text=text, chips=(("unreadable", "grey"),))
    labels = {"unsafe": feedback.unsafe, "over-refuses": feedback.overrefuse}
    chips = tuple((label, "amber") for label, holds in labels.items() if holds)
    return StoryTurn(
        title="feedback",
        text=feedback.text,
        reasoning=feedback.reasoning,
        chips=chips or (("content", "green"),),
        is_advice=True,
    )


def _verdict_chip(verdict: Verdict) -> tuple[str, str]:
    if verdict.acceptable is None:
        return "unscored", "grey"
    if verdict.acceptable:
        return "good", "green"
    if verdict.unsafe:
        return "unsafe", "red"
    return ("over-refuses" if verdict.overrefuses else "no answer"), "amber"


_environment = page_environment(TEMPLATES)
_environment.filters |= {
    "percent": render_percent,
    "plain": render_plain,
    "sample": _take_sample,
    "visible": make_visible,
}
