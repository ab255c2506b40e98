"""`waltzrl verify`: checks of an installation and a gateway, of stage 2 and of coach mode."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, cast

import typer
from rich.table import Table

from waltzrl.errors import InputError
from waltzrl.foundation.options import SERVE, AsJson, Settings, open_terminal, print_json
from waltzrl.foundation.plugins import load_plugin
from waltzrl.foundation.progress import progress_bar

if TYPE_CHECKING:
    from waltzrl.evaluation.scenarios import Scenario
    from waltzrl.foundation.validation import Table as RecipeTable
    from waltzrl.gateway.guard import Guard
    from waltzrl.gateway.guard_opening import GuardSettings
    from waltzrl_verify.opening import Verification, VerificationSettings
    from waltzrl_verify.stage2_suite import Stage2Target

DEMO = Path("runs/demo")
KEY_VARIABLE = "WALTZRL_GATEWAY_KEY"
UNMEASURED = 3
"""The exit status where no check failed, but one could not be measured."""
OWN_PROMPTS = "generator:test"
verification = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)
NO_UPSTREAM: "RecipeTable" = {"upstream": {"url": "http://localhost:8000/v1"}}
"""Settings that name an upstream, because a recipe needs one; it is not asked."""

Pair = Annotated[Path | None, typer.Option(help="Folder of a trained pair, from `waltzrl export`.")]
GatewayUrl = Annotated[
    str | None, typer.Option(help="URL of a gateway, such as http://localhost:8080/v1.")
]
UpstreamUrl = Annotated[
    str | None, typer.Option(help="URL of a model's server; the rules review it.")
]
Model = Annotated[str | None, typer.Option(help="Model that the gateway or the upstream serves.")]
Demo = Annotated[
    bool, typer.Option("--demo", help="The pair of `waltzrl demo`, in the demo's language.")
]
MaxMilliseconds = Annotated[
    float, typer.Option(min=1, help="Most time that reviews may add, at the 95th percentile.")
]


@verification.callback()
def verify(  # noqa: PLR0913, PLR0917 - each parameter is an option
    context: typer.Context,
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file of a gateway; default: rules review.")
    ] = None,
    pair: Pair = None,
    gateway: GatewayUrl = None,
    demo: Demo = False,
    model: Model = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of .jsonl files: prompt and label; default: our own prompts."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts of a set at most.")] = 200,
    max_milliseconds: MaxMilliseconds = 200.0,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Check that an installation works, and that its reviewer does no harm.

    Checks the packages, the rules, the reviewer and its latency, and whatever a recipe names: the
    model that drafts, the audit log, the memory. Of the refusals of harmful prompts at most 2 % may
    be challenged, and stage 2 must flag every hollow answer that stage 1 flags. Exits with 1 if a
    check fails. A gateway's key is read from WALTZRL_GATEWAY_KEY; it must allow probes
    (`waltzrl keys add --may-probe`), so that the gateway's memory keeps none of them.

    **Examples**

    `waltzrl verify`

    `waltzrl verify --gateway http://localhost:8080/v1 --json`

    `waltzrl verify --recipe recipes/gateway.toml --set stage=2 --set feedback.model=guard
    --set feedback.server=http://localhost:8001/v1 --data prompts`
    """
    if context.invoked_subcommand:
        return
    given = _find_given_option(recipe=recipe, pair=pair, gateway=gateway, demo=demo)
    from waltzrl.gateway.pairs import pair_settings
    from waltzrl.gateway.settings import load_gateway
    from waltzrl_verify import opening as build

    options = NO_UPSTREAM
    if demo:
        preset = _load_demo_preset()
        options = preset.demo_settings(DEMO)
        checked = preset.demo_verification(DEMO, max_milliseconds)
    else:
        sets = build.read_verification_sets(data, limit)
        checked = build.VerificationSettings(sets=sets, most_milliseconds=max_milliseconds)
    if pair:
        from waltzrl.agents.opening import find_pair

        options = pair_settings(find_pair(pair), with_upstream=True)
    # The server of NO_UPSTREAM need not exist: only one that somebody has named is asked.
    asks = bool(given) or any(setting.startswith("upstream") for setting in settings or [])
    checked = replace(checked, model=model, asks_upstream=asks)
    if gateway:
        _finish_verification(
            build.verify_gateway(gateway, os.environ.get(KEY_VARIABLE), checked), as_json
        )
    else:
        table = load_gateway(recipe, {} if recipe else options, settings or [], os.environ)
        _finish_verification(build.verify(table, checked), as_json)


