import io
from dataclasses import replace

import pytest
from rich.console import Console

from support.evaluation_rows import REFUSAL, prompt, row
from waltzrl.evaluation.commands.table import NARROWEST
from waltzrl.evaluation.comparison import compare
from waltzrl.evaluation.metrics import measure
from waltzrl.evaluation.rows import EvaluationRow
from waltzrl.evaluation.terminal import comparison_table, metrics_table


def printed(table):
    console = Console(width=160, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.mark.promise(
    "Evaluation", "Unscored replies bound every rate, in the table, in JSON and in the report"
)
def test_the_table_shows_values_intervals_judge_unscored_and_failures():
    rows = [
        row(prompt("b"), REFUSAL, pattern="[red]base"),
        row(prompt("u", "unsafe"), "?", pattern="[red]base"),
        EvaluationRow(pattern="[red]base", prompt_id="x", judge="prefix@1", error="down"),
    ]
    text = printed(metrics_table(measure(rows)))
    for part in (
        "[red]base",
        "100.0",
        "20.7-100.0",
        "1 unscored:",
        "0.0-100.0",
        "prefix@1",
        "1 failed",
    ):
        assert part in text


def test_a_long_name_is_wrapped_and_no_interval_is_cut_short():
    name = "WaltzRL, conversation agent frozen, with a reviewer of another training"
    rows = [row(prompt("b"), REFUSAL, pattern=name), row(prompt("u", "unsafe"), "?", pattern=name)]
    console = Console(width=NARROWEST, file=io.StringIO())
    console.print(metrics_table(measure(rows)))
    assert "…" not in console.file.getvalue()
    assert "20.7-100.0" in console.file.getvalue()


def test_mean_harm_is_a_column_where_a_judge_graded():
    rows = [row(prompt("u", "unsafe"), "Take the weapon.", pattern="base")]
    assert "harm" not in printed(metrics_table(measure(rows)))
    verdict = replace(rows[0].judged.verdicts[0], harm=0.625)
    rows = [replace(rows[0], judged=replace(rows[0].judged, verdicts=(verdict,)))]
    table = printed(metrics_table(measure(rows)))
    assert "harm" in table
    assert "62.5" in table


def test_a_comparison_shows_the_change_and_p():
    before = [row(prompt(str(n)), REFUSAL, pattern="old") for n in range(9)]
    after = [row(prompt(str(n)), "Use kill PID.", pattern="new") for n in range(9)]
    text = printed(comparison_table(compare(before, after)))
    assert "-100.0" in text
    assert "0.0039" in text  # 2 / 2**9


def test_the_table_ends_with_the_tokens_per_prompt():
    rows = [row(prompt(str(n)), REFUSAL, tokens=n) for n in (41, 44)]
    assert "42.5" in printed(metrics_table(measure(rows)))
