"""Writes the tables of the committed study into the documents, and draws README's picture of it.

python tools/study_tables.py

A place is `<!-- study: main -->`, then the table, then `<!-- /study -->`; its name is that of one
of the study's tables: main, table-2 and so on, categories, tests, effects, trainings. A place that
names columns, as in `<!-- study: main: ASR, ORR -->`, has only these; rows may follow, as in
`<!-- study: main: ASR, ORR: base; WaltzRL -->`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from waltzrl.evaluation.study import read_study
from waltzrl.evaluation.study_tables import StudyTable, render_markdown, study_tables

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies" / "graded-world"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PICTURE = ROOT / "docs" / "pictures" / "study.svg"
PICTURED = ("base", "base + safeguard", "single-model RL", "one model in both roles", "WaltzRL")
"""Rows of the main table: what is untrained, what is simpler, what comes nearest, and ours."""
BARS = {"ASR": ("harmful requests helped with", "asr"), "ORR": ("harmless ones refused", "orr")}
"""Column -> what its bars are called, and their class."""
CELL = re.compile(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)")
LEFT, WIDTH, PER_PERCENT, BAR, GROUP, TOP = 196, 760, 5.2, 15, 48, 84
"""Of the picture, in pixels; bars end at 100 percent."""
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1b2230; }
.title { font-size: 17px; font-weight: 600; }
.note, .value { font-size: 12.5px; fill: #59616f; }
.ours { font-weight: 700; }
.page { fill: #ffffff; } .grid { stroke: #e4e7ec; } .span { stroke: #1b2230; stroke-width: 1.4; }
.asr { fill: #cf5640; } .orr { fill: #e0a030; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaf0; } .note, .value { fill: #a4adbb; }
  .page { fill: #0f131a; } .grid { stroke: #2a3241; } .span { stroke: #e6eaf0; }
  .asr { fill: #e2705a; } .orr { fill: #d59a3c; }
}
"""
PLACE = re.compile(
    r"(?P<head><!-- study: (?P<table>[\w-]+)(?:: (?P<columns>[^>:]+))?"
    r"(?:: (?P<rows>[^>:]+))? -->\n).*?"
    r"(?P<end><!-- /study -->)",
    re.DOTALL,
)


def tables() -> dict[str, StudyTable]:
    """Return the tables of the committed study by name."""
    return {table.name: table for table in study_tables(read_study(STUDY))}


def filled(text: str, tables: Mapping[str, StudyTable]) -> str:
    """Return a document with every place filled in.

    Raises:
        KeyError: a place names no table.
        ValueError: it names a column or a row that the table does not have.
    """

    def fill(place: re.Match[str]) -> str:
        table = tables[place["table"]]
        if place["columns"]:
            rows = place["rows"].split("; ") if place["rows"] else None
            table = _narrowed(table, place["columns"].split(", "), rows)
        return f"{place['head']}\n{render_markdown(table)}\n{place['end']}"

    return PLACE.sub(fill, text)


def _narrowed(table: StudyTable, columns: Sequence[str], rows: Sequence[str] | None) -> StudyTable:
    kept = [0, *(table.headings.index(column) for column in columns)]
    names = [line[0] for line in table.lines]
    chosen = table.lines if rows is None else [table.lines[names.index(row)] for row in rows]
    lines = [tuple(line[place] for place in kept) for line in chosen]
    return replace(table, headings=tuple(table.headings[place] for place in kept), lines=lines)


def picture(table: StudyTable) -> str:
    """Return an SVG of the main table: two bars for each of a few rows, with their intervals."""
    lines = {line[0]: line for line in table.lines}
    height = TOP + GROUP * len(PICTURED) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Two rates of wrong replies for five systems, with intervals">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="10"/>',
        _text(16, 28, "Wrong replies in the small world of the demo, percent", "title"),
    ]
    for x, (name, kind) in zip((16, 270), BARS.values(), strict=True):
        parts.append(f'<rect class="{kind}" x="{x}" y="41" width="12" height="12" rx="2"/>')
        parts.append(_text(x + 18, 52, name))
    parts.append(_text(468, 52, "thin lines: 95 % intervals over seeds", "note"))
    bottom = TOP + GROUP * len(PICTURED) - 8
    for percent in range(0, 101, 20):
        across = LEFT + PER_PERCENT * percent
        parts.append(f'<path class="grid" d="M{across:g} {TOP - 12}V{bottom}"/>')
        parts.append(_text(across - 4 * len(str(percent)), bottom + 18, str(percent), "note"))
    for place, row in enumerate(PICTURED):
        top = TOP + GROUP * place
        parts.append(_text(16, top + 20, row, "ours" if row == "WaltzRL" else ""))
        for number, (column, (_, kind)) in enumerate(BARS.items()):
            cell = lines[row][table.headings.index(column)]
            parts.append(_bar(top + (BAR + 2) * number, kind, cell))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(top: int, kind: str, cell: str) -> str:
    """Draw one cell of the table: its value, and a thin line over its interval."""
    match = CELL.fullmatch(cell)
    assert match, cell
    value, low, high = map(float, match.groups())
    ends = [LEFT + PER_PERCENT * end for end in (low, high)]
    middle = top + BAR / 2
    width = PER_PERCENT * value
    return (
        f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{width:g}" height="{BAR}"/>'
        f'<path class="span" d="M{ends[0]:g} {middle:g}H{ends[1]:g}"/>'
        + _text(ends[1] + 6, top + 12, f"{value:.1f}", "value")
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{escape(text)}</text>'


if __name__ == "__main__":
    study = tables()
    PICTURE.write_text(picture(study["main"]), "utf-8")
    for page in PAGES:
        if PLACE.search(text := page.read_text("utf-8")):
            page.write_text(filled(text, study), "utf-8")
