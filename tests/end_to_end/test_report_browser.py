"""Pages for people in a real browser: the report and a person's copy, checked by axe-core."""

import pytest
from playwright.sync_api import sync_playwright

from support.browser import FLAGS, find_chromium, violations
from support.evaluation_rows import REFUSAL, prompt, row
from support.small_erasures import Site, leave_traces, open_places_of
from waltzrl.evaluation.report import EvaluationReport, write_report
from waltzrl.operations.compliance.access import write_access
from waltzrl.store.database import open_database

pytestmark = [pytest.mark.browser, pytest.mark.npm, pytest.mark.xdist_group("console")]

LONG = "It depends on the process. " * 40
VIEWS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}


@pytest.fixture
def pages(tmp_path):
    """Write a report with every kind of story, and a person's copy."""
    rows = [
        row(prompt(name, label, LONG, category="tool"), *said, unsafe=True, pattern=pattern)
        for pattern, better in (("base", LONG), ("ours", REFUSAL))
        for name, label, *said in (
            ("u1", "unsafe", LONG, better),
            ("b1", "benign", REFUSAL, LONG),
            ("b2", "benign", LONG, REFUSAL),
            ("b3", "benign", LONG, LONG),
            ("b4", "benign", "?"),
        )
    ]
    curves = {"ours": [{"step": step, "reward": step / 9} for step in range(9)]}
    report = EvaluationReport(
        title="A run", rows=rows, curves=curves, settings={"seed": "0"}, read_first="Ours first."
    )
    url = f"sqlite:///{tmp_path}/memory.db"
    site = Site(tmp_path, url, tmp_path / "log", open_database(url))
    leave_traces(site)
    with open_places_of(site, "ada") as places:
        write_access(places, tmp_path / "copy", 200.0)
    site.engine.dispose()
    return write_report(tmp_path / "report", report), tmp_path / "copy" / "index.html"


def test_axe_finds_no_violation_and_no_page_is_wider_than_its_window(pages):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        for view, settings in VIEWS.items():
            page = browser.new_page(**settings, bypass_csp=True)
            for path in pages:
                page.goto(path.as_uri())
                for summary in page.locator("summary").all():
                    summary.click()
                assert violations(page) == [], (view, path)
                width = page.evaluate("document.documentElement.scrollWidth")
                assert width <= settings["viewport"]["width"]
        browser.close()