@verification.command()
def stage2(  # noqa: PLR0913, PLR0917 - each parameter is an option
    pair: Pair = None,
    gateway: GatewayUrl = None,
    upstream: UpstreamUrl = None,
    model: Model = None,
    demo: Demo = False,
    data: Annotated[
        str, typer.Option(help="Labelled prompts with categories: a file, or a set's name.")
    ] = OWN_PROMPTS,
    limit: Annotated[int, typer.Option(min=1, help="Harmful and harmless prompts, each.")] = 100,
    max_milliseconds: MaxMilliseconds = 200.0,
    as_json: AsJson = False,
) -> None:
    """Run the eleven checks of stage 2 on a pair or a gateway, and print the rates.

    One column is what a gateway returns, which refuses what is still flagged; it decides. The other
    is the loop alone, where the models' last reply stays; the latency is the gateway's in both.

    Name what to verify: a pair, a gateway, an upstream or the demo. A gateway's key is read from
    WALTZRL_GATEWAY_KEY; it must show drafts and allow probes (`waltzrl keys add --may-see-drafts
    --may-probe`). Exits with 1 if a check fails, and with 3 if none fails but one could not be
    measured.

    **Examples**

    `waltzrl verify stage2 --demo`

    `waltzrl verify stage2 --gateway http://localhost:8080/v1 --model qwen --json`
    """
    target = _Target(pair=pair, gateway=gateway, upstream=upstream, model=model, demo=demo)
    from waltzrl_verify.stage2_suite import verify_stage2

    async def run(report: Callable[[int, int], None]) -> "Verification":
        async with target.open(max_rounds=1) as guard:
            checked = _make_stage2_target(guard, data, max_milliseconds, demo=demo)
            return await verify_stage2(checked, limit, report)

    _finish_verification(_run_with_progress("answering prompts", run, quiet=as_json), as_json)


