"""`waltzrl verify`: checks of an installation and a recipe."""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from waltzrl.cli.options import AsJson, Settings, print_json

if TYPE_CHECKING:
    from waltzrl.build.verify import Verification

NO_UPSTREAM: dict[str, object] = {"upstream": {"url": "http://localhost:8000/v1"}}
"""A recipe needs an upstream; none is asked."""


def verify(
    recipe: Annotated[
        Path | None, typer.Argument(help="TOML file of a gateway; default: rules review.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of .jsonl files: prompt and label; default: our own prompts."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts of a set at most.")] = 200,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Check that a gateway's reviewer works and does no harm; exits with 1 if it fails a check.

    Of the refusals of harmful prompts at most 2 % may be challenged, and stage 2 must flag every
    hollow answer that stage 1 flags.

    **Examples**

    `waltzrl verify`

    `waltzrl verify recipes/gateway.toml --set stage=2 --set feedback.model=guard
    --set feedback.server=http://localhost:8001/v1 --data prompts`
    """
    from waltzrl.build.verify import read_verification_sets
    from waltzrl.build.verify import verify as run_checks
    from waltzrl.config.gateway import load_gateway

    options = {} if recipe else NO_UPSTREAM
    gateway = load_gateway(recipe, options, settings or [], os.environ)
    sets = read_verification_sets(data, limit)
    verification = asyncio.run(run_checks(gateway, sets))
    if as_json:
        print_json(asdict(verification) | {"passed": verification.passed})
    else:
        _print_tables(verification)
    if not verification.passed:
        raise typer.Exit(1)


def _print_tables(verification: "Verification") -> None:
    from waltzrl.evaluation import harm_table

    table = Table("check", "", "result")
    for check in verification.checks:
        table.add_row(check.name, "ok" if check.passed else "failed", check.detail)
    console = Console()
    console.print(table)
    if verification.harm:
        console.print(harm_table(verification.harm))
