"""`waltzrl evolve`: candidates that are written, measured, and judged by a gate."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from waltzrl.foundation.options import EVALUATE, AsJson, Server, open_terminal, print_json

if TYPE_CHECKING:
    from waltzrl_evolution.opening import EvolutionReport, EvolutionSettings
    from waltzrl_evolution.run import Budget

evolve = typer.Typer(
    help="Evolve rules, prompts and programs behind a gate: no candidate that is less safe passes.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Development = Annotated[
    list[str], typer.Argument(help="Sets of labelled prompts, as for `waltzrl evaluate`.")
]
HeldOut = Annotated[
    list[str], typer.Option(help="Set that is only measured at the end; may be repeated.")
]
Out = Annotated[Path, typer.Option(help="Folder of the run; the same command resumes.")]
Memory = Annotated[str, typer.Option(help="Database with the pool.")]
Limit = Annotated[int, typer.Option(min=1, help="Prompts of each development set.")]
Generations = Annotated[int, typer.Option(min=1, help="Rounds of candidates.")]
Candidates = Annotated[int, typer.Option(min=1, help="Candidates of a generation.")]
Minutes = Annotated[float | None, typer.Option(help="Stop after so many minutes [no limit].")]
Seed = Annotated[int, typer.Option(help="Of all choices.")]
Start = Annotated[
    Path | None, typer.Option(help="Folder of the files to begin with [what a gateway loads].")
]
DEFAULT_MEMORY = "sqlite:///runs/memory.db"


@evolve.command("rules")
def evolve_rules(  # noqa: PLR0913, PLR0917 - each parameter is an option
    development: Development,
    held_out: HeldOut,
    out: Out,
    start: Start = None,
    generations: Generations = 4,
    candidates: Candidates = 6,
    minutes: Minutes = None,
    limit: Limit = 1000,
    seed: Seed = 0,
    memory: Memory = DEFAULT_MEMORY,
    as_json: AsJson = False,
) -> None:
    """Evolve rule packs and the threshold, without a model.

    Candidates see what fails on one half of the development prompts, and are scored and judged on
    the other. The best is compared with the beginning on the held-out prompts.

    **Example**

    `waltzrl evolve rules harmful.jsonl benign.jsonl --held-out other.jsonl --out runs/rules`
    """
    from waltzrl_evolution import opening as evolution

    budget = _make_budget(generations, candidates, minutes)
    settings = _make_settings(development, held_out, out, memory, limit, seed)
    report = asyncio.run(evolution.evolve_rules(start, settings, budget))
    _print_report(report, out, as_json=as_json)


@evolve.command("wording")
def evolve_wording(  # noqa: PLR0913, PLR0917 - each parameter is an option
    development: Development,
    held_out: HeldOut,
    out: Out,
    model: Annotated[str, typer.Option(help="That reviews: weights, or a name on the server.")],
    server: Server = None,
    start: Start = None,
    generations: Generations = 4,
    candidates: Candidates = 6,
    minutes: Minutes = None,
    limit: Limit = 200,
    seed: Seed = 0,
    memory: Memory = DEFAULT_MEMORY,
    as_json: AsJson = False,
) -> None:
    """Evolve the prompts with which a model reviews; it is asked about every prompt.

    **Example**

    `waltzrl evolve wording harmful.jsonl benign.jsonl --held-out other.jsonl --out runs/wording
    --model qwen --server http://localhost:8000/v1`
    """
    from waltzrl_evolution import opening as evolution

    budget = _make_budget(generations, candidates, minutes)
    settings = _make_settings(development, held_out, out, memory, limit, seed)
    report = asyncio.run(evolution.evolve_wording(model, server, start, settings, budget))
    _print_report(report, out, as_json=as_json)


@evolve.command("program")
def evolve_program(  # noqa: PLR0913, PLR0917 - each parameter is an option
    development: Development,
    held_out: HeldOut,
    out: Out,
    start: Annotated[Path, typer.Option(help="Folder with agent.py, the program to begin with.")],
    model: Annotated[str, typer.Option(help="That writes: weights, or a name on the server.")],
    server: Server = None,
    allow_missing: Annotated[
        list[str] | None, typer.Option(help="A layer that the sandbox may lack; may be repeated.")
    ] = None,
    generations: Generations = 3,
    candidates: Candidates = 3,
    minutes: Minutes = None,
    limit: Limit = 200,
    seed: Seed = 0,
    memory: Memory = DEFAULT_MEMORY,
    as_json: AsJson = False,
) -> None:
    """Evolve a Python program that replies, in a sandbox, with a model that writes.

    The sets hold tasks, prompts with an `answer`, and labelled prompts for the gate.

    **Example**

    `waltzrl evolve program tasks.jsonl harmful.jsonl benign.jsonl --held-out other.jsonl
    --start agent --model qwen --server http://localhost:8000/v1 --out runs/program`
    """
    from waltzrl_evolution import opening as evolution

    budget = _make_budget(generations, candidates, minutes)
    settings = _make_settings(development, held_out, out, memory, limit, seed)
    layers = allow_missing or []
    run = evolution.evolve_program(model, server, start, settings, budget, layers)
    _print_report(asyncio.run(run), out, as_json=as_json)


@evolve.command()
def show(out: Out, memory: Memory = DEFAULT_MEMORY, as_json: AsJson = False) -> None:
    """Show every decision of a run, and why.

    **Example**

    `waltzrl evolve show --out runs/rules`
    """
    import msgspec

    from waltzrl.store.database import existing_database
    from waltzrl.store.memory.store import MemoryStore
    from waltzrl_evolution import TrajectoryPool
    from waltzrl_evolution.opening import run_name

    pool = TrajectoryPool(MemoryStore(existing_database(memory), scrub=str), run_name(out))
    if as_json:
        print_json(msgspec.to_builtins(pool.decisions))
        return
    table = Table("", "operator", "parents", "ruling", "change", "reason")
    for each in pool.decisions:
        parents = ", ".join(each.parents)
        table.add_row(each.id, each.operator, parents, each.ruling, each.change, each.reason)
    open_terminal().print(table)


def _make_settings(
    development: list[str], held_out: list[str], out: Path, memory: str, limit: int, seed: int
) -> "EvolutionSettings":
    from waltzrl_evolution.darwin import read_demands
    from waltzrl_evolution.opening import EvolutionSettings

    return EvolutionSettings(
        development=tuple(development),
        held_out=tuple(held_out),
        out=out,
        memory=memory,
        limit=limit,
        seed=seed,
        least_compliance=read_demands(os.environ).least_compliance,
    )


def _make_budget(generations: int, candidates: int, minutes: float | None) -> "Budget":
    from waltzrl_evolution.darwin import read_demands
    from waltzrl_evolution.run import Budget

    return Budget(
        generations=generations,
        candidates=candidates,
        seconds=None if minutes is None else 60 * minutes,
        most_unsafe=read_demands(os.environ).most_unsafe,
    )


def _print_report(report: "EvolutionReport", out: Path, *, as_json: bool) -> None:
    from dataclasses import asdict

    import msgspec

    from waltzrl.evaluation import comparison_table
    from waltzrl_evolution.opening import held_out_evaluation

    result = report.result
    if as_json:
        held_out = {name: [asdict(d) for d in each] for name, each in report.held_out.items()}
        best = msgspec.to_builtins(result.best)
        print_json({"best": best, "why": result.why, "worth": report.worth, "held_out": held_out})
        return
    console = open_terminal()
    console.print(
        f"{result.why}; the best is {result.best.id}: score {result.best.score:.4f} on "
        f"{len(report.cases.hidden)} hidden prompts, baseline {result.baseline.score:.4f}; "
        f"{report.near_duplicates} development prompts were near duplicates of held-out ones"
    )
    for name, differences in report.held_out.items():
        if differences:
            console.print(name)
            console.print(comparison_table(differences))
    console.print(report.worth)
    if report.promoted is not None:
        before, after = (held_out_evaluation(out, each) for each in (result.baseline, result.best))
        # A gateway has rules as well, with which a program was not evaluated.
        gate = f"--before {before} --after {after}"
        if report.metric == "capability":
            gate = f'--override "{report.worth}"'
        console.print(
            f"to release it: waltzrl release propose {report.promoted} {gate}",
            soft_wrap=True,
        )


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.add_typer(evolve, name="evolve", rich_help_panel=EVALUATE)
