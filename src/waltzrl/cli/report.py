"""`waltzrl report`: one page about an evaluation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.cli.options import Cluster, Evaluation

if TYPE_CHECKING:
    from waltzrl.evaluation.rates import ClusterField


def report(
    evaluation: Evaluation,
    out: Annotated[Path | None, typer.Option(help="Folder of the page [EVALUATION].")] = None,
    run: Annotated[Path | None, typer.Option(help="A training run, for its curves.")] = None,
    title: Annotated[str, typer.Option()] = "Evaluation",
    cluster: Cluster = "cluster",
) -> None:
    """Write report.html and its pictures: table, plots, collaborations to read.

    **Example**

    `waltzrl report runs/evaluation --run runs/tiny --out reports/tiny`
    """
    print(f"written: {write_page(evaluation, out or evaluation, cluster, title, run)}")


def write_page(
    evaluation: Path, out: Path, by: "ClusterField", title: str, run: Path | None = None
) -> Path:
    """Write the report of an evaluation into `out`, with the curves and the recipe of a run."""
    from waltzrl.data.jsonl import read_text
    from waltzrl.evaluation import read_evaluation
    from waltzrl.evaluation.report import EvaluationReport, read_curve, write_report

    curves = {} if run is None else {run.name: read_curve(run)}
    settings = {} if run is None else {"recipe": read_text(run / "recipe.json")}
    rows = read_evaluation(evaluation)
    return write_report(
        out, EvaluationReport(title=title, rows=rows, curves=curves, settings=settings, by=by)
    )
