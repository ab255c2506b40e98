"""`waltzrl verify`: checks of an installation and a recipe, and of coach mode."""

import asyncio
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from waltzrl.cli.options import AsJson, Settings, print_json
from waltzrl.cli.progress import progress_bar
from waltzrl.errors import InputError

if TYPE_CHECKING:
    from waltzrl.build.verify import Verification
    from waltzrl.evaluation.scenarios import Scenario
    from waltzrl.guard import Guard

DEMO = Path("runs/demo")
KEY_VARIABLE = "WALTZRL_GATEWAY_KEY"
verification = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)
NO_UPSTREAM: dict[str, object] = {"upstream": {"url": "http://localhost:8000/v1"}}
"""A recipe needs an upstream; none is asked."""


@verification.callback()
def verify(
    context: typer.Context,
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file of a gateway; default: rules review.")
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

    `waltzrl verify --recipe recipes/gateway.toml --set stage=2 --set feedback.model=guard
    --set feedback.server=http://localhost:8001/v1 --data prompts`
    """
    if context.invoked_subcommand:
        return
    from waltzrl.build.verify import read_verification_sets
    from waltzrl.build.verify import verify as run_checks
    from waltzrl.config.gateway import load_gateway

    options = {} if recipe else NO_UPSTREAM
    gateway = load_gateway(recipe, options, settings or [], os.environ)
    sets = read_verification_sets(data, limit)
    result = asyncio.run(run_checks(gateway, sets))
    _finish(result, as_json=as_json)


@verification.command()
def coach(  # noqa: PLR0913, PLR0917 - each parameter is an option
    pair: Annotated[
        Path | None, typer.Option(help="Folder of a trained pair, from `waltzrl export`.")
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(help="URL of a gateway, such as http://localhost:8080/v1.")
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="URL of a model's server; the rules review it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model that the gateway or the upstream serves.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="The pair of `waltzrl demo`, in the demo's language.")
    ] = False,
    max_rounds: Annotated[int, typer.Option(min=1, help="Revisions at most.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Run the twenty checks of coach mode and its fifty scenarios; exits with 1 if one fails.

    Name what to verify: a pair, a gateway, an upstream or the demo. A gateway's key is read from
    WALTZRL_GATEWAY_KEY; it must show drafts (`waltzrl keys add --may-see-drafts`).

    **Examples**

    `waltzrl verify coach --demo`

    `waltzrl verify coach --gateway http://localhost:8080/v1 --model qwen --json`
    """
    from waltzrl.build.coach_suite import verify_coach

    options = {"--pair": pair, "--gateway": gateway, "--upstream": upstream, "--demo": demo}
    given = [name for name, value in options.items() if value]
    if len(given) != 1:
        raise InputError(
            f"got {' and '.join(given) or 'nothing'} to verify; give one of {', '.join(options)}"
        )
    with progress_bar(quiet=as_json) as bar:
        task = bar.add_task("answering scenarios", total=None, note="")

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        async def run() -> "Verification":
            async with _open(pair, gateway, upstream, model, max_rounds) as guard:
                return await verify_coach(guard, _scenarios(demo=demo), max_rounds, progress)

        result = asyncio.run(run())
    _finish(result, as_json=as_json)


def _open(
    pair: Path | None, gateway: str | None, upstream: str | None, model: str | None, max_rounds: int
) -> "Guard":
    from waltzrl.build.guard import GuardSettings, open_guard
    from waltzrl.policies import RemotePolicy

    settings = GuardSettings(max_rounds=max_rounds)
    if pair:
        return open_guard(pair=pair, settings=settings)
    if gateway or upstream:
        if model is None:
            raise InputError("got no --model; need the name of a model that the server serves")
        key = os.environ.get(KEY_VARIABLE) if gateway else None
        policy = RemotePolicy(gateway or upstream or "", model, api_key=key)
        if gateway:
            return open_guard(gateway=policy)
        return open_guard(upstream=policy, settings=settings)
    from waltzrl.demo.paper import MAX_NEW_TOKENS
    from waltzrl.demo.serving import demo_pair

    tiny = replace(settings, wording="tiny", max_new_tokens=MAX_NEW_TOKENS)
    return open_guard(pair=demo_pair(DEMO), settings=tiny)


def _scenarios(*, demo: bool) -> "list[Scenario]":
    if demo:
        from waltzrl.demo.serving import demo_scenarios

        return demo_scenarios(DEMO)
    from waltzrl.evaluation.scenarios import load_scenarios

    return load_scenarios()


def _finish(result: "Verification", *, as_json: bool) -> None:
    """Print the result, and exit with 1 where a check failed."""
    if as_json:
        print_json(asdict(result) | {"passed": result.passed})
    else:
        _print_tables(result)
    if not result.passed:
        raise typer.Exit(1)


def _print_tables(result: "Verification") -> None:
    table = Table()
    table.add_column("check", overflow="fold", ratio=5)
    table.add_column("")
    table.add_column("result", overflow="fold", ratio=4)
    for check in result.checks:
        table.add_row(check.name, "ok" if check.passed else "failed", check.detail)
    console = Console()
    console.print(table)
    if result.harm:
        from waltzrl.evaluation import harm_table

        console.print(harm_table(result.harm))
