"""Writes the tables of the committed study into the documents, between markers.

python tools/study_tables.py

A place is `<!-- study: main -->`, then the table, then `<!-- /study -->`; its name is that of one
of the study's tables: main, table-2 and so on, categories, tests, effects, trainings.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from waltzrl.evaluation.study import read_study
from waltzrl.evaluation.study_tables import markdown, study_tables

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies" / "graded-world"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PLACE = re.compile(r"(<!-- study: ([\w-]+) -->\n).*?(<!-- /study -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Return the tables of the committed study as Markdown, by name."""
    return {table.name: markdown(table) for table in study_tables(read_study(STUDY))}


def filled(text: str, tables: Mapping[str, str]) -> str:
    """Return a document with every place filled in.

    Raises:
        KeyError: a place names no table.
    """
    return PLACE.sub(lambda place: f"{place[1]}\n{tables[place[2]]}\n{place[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        if PLACE.search(text := page.read_text("utf-8")):
            page.write_text(filled(text, tables()), "utf-8")
