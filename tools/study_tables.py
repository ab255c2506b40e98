"""Writes the tables of the committed study into the documents, between markers.

python tools/study_tables.py

A place is `<!-- study: main -->`, then the table, then `<!-- /study -->`; its name is that of one
of the study's tables: main, table-2 and so on, categories, tests, effects, trainings. A place that
names columns, as in `<!-- study: main: ASR, ORR -->`, has only these.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from waltzrl.evaluation.study import read_study
from waltzrl.evaluation.study_tables import StudyTable, markdown, study_tables

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies" / "graded-world"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PLACE = re.compile(
    r"(?P<head><!-- study: (?P<table>[\w-]+)(?:: (?P<columns>[^>]+))? -->\n).*?"
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
        ValueError: it names a column that the table does not have.
    """

    def fill(place: re.Match[str]) -> str:
        table = tables[place["table"]]
        if place["columns"]:
            table = _narrowed(table, place["columns"].split(", "))
        return f"{place['head']}\n{markdown(table)}\n{place['end']}"

    return PLACE.sub(fill, text)


def _narrowed(table: StudyTable, columns: Sequence[str]) -> StudyTable:
    kept = [0, *(table.headings.index(column) for column in columns)]
    lines = [tuple(line[place] for place in kept) for line in table.lines]
    return replace(table, headings=tuple(table.headings[place] for place in kept), lines=lines)


if __name__ == "__main__":
    study = tables()
    for page in PAGES:
        if PLACE.search(text := page.read_text("utf-8")):
            page.write_text(filled(text, study), "utf-8")
