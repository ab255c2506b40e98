"""Pages for people in a real browser: reports and a person's copy, checked by axe-core."""

from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from support.browser import FLAGS, find_chromium, violations
from support.evaluation_rows import REFUSAL, prompt, row
from support.small_erasures import Site, leave_traces, open_places_of
from support.small_studies import small_study
from waltzrl.evaluation.report import EvaluationReport, write_report
from waltzrl.evaluation.study import StudyClaim
from waltzrl.evaluation.study_report import write_study_report
from waltzrl.evaluation.sweep_report import SweepResult, write_sweep_report
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
    """Write a report with every kind of story, a person's copy, and reports of many runs."""
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
    curves = {"ours": [{"step": step, "reward/conversation_mean": step / 9} for step in range(9)]}
    report = EvaluationReport(
        title="A run", rows=rows, curves=curves, settings={"seed": "0"}, read_first="Ours first."
    )
    url = f"sqlite:///{tmp_path}/memory.db"
    site = Site(tmp_path, url, tmp_path / "log", open_database(url))
    leave_traces(site)
    with open_places_of(site, "ada") as places:
        write_access(places, tmp_path / "copy", 200.0)
    site.engine.dispose()
    rows = {"base + safeguard": [(40, 10)] * 3, "a better pair": [(10, 30), (9, 9), (5, 2)]}
    claims = (StudyClaim("a pair lowers ASR", *rows, "asr", False, minus="orr"),)
    study = small_study(rows, reference="base + safeguard", claims=claims)
    return (
        write_report(tmp_path / "report", report),
        tmp_path / "copy" / "index.html",
        write_study_report(tmp_path / "study", study, "A study"),
        write_sweep_report(tmp_path / "sweep", swept(), "A sweep"),
    )


def swept():
    """Return points of two settings, of which one diverged before its first validation."""
    curve = [{"step": 10 * n, "validation/f1": n / 9, "validation/asr": 0.1} for n in range(9)]
    return [
        SweepResult(
            name=f"optimizer.learning_rate={rate},seed={seed}",
            setting=f"optimizer.learning_rate={rate}",
            values={"optimizer.learning_rate": rate, "seed": seed},
            run=Path("runs"),
            curve=[] if diverged else curve,
            diverged=diverged,
        )
        for rate, seed, diverged in (
            (1e-6, 0, ""),
            (1e-6, 1, "step 3: the loss is nan"),
            (2, 0, ""),
        )
    ]


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
