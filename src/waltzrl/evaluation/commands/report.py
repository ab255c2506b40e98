"""`waltzrl report`: one page about an evaluation or a study."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.errors import InputError
from waltzrl.evaluation.commands.table import show_study_tables
from waltzrl.foundation.options import Cluster, JudgeErrors

if TYPE_CHECKING:
    from waltzrl.evaluation.rates import ClusterField


def report(  # noqa: PLR0913, PLR0917 - each parameter is an option
    evaluation: Annotated[
        Path, typer.Argument(help="Folder of `waltzrl evaluate` or `waltzrl study`.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder of the page [EVALUATION].")] = None,
    run: Annotated[Path | None, typer.Option(help="A training run, for its curves.")] = None,
    title: Annotated[str | None, typer.Option(help="[Evaluation or Study]")] = None,
    cluster: Cluster = "cluster",
    judge_errors: JudgeErrors = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a study's tables as Markdown instead.")
    ] = False,
    card: Annotated[
        bool, typer.Option("--card", help="Write card.md and card.json instead, to be published.")
    ] = False,
    trained_on: Annotated[
        list[Path] | None,
        typer.Option(help="Prompts that the agents learned from, for --card; may be repeated."),
    ] = None,
) -> None:
    """Write report.html and its pictures: table, plots, collaborations to read.

    A card has the data sheets and licences of the sets, what of them is among the training prompts,
    and the results, and quotes no prompt, no reply and no address of a server.

    **Examples**

    `waltzrl report runs/evaluation --run runs/tiny --out reports/tiny`

    `waltzrl report runs/evaluation --card --trained-on train.jsonl --out cards/tiny`

    `waltzrl report runs/study --markdown`
    """
    from waltzrl.evaluation.study import STUDY

    folder = out or evaluation
    if trained_on and not card:
        raise InputError("--trained-on is for a card; add --card")
    if card and (run is not None or as_markdown):
        raise InputError("a card has no curves and no tables of a study; drop --run and --markdown")
    if card:
        _write_card(evaluation, folder, title, trained_on or [], (cluster, judge_errors))
        return
    if not (evaluation / STUDY).exists() and not as_markdown:
        page = write_page(evaluation, folder, cluster, judge_errors, title or "Evaluation", run)
        print(f"written: {page}")
        return

    from waltzrl.evaluation.study import read_study
    from waltzrl.evaluation.study_report import write_study_report
    from waltzrl.evaluation.study_tables import study_tables

    study = read_study(evaluation)
    if as_markdown:
        show_study_tables(study_tables(study), as_markdown=True)
    else:
        print(f"written: {write_study_report(folder, study, title or 'Study')}")


def show_study(folder: Path) -> None:
    """Print the tables of a study."""
    from waltzrl.evaluation.study import read_study
    from waltzrl.evaluation.study_tables import study_tables

    show_study_tables(study_tables(read_study(folder)))


def _write_card(
    evaluation: Path,
    out: Path,
    title: str | None,
    trained_on: list[Path],
    measuring: "tuple[ClusterField, Path | None]",
) -> None:
    from waltzrl.evaluation import read_evaluation
    from waltzrl.evaluation.card import make_card, write_card
    from waltzrl.evaluation.correction import read_measured_judge

    by, errors = measuring
    card = make_card(
        title or evaluation.resolve().name,
        read_evaluation(evaluation),
        trained_on,
        by,
        read_measured_judge(errors),
    )
    for path in write_card(out, card):
        print(f"written: {path}")


def write_page(
    evaluation: Path,
    out: Path,
    by: "ClusterField",
    judge_errors: Path | None,
    title: str,
    run: Path | None = None,
) -> Path:
    """Write the report of an evaluation into `out`, with the curves and the recipe of a run."""
    from waltzrl.evaluation import read_evaluation
    from waltzrl.evaluation.correction import read_measured_judge
    from waltzrl.evaluation.report import EvaluationReport, read_curve, write_report
    from waltzrl.foundation.jsonl import read_text

    curves = {} if run is None else {run.name: read_curve(run)}
    settings = {} if run is None else {"recipe": read_text(run / "recipe.json")}
    rows = read_evaluation(evaluation)
    report = EvaluationReport(
        title=title,
        rows=rows,
        curves=curves,
        settings=settings,
        by=by,
        judge=read_measured_judge(judge_errors),
    )
    return write_report(out, report)