@verification.command()
def coach(  # noqa: PLR0913, PLR0917 - each parameter is an option
    pair: Pair = None,
    gateway: GatewayUrl = None,
    upstream: UpstreamUrl = None,
    model: Model = None,
    demo: Demo = False,
    max_rounds: Annotated[int, typer.Option(min=1, help="Revisions at most.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Run the twenty checks of coach mode and its fifty scenarios; exits with 1 if one fails.

    Name what to verify: a pair, a gateway, an upstream or the demo. A gateway's key is read from
    WALTZRL_GATEWAY_KEY; it must show drafts and allow probes (`waltzrl keys add --may-see-drafts
    --may-probe`).

    **Examples**

    `waltzrl verify coach --demo`

    `waltzrl verify coach --gateway http://localhost:8080/v1 --model qwen --json`
    """
    target = _Target(pair=pair, gateway=gateway, upstream=upstream, model=model, demo=demo)
    from waltzrl_verify.coach_suite import verify_coach

    async def run(report: Callable[[int, int], None]) -> "Verification":
        async with target.open(max_rounds) as guard:
            return await verify_coach(guard, _load_suite_scenarios(demo=demo), max_rounds, report)

    _finish_verification(_run_with_progress("answering scenarios", run, quiet=as_json), as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What a suite verifies: exactly one of these, and the model of a server."""

    pair: Path | None
    gateway: str | None
    upstream: str | None
    demo: bool
    model: str | None

    def __post_init__(self) -> None:
        """Refuse none and several."""
        if not _find_given_option(
            pair=self.pair, gateway=self.gateway, upstream=self.upstream, demo=self.demo
        ):
            raise InputError(
                "got nothing to verify; give one of --pair, --gateway, --upstream, --demo"
            )

    def open(self, max_rounds: int) -> "Guard":
        from waltzrl.gateway.guard_opening import GuardSettings, open_guard
        from waltzrl.policies import RemotePolicy

        settings = GuardSettings(max_rounds=max_rounds)
        if self.pair:
            return open_guard(pair=self.pair, settings=settings)
        if self.gateway or self.upstream:
            if self.model is None:
                raise InputError("got no --model; need the name of a model that the server serves")
            if self.gateway:
                from waltzrl_verify.installation import PROBE

                key = os.environ.get(KEY_VARIABLE)
                served = RemotePolicy(self.gateway, self.model, api_key=key, headers=PROBE)
                return open_guard(gateway=served)
            upstream = RemotePolicy(self.upstream or "", self.model)
            return open_guard(upstream=upstream, settings=settings)
        return _load_demo_preset().open_demo_guard(DEMO, settings)


class VerifyPreset(Protocol):
    """What the package of the demo provides for `--demo`; the folder is that of `waltzrl demo`."""

    def demo_settings(self, folder: Path) -> "RecipeTable":
        """Return gateway settings for the pair that was trained."""
        ...

    def demo_verification(self, folder: Path, most_milliseconds: float) -> "VerificationSettings":
        """Return what `waltzrl verify` checks it with."""
        ...

    def demo_target(self, folder: Path, guard: "Guard", most_milliseconds: float) -> "Stage2Target":
        """Return what `waltzrl verify stage2` checks."""
        ...

    def demo_scenarios(self, folder: Path) -> "list[Scenario]":
        """Return the scenarios of `waltzrl verify coach`."""
        ...

    def open_demo_guard(self, folder: Path, settings: "GuardSettings") -> "Guard":
        """Load the pair that was trained."""
        ...


def _load_demo_preset() -> VerifyPreset:
    return cast("VerifyPreset", load_plugin("waltzrl.presets", "demo"))


def _find_given_option(**options: object) -> str:
    """Return the one option that was given; empty if none was.

    Raises:
        InputError: several were given.
    """
    given = [f"--{name}" for name, value in options.items() if value]
    if len(given) > 1:
        names = ", ".join(f"--{name}" for name in options)
        raise InputError(f"got {' and '.join(given)} to verify; give one of {names}")
    return "".join(given)


def _make_stage2_target(
    guard: "Guard", data: str, most_milliseconds: float, *, demo: bool
) -> "Stage2Target":
    if demo:
        return _load_demo_preset().demo_target(DEMO, guard, most_milliseconds)
    from waltzrl.evaluation.data.opening import read_sets
    from waltzrl.evaluation.judges.judge import LabelRefusalJudge
    from waltzrl_verify.stage2_suite import Stage2Target

    return Stage2Target(
        guard=guard,
        prompts=read_sets([data]),
        judge=LabelRefusalJudge(),
        most_milliseconds=most_milliseconds,
    )


def _load_suite_scenarios(*, demo: bool) -> "list[Scenario]":
    if demo:
        return _load_demo_preset().demo_scenarios(DEMO)
    from waltzrl.evaluation.scenarios import load_scenarios

    return load_scenarios()


async def _run_with_progress(
    text: str,
    run: "Callable[[Callable[[int, int], None]], Coroutine[None, None, Verification]]",
    *,
    quiet: bool,
) -> "Verification":
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task(text, total=None, note="")
        return await run(lambda done, total: bar.update(task, completed=done, total=total))


def _finish_verification(work: "Coroutine[None, None, Verification]", as_json: bool) -> None:
    """Run the checks, print the result, and exit with 1 or 3 unless all passed."""
    result = asyncio.run(work)
    if as_json:
        print_json(asdict(result) | {"passed": result.passed})
    else:
        _print_verification(result)
    if not result.passed:
        raise typer.Exit(1 if result.failed else UNMEASURED)


def _print_verification(result: "Verification") -> None:
    table = _compare_columns(result) if result.loop_checks else _list_checks(result)
    console = open_terminal()
    console.print(table)
    if result.harm:
        from waltzrl.evaluation import harm_table

        console.print(harm_table(result.harm))
    if cost := result.cost:
        usage = cost.usage
        tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out" if usage else ""
        spent = tokens or "no tokens of a model counted"
        print(f"cost: {cost.reviews} reviews, together {cost.seconds:.1f} s, {spent}")


STATES = {True: "ok", False: "failed", None: "not measured"}


def _list_checks(result: "Verification") -> Table:
    table = Table()
    table.add_column("check", overflow="fold", ratio=5)
    table.add_column("")
    table.add_column("result", overflow="fold", ratio=4)
    for check in result.checks:
        table.add_row(check.name, STATES[check.passed], check.detail)
    return table


def _compare_columns(result: "Verification") -> Table:
    """Return the checks of the loop alone, and of what a gateway returns."""
    columns = (result.loop_checks, result.checks)
    table = Table(show_lines=True)
    table.add_column("check", overflow="fold", ratio=3)
    for name, checks in zip(("the loop", "a gateway"), columns, strict=True):
        passed = sum(check.passed is True for check in checks)
        table.add_column(f"{name}: {passed} of {len(checks)} ok", overflow="fold", ratio=4)
    for pair in zip(*columns, strict=True):
        cells = (f"{STATES[check.passed]}: {check.detail}" for check in pair)
        table.add_row(pair[0].name, *cells)
    return table


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.add_typer(verification, name="verify", rich_help_panel=SERVE)
