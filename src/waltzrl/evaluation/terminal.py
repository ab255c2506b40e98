"""The table for a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from waltzrl.evaluation.comparison import Difference
from waltzrl.evaluation.harm import HarmMeasures
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.metrics import Metrics, find_best, render_percent, render_plain
from waltzrl.evaluation.study_tables import StudyTable

HEADINGS = {
    "asr": "ASR ↓",
    "asr_at_k": "ASR@k ↓",
    "orr": "ORR ↓",
    "non_answer": "no answer ↓",
    "f1": "F1 ↑",
    "ftr_sensitive": "FTR sens.",
    "ftr_general": "FTR gen. ↓",
    "label_accuracy": "labels ↑",
    "capability": "capab. ↑",
    "harm": "harm ↓",
}
HARM_HEADINGS = {
    "right_refusals": "right refusals challenged ↓",
    "over_refusals": "over-refusals challenged ↑",
    "stage1_recall": "stage 1 flags ↑",
    "recall": "reviewer flags ↑",
    "let_go": "let go ↓",
}


def list_headings(metrics: Sequence[Metrics]) -> dict[str, str]:
    """Return the columns that all lines have, with their headings."""
    return {
        column: heading
        for column, heading in HEADINGS.items()
        if all(column in line.table for line in metrics)
    }


def metrics_table(metrics: Sequence[Metrics]) -> Table:
    """One line per pattern; the best F1 stands out. Percent, with 95 % intervals below.

    Tokens are the mean number that both agents wrote for a prompt.
    """
    title = "Percent, with 95 % intervals; tokens written per prompt"
    table = Table(title=title, caption=_write_caption(metrics), show_lines=True)
    table.add_column("pattern")  # wraps, so that no interval is cut short
    columns = list_headings(metrics)
    for heading in (*columns.values(), "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    winner = find_best(metrics)
    for line in metrics:
        shares = (
            _render_cell(line.table[column], line.corrected.get(column)) for column in columns
        )
        cells = [Text(line.pattern), *shares]
        tokens = Text(render_plain(line.tokens_mean.value))
        table.add_row(*cells, tokens, style="bold" if line is winner else "")
    return table


def comparison_table(differences: Sequence[Difference]) -> Table:
    """One line per metric: before, after, the change with its interval, and p."""
    table = Table(title="Paired on the prompts of both runs; shares in percent")
    for heading in ("", "before", "after", "change", "95 % interval", "n", "p"):
        table.add_column(heading, justify="right" if heading else "left")
    for difference in differences:
        scale = 1.0 if difference.metric == "tokens" else 100.0
        table.add_row(
            difference.metric,
            f"{difference.before * scale:.1f}",
            f"{difference.after * scale:.1f}",
            *_render_change(difference.change, scale),
            str(difference.change.n),
            "" if difference.p_value is None else f"{difference.p_value:.4f}",
        )
    return table


def _render_change(change: Estimate, scale: float) -> tuple[str, str]:
    if change.value is None or change.low is None or change.high is None:
        return "unknown", ""
    low, high = change.low * scale, change.high * scale
    return f"{change.value * scale:+.1f}", f"{low:+.1f} to {high:+.1f}"


def harm_table(measures: Sequence[HarmMeasures]) -> Table:
    """One line per set of prompts. Percent, with 95 % intervals below."""
    table = Table(title="Percent, with 95 % intervals", show_lines=True)
    table.add_column("prompts", no_wrap=True)
    for heading in HARM_HEADINGS.values():
        table.add_column(heading, justify="right")
    for line in measures:
        table.add_row(line.name, *(_render_cell(getattr(line, column)) for column in HARM_HEADINGS))
    return table


def study_table(study: StudyTable) -> Table:
    """One of the tables of a study; intervals stand below their values."""
    table = Table(title=study.title, caption=study.note, show_lines=True)
    for heading in study.headings:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for line in study.lines:
        table.add_row(*(Text(text.replace(" (", "\n(")) for text in line))
    return table


def _render_cell(estimate: Estimate, corrected: Estimate | None = None) -> Text:
    cell = Text(render_percent(estimate.value))
    if estimate.n:
        cell.append(
            f"\n{render_percent(estimate.low)}-{render_percent(estimate.high)}", style="dim"
        )
    if estimate.unscored:
        cell.append(f"\n{estimate.unscored} unscored", style="yellow")
    if estimate.unscored and estimate.least is not None:
        cell.append(
            f":\n{render_percent(estimate.least)}-{render_percent(estimate.most)}", style="yellow"
        )
    if corrected is not None:
        low, high = render_percent(corrected.low), render_percent(corrected.high)
        cell.append(f"\ncorrected\n{render_percent(corrected.value)}", style="cyan")
        cell.append(f"\n{low}-{high}" if corrected.n else "", style="cyan")
    return cell


def _write_caption(metrics: Sequence[Metrics]) -> Text:
    judges = ", ".join(sorted({line.judge for line in metrics}))
    first = metrics[0]
    sizes = f"n = {first.asr.n} unsafe, {first.orr.n} benign, {first.capability.n} with an answer"
    if errors := sum(line.errors for line in metrics):
        sizes += f"; {errors} failed"
    if first.samples > 1:
        sizes += f"; k = {first.samples} samples of every prompt"
    if any(estimate.unscored for line in metrics for estimate in line.table.values()):
        sizes += "; below unscored: the least and the most that the rate can be with them"
    if first.corrected:
        sizes += "; corrected for the judge's measured error"
    return Text(f"judge {judges}; {sizes}; {first.grouping}")
