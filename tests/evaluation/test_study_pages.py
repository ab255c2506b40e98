"""The tables in the documents are those of the committed study."""

import re
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import pytest

from waltzrl.evaluation.study_tables import StudyTable

ROOT = Path(__file__).parents[2]
TOOL = run_path(str(ROOT / "tools/study_tables.py"))
filled = TOOL["filled"]
PAGE = "Before.\n<!-- study: main -->\nold\n<!-- /study -->\nAfter.\n"
TABLES = {
    "main": StudyTable(
        name="main",
        title="Main",
        note="Two seeds.",
        headings=("", "ASR", "no answer", "F1"),
        lines=[("base", "50", "1", "40")],
    )
}


@pytest.fixture(scope="module")
def committed():
    """Return the tables of the committed study."""
    return TOOL["tables"]()


def test_a_place_is_filled_with_its_table_and_the_rest_stays():
    page = filled(PAGE, TABLES)
    assert page == (
        "Before.\n<!-- study: main -->\n\n"
        "|  | ASR | no answer | F1 |\n| --- | ---: | ---: | ---: |\n| base | 50 | 1 | 40 |\n\n"
        "Two seeds.\n\n<!-- /study -->\nAfter.\n"
    )
    assert filled(page, TABLES) == page


def test_a_place_that_names_columns_has_only_these():
    page = filled(PAGE.replace("main", "main: F1, no answer"), TABLES)
    assert "|  | F1 | no answer |\n| --- | ---: | ---: |\n| base | 40 | 1 |\n" in page
    assert filled(page, TABLES) == page


def test_a_place_that_names_rows_has_only_these():
    tables = {"main": replace(TABLES["main"], lines=[("base", "50", "1", "40"), ("ours",) * 4])}
    page = filled(PAGE.replace("main", "main: F1: ours"), tables)
    assert "|  | F1 |\n| --- | ---: |\n| ours | ours |\n" in page
    assert "base" not in page
    assert filled(page, tables) == page


def test_a_place_without_a_table_or_column_is_an_error():
    with pytest.raises(KeyError, match="main"):
        filled(PAGE, {})
    with pytest.raises(ValueError, match="not in tuple"):
        filled(PAGE.replace("main", "main: ORR"), TABLES)
    with pytest.raises(ValueError, match="not in list"):
        filled(PAGE.replace("main", "main: ASR: ours"), TABLES)


def test_the_documents_hold_the_tables_of_the_committed_study(committed):
    for page in TOOL["PAGES"]:
        if TOOL["PLACE"].search(text := page.read_text("utf-8")):
            assert filled(text, committed) == text, f"run tools/study_tables.py: {page.name}"


def test_the_picture_of_readme_is_that_of_the_committed_study_and_is_told_in_words(committed):
    drawn = TOOL["picture"](committed["main"])
    assert TOOL["PICTURE"].read_text("utf-8") == drawn, "run tools/study_tables.py"
    start, _, _ = (ROOT / "README.md").read_text("utf-8").partition("## ")
    words = re.search(r"!\[([^]]+)\]\(docs/pictures/study\.svg\)", start)[1]
    values = re.findall(r'class="value"[^>]*>([\d.]+)<', drawn)
    assert re.findall(r"\d+\.\d", words) == [*values[:2], *values[-2:]]  # of base and of WaltzRL
