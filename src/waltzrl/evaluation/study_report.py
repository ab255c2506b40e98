"""A self-contained HTML page about a study: its tables, and the seeds as dots."""

from pathlib import Path

from waltzrl.evaluation.plots import plot_seed_dots
from waltzrl.evaluation.report import render_page, write_page
from waltzrl.evaluation.study import Study
from waltzrl.evaluation.study_tables import study_tables


def write_study_report(folder: Path, study: Study, title: str) -> Path:
    """Write `report.html` and `seeds.png` into `folder`; return the page's path.

    Raises:
        InputError: the folder cannot be written.
    """
    values = {row: study.having([row]).values(row, "f1") for row in study.identity.rows}
    dots = plot_seed_dots({row: by_seed for row, by_seed in values.items() if by_seed}, "F1")
    page = render_page(
        "study.html",
        title=title,
        identity=study.identity,
        tables=study_tables(study),
        plot=dots,
    )
    return write_page(folder, page, {"seeds": dots})
