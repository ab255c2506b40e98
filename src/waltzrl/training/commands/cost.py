"""`waltzrl cost`: what training, evaluation and serving cost."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from waltzrl.errors import InputError
from waltzrl.foundation.options import AsJson, Settings, open_terminal, print_json
from waltzrl.training.progress import showing_steps

if TYPE_CHECKING:
    from waltzrl.budget import LedgerContents, Total
    from waltzrl.budget.estimate import CostRange, RunCost
    from waltzrl.budget.forecast import ForecastLine
    from waltzrl.training.recipe import Recipe

NARROWEST = 110
"""Columns that the table needs."""
ESTIMATE = "cost-estimate.json"
"""Name of an estimate in the folder of the run that it is about."""

cost = typer.Typer(
    help="What training, evaluation and serving cost: tokens, time, energy, money.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@cost.command()
def estimate(
    recipe: Annotated[Path, typer.Argument(help="A TOML file, such as recipes/tiny.toml.")],
    settings: Settings = None,
    like: Annotated[
        Path | None, typer.Option(help="A run whose steps were measured, finished or not.")
    ] = None,
    pilot: Annotated[
        int, typer.Option(min=0, help="Train this many steps of every stage first, and measure.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Run directory to keep it in, for `waltzrl cost report`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what a recipe's run will cost: tokens, hours, memory, US dollars, with a range.

    Without a measured run only the bounds of memory and tokens are known.

    **Examples**

    `waltzrl cost estimate recipes/tiny.toml --pilot 3 --set budget.usd_per_hour=2.5`

    `waltzrl cost estimate recipes/tiny.toml --like runs/seed-1 --out runs/seed-2`
    """
    from waltzrl.foundation.files import write_json
    from waltzrl.training.recipe import load_recipe

    loaded = load_recipe(recipe, settings or [])
    # With torch: after the recipe is read, so that what is wrong there is said at once.
    from waltzrl.training.costs import estimate_costs
    from waltzrl.training.opening import plan_training

    plan = plan_training(loaded)
    with find_measured_run(loaded, like, pilot, quiet=as_json) as measured:
        expected = estimate_costs(loaded, plan, measured)
    whole = {"currency": "USD", "gigabytes": plan.gigabytes, **asdict(expected)}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / ESTIMATE, whole)
    if as_json:
        print_json(whole)
    else:
        show_estimate(expected, plan.gigabytes)


@contextmanager
def find_measured_run(
    recipe: "Recipe", like: Path | None, pilot_steps: int, *, quiet: bool
) -> Iterator[Path | None]:
    """Yield the folder of the run to extrapolate from: one that is there, or a pilot."""
    if like is not None or not pilot_steps:
        yield like
        return
    from waltzrl.training.costs import make_pilot
    from waltzrl.training.opening import train

    with TemporaryDirectory(prefix="waltzrl-pilot-") as folder:
        with showing_steps(quiet=quiet) as show:
            asyncio.run(train(make_pilot(recipe, pilot_steps), Path(folder), show))
        yield Path(folder)


