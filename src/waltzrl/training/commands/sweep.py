"""`waltzrl sweep`: one recipe with several values of its keys, compared."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from waltzrl.foundation.options import AsJson, Settings, open_terminal, print_json
from waltzrl.foundation.workers import Workers

if TYPE_CHECKING:
    from waltzrl.evaluation.sweep_report import Line, SweepResult
    from waltzrl.training.sweep import SweepPoint

RATES = {"validation/f1": "F1", "validation/asr": "ASR", "validation/orr": "ORR"}


def sweep(
    recipe: Annotated[Path, typer.Argument(help="A TOML file with data.validation.")],
    over: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE,VALUE", help="Values of a key; repeat for more keys."),
    ],
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of all runs [runs/NAME-OF-RECIPE-sweep].")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Runs at once, each a process.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train every combination of values, and compare the runs on the validation set.

    Each run is one of `waltzrl train`, in a folder named after its values; the same command
    resumes, and trains what more values add. A process has one CPU thread, unless the recipe's
    `compute.threads` says more. OUT/report.html has the table and the curves.

    **Examples**

    `waltzrl sweep recipes/tiny.toml --over stages.joint.algorithm.kl_weight=0.02,0.05`

    `waltzrl sweep recipes/tiny.toml --over stages.joint.reward=paper,signed --over seed=0,1,2`
    """
    from waltzrl.evaluation.sweep_report import sort_by_best, write_sweep_report
    from waltzrl.foundation.run_directory import RunDirectory
    from waltzrl.training.sweep import SweepJob, sweep_points

    points = sweep_points(recipe, settings or [], over)
    folder = out or Path("runs") / f"{recipe.stem}-sweep"
    with RunDirectory(folder):
        jobs = [SweepJob(name=p.name, recipe=p.recipe, folder=folder / p.name) for p in points]
        with Workers(min(processes, len(jobs)), quiet=as_json) as workers:
            workers.run(jobs)
        results = [_read_result(point, folder / point.name) for point in points]
        page = write_sweep_report(folder, results, f"Sweep of {recipe.stem}")
    if as_json:
        print_json([_convert_to_json(result) for result in sort_by_best(results)])
        return
    table = Table("point", "best at step", *RATES.values(), "last step", "F1")
    for result in sort_by_best(results):
        best = [_render_metric(result.best, name, "{:.1%}") for name in RATES]
        last = "diverged" if result.diverged else _render_metric(result.last, "step", "{:.0f}")
        f1 = _render_metric(result.last, "validation/f1", "{:.1%}")
        table.add_row(result.name, _render_metric(result.best, "step", "{:.0f}"), *best, last, f1)
    open_terminal().print(table)
    print(f"written: {page}")


def _read_result(point: "SweepPoint", run: Path) -> "SweepResult":
    from waltzrl.evaluation.sweep_report import SweepResult, read_validations
    from waltzrl.training.sweep import DIVERGED

    diverged = run / DIVERGED
    return SweepResult(
        name=point.name,
        setting=point.setting,
        values=point.values,
        run=run,
        curve=read_validations(run),
        diverged=diverged.read_text("utf-8").strip() if diverged.exists() else "",
    )


def _convert_to_json(result: "SweepResult") -> dict[str, object]:
    return {
        "point": result.name,
        "values": dict(result.values),
        "run": str(result.run),
        "best": result.best and _rename_rates(result.best),
        "last": result.last and _rename_rates(result.last),
        "diverged": result.diverged or None,
    }


def _rename_rates(line: "Line") -> dict[str, float]:
    return {name.replace("/", "_"): value for name, value in line.items()}


def _render_metric(line: "Line | None", name: str, form: str) -> str:
    return form.format(line[name]) if line is not None and name in line else "-"
