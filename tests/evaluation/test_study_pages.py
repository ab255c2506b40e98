"""The tables in the documents are those of the committed study."""

from pathlib import Path
from runpy import run_path

import pytest

TOOL = run_path(str(Path(__file__).parents[2] / "tools/study_tables.py"))
filled = TOOL["filled"]
PAGE = "Before.\n<!-- study: main -->\nold\n<!-- /study -->\nAfter.\n"


def test_a_place_is_filled_with_its_table_and_the_rest_stays():
    page = filled(PAGE, {"main": "| a |\n"})
    assert page == "Before.\n<!-- study: main -->\n\n| a |\n\n<!-- /study -->\nAfter.\n"
    assert filled(page, {"main": "| a |\n"}) == page


def test_a_place_without_a_table_is_an_error():
    with pytest.raises(KeyError, match="main"):
        filled(PAGE, {})


def test_the_documents_hold_the_tables_of_the_committed_study():
    for page in TOOL["PAGES"]:
        if TOOL["PLACE"].search(text := page.read_text("utf-8")):
            assert filled(text, TOOL["tables"]()) == text, f"run tools/study_tables.py: {page.name}"