def show_estimate(expected: "RunCost", gigabytes: float | None) -> None:
    table = Table(title="Estimated cost: expected (from - to)")
    for heading in ("stage", "steps", "measured", "tokens", "hours", "USD"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for stage in expected.stages:
        bound = stage.most_sampled_tokens
        at_most = "unknown" if bound is None else f"at most {bound:,}"
        table.add_row(
            stage.name,
            f"{stage.steps:,}",
            f"{stage.measured_steps:,}",
            at_most if stage.tokens is None else _render_range(stage.tokens),
            _render_range(stage.hours),
            _render_range(stage.usd),
        )
    sums = (_render_range(each) for each in (expected.tokens, expected.hours, expected.usd))
    table.add_row("with start and end", "", "", *sums, style="bold")
    console = open_terminal(NARROWEST)
    console.print(table)
    peak = "unknown" if gigabytes is None else f"{gigabytes:.3g} GB"
    console.print(f"peak of memory: {peak}")
    if expected.hours is None:
        text = "no step was measured: name a run with --like, or train a few steps with --pilot 3"
        console.print(text)


def _render_range(amount: "CostRange | None") -> str:
    if amount is None:
        return "unknown"
    expected, low, high = map(_render_number, (amount.expected, amount.low, amount.high))
    return f"{expected} ({low} - {high})"


def _render_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@cost.command()
def report(
    places: Annotated[
        list[Path], typer.Argument(help="Folders of runs, evaluations or gateways, or ledgers.")
    ],
    by: Annotated[
        Literal["role", "model", "key", "month", "activity", "stage"],
        typer.Option(help="What a line of the table is about."),
    ] = "role",
    plot: Annotated[Path | None, typer.Option(help="Draw the cost over time here, a PNG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Sum up ledgers: tokens, machine hours, energy, US dollars.

    What has no known price is counted apart and is in no sum.

    **Examples**

    `waltzrl cost report runs/tiny`

    `waltzrl cost report runs/gateway/costs --by key --json`
    """
    from waltzrl.budget import LEDGER, ledgers_in, read_ledger, total, totals

    contents = read_ledger(*[path for place in places for path in ledgers_in(place)])
    if contents.damaged and not contents.charges:
        raise InputError(
            f"{', '.join(map(str, places))}: none of {contents.damaged} lines is a charge; name a "
            f"folder of a run, an evaluation or a gateway, or its {LEDGER}"
        )
    lines = totals(contents.charges, by)
    whole = total(contents.charges)
    if plot is not None:
        from waltzrl.budget.plot import draw_costs

        draw_costs(contents.charges, plot)
    if as_json:
        print_json(
            {
                "currency": "USD",
                "by": by,
                "groups": {name: asdict(each) for name, each in lines.items()},
                "total": asdict(whole),
                "repeated": {
                    "charges": len(contents.repeated),
                    "usd": total(contents.repeated).usd,
                },
                "damaged_lines": contents.damaged,
                "estimated": _read_estimates(places),
            }
        )
        return
    table = Table(title=f"Cost by {by}, US dollars")
    for heading in (by, "charges", "tokens in", "tokens out", "hours", "GPU hours", "kWh", "USD"):
        table.add_column(heading, justify="left" if heading == by else "right")
    for name, each in lines.items():
        table.add_row(name, *_render_total(each))
    table.add_row("total", *_render_total(whole), style="bold")
    console = open_terminal(NARROWEST)
    console.print(table)
    for note in [*_list_notes(contents, whole), *_compare_estimates(places)]:
        console.print(note)


def _read_estimates(places: list[Path]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return, for each run that has an estimate, what was estimated and what was measured."""
    from waltzrl.budget import ledgers_in, read_ledger, total

    compared = {}
    for place in places:
        if not (place / ESTIMATE).exists():
            continue
        estimated = json.loads((place / ESTIMATE).read_bytes())
        spent = total(read_ledger(*ledgers_in(place)).charges)
        measured = {
            "tokens": spent.input_tokens + spent.output_tokens,
            "hours": spent.seconds / 3600,
            "usd": spent.usd if spent.is_complete else None,
        }
        compared[str(place)] = {
            name: {
                "estimated": None if estimated[name] is None else estimated[name]["expected"],
                "measured": value,
            }
            for name, value in measured.items()
        }
    return compared


def _compare_estimates(places: list[Path]) -> Iterator[str]:
    for place, amounts in _read_estimates(places).items():
        for name, pair in amounts.items():
            before, after = pair["estimated"], pair["measured"]
            if before is not None and after:
                error = before / after - 1
                yield f"{place}: {name} {after:,.4g}, estimated {before:,.4g} ({error:+.0%})"


def _render_total(total: "Total") -> list[str]:
    return [
        f"{total.charges:,}",
        f"{total.input_tokens:,}",
        f"{total.output_tokens:,}",
        f"{total.seconds / 3600:.4g}",
        f"{total.gpu_seconds / 3600:.4g}",
        "" if total.joules is None else f"{total.joules / 3.6e6:.4g}",
        f"{total.usd:.4g}" + ("" if total.is_complete else " + unknown"),
    ]


def _list_notes(contents: "LedgerContents", whole: "Total") -> list[str]:
    """Return what is not in the sums."""
    notes = []
    if whole.unpriced_tokens:
        notes.append(f"{whole.unpriced_tokens:,} tokens have no known price and are in no sum")
    if whole.uncounted:
        notes.append(f"{whole.uncounted:,} replies whose server did not count tokens are in no sum")
    if contents.repeated:
        from waltzrl.budget import total

        spent = total(contents.repeated).usd
        number = len(contents.repeated)
        notes.append(f"charged again after a restart: {number} steps, USD {spent:.4g}, not summed")
    if contents.damaged:
        notes.append(
            f"lines that cannot be read: {contents.damaged}; a process was killed in a write"
        )
    return notes


@cost.command()
def roi(
    numbers: Annotated[Path, typer.Argument(help="Your numbers, as in recipes/roi.toml.")],
    evaluation: Annotated[Path, typer.Argument(help="Folder of `waltzrl evaluate`.")],
    before: Annotated[str, typer.Option(help="Pattern without it.")] = "base",
    after: Annotated[str, typer.Option(help="Pattern with it.")] = "guarded",
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Work out what safety is worth, from your own numbers and the rates of an evaluation.

    The range is that of the 95 % intervals of both rates; of your numbers it has none.

    **Example**

    `waltzrl cost roi recipes/roi.toml runs/evaluation --set requests_per_month=2000000`
    """
    from waltzrl.evaluation.costs import measure_return

    result = measure_return(numbers, settings or [], evaluation, (before, after))
    if as_json:
        print_json({"currency": "USD", **asdict(result)})
        return
    table = Table(title=f"{after} against {before}: a month, US dollars")
    for heading in ("", "expected", "low end", "high end"):
        table.add_column(heading, justify="right" if heading else "left")
    ends = (result.expected, result.low, result.high)
    for name in asdict(result.expected):
        values = [getattr(end, name) for end in ends]
        never = "never" if name == "months_to_repay" else "unknown"
        cells = [never if value is None else f"{value:,.2f}" for value in values]
        table.add_row(name.replace("_", " "), *cells)
    open_terminal().print(table)


@cost.command()
def forecast(
    numbers: Annotated[Path, typer.Argument(help="Your numbers, as in recipes/forecast.toml.")],
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Forecast what serving will cost a day, a month and a year, from your own numbers.

    **Examples**

    15 specialists with 10,000 queries a day each, and no model that reviews:

    `waltzrl cost forecast recipes/forecast.toml`

    A model reviews every draft, and one draft in ten is revised:

    `waltzrl cost forecast recipes/forecast.toml --set revised_share=0.1
    --set 'review={model="gpt-4o-mini",input_tokens=1000,output_tokens=80}'`
    """
    from waltzrl.budget import forecast as forecasts

    result = forecasts.forecast(forecasts.read_numbers(numbers, settings or []))
    if as_json:
        print_json({"currency": "USD", **asdict(result)})
        return
    day = f"{result.usd_per_day:,.2f}"
    sums = [(line.name, line.arithmetic, line.usd_per_day) for line in result.lines]
    sums.append(("a day", _render_sum(result.lines), result.usd_per_day))
    if overhead := [line for line in result.lines if line.is_overhead]:
        name = "of that reviews and revisions"
        sums.append((name, _render_sum(overhead), result.overhead_usd_per_day))
    sums.append(("a month", f"{forecasts.DAYS_OF_MONTH} days * {day}", result.usd_per_month))
    sums.append(("a year", f"{forecasts.DAYS_OF_YEAR} days * {day}", result.usd_per_year))
    console = open_terminal()
    for name, arithmetic, usd in sums:
        console.print(f"{name}: {arithmetic} = {usd:,.2f} USD", soft_wrap=True)


def _render_sum(lines: Sequence["ForecastLine"]) -> str:
    return " + ".join(f"{line.usd_per_day:,.2f}" for line in lines)
