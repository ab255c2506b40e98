"""`waltzrl serve`: the gateway in front of a model."""

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeAlias, cast

import rich.table
import typer

from waltzrl.errors import InputError
from waltzrl.foundation.logs import LogFormat, configure_logs
from waltzrl.foundation.options import AsJson, Settings, open_terminal, print_json

if TYPE_CHECKING:
    from waltzrl.foundation.sources import Setting
    from waltzrl.foundation.validation import Table
    from waltzrl.gateway.settings import GatewayRecipe


UpstreamUrl: TypeAlias = Annotated[
    str | None, typer.Option(help="URL of the model's server, such as http://localhost:8000/v1.")
]
ReviewerServer: TypeAlias = Annotated[
    str | None, typer.Option(help="URL of the server of a guard model that reviews.")
]
Sources: TypeAlias = "tuple[Path | None, Table, list[str], Mapping[str, str]]"

log = logging.getLogger(__name__)


class ServePreset(Protocol):
    """What the package of the demo provides for `--demo`."""

    def serve_options(self) -> "tuple[Table, str]":
        """Return gateway settings for the pair that was trained, and what to tell the user."""
        ...


def serve(  # noqa: PLR0913, PLR0917 - each parameter is an option
    recipe: Annotated[
        Path | None, typer.Argument(help="TOML file, such as recipes/gateway.toml.")
    ] = None,
    upstream: UpstreamUrl = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 8080,
    pair: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a trained pair, from `waltzrl export`, or the name of one that a"
            " package brings, such as smollm2: stage 2. With --reviewer only its conversation"
            " agent, which answers; smollm2 names its reviewer itself."
        ),
    ] = None,
    reviewer: Annotated[
        str | None,
        typer.Option(
            help="Reviewer that a package provides, such as smollm2, or guard:KIND[:MODEL] on"
            " --reviewer-server: stage 2; or rules: stage 1; or feedback-agent, the pair's own."
        ),
    ] = None,
    reviewer_server: ReviewerServer = None,
    false_alarms: Annotated[
        float | None,
        typer.Option(
            help="Share of good replies that the reviewer may flag, such as 0.02: a point of the"
            " curve on its card."
        ),
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="API keys, from `waltzrl keys add`.")] = None,
    audit: Annotated[Path | None, typer.Option(help="Folder of the audit log.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Database, such as sqlite:///runs/memory.db; see docs/memory.md."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain in PEM; serves HTTPS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key of the certificate, in PEM.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that serve, on one port; 1 by default.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve a small model and its reviewer.")
    ] = False,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Accept network clients without API keys.")
    ] = False,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="Format of log lines: text or json.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print each setting and its origin, and exit.")
    ] = False,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Serve OpenAI and Anthropic clients, and review every reply before it is sent.

    **Examples**

    `waltzrl serve --upstream http://localhost:8000/v1`

    `waltzrl serve recipes/gateway.toml --keys keys.toml --host 0.0.0.0 --set stage=2`

    `waltzrl serve --pair agents --audit runs/audit` serves both agents that `waltzrl export` wrote.

    `waltzrl serve --upstream http://localhost:8000/v1 --reviewer smollm2` reviews with the
    classifier of the package waltzrl-smollm2 as well as with the rules.

    `waltzrl serve --upstream URL --reviewer guard:qwen3guard --reviewer-server URL` reviews with a
    guard model.

    `waltzrl serve recipes/gateway.toml --explain` prints what each setting is, and who sets it.

    `waltzrl serve --demo` needs no upstream: it serves SmolLM2 where waltzrl-smollm2 is installed,
    else the agents that `make demo` trained. Its page /desk/try shows what both agents say.
    """
    given = {
        "upstream": upstream and {"url": upstream},
        "keys": keys,
        "audit": audit and {"folder": audit},
        "memory": memory and {"url": memory},
        "tls": (tls_cert or tls_key) and {"cert": tls_cert, "key": tls_key},
        "logs": log_format and {"format": log_format},
        "workers": workers,
    }
    options: Table = {key: value for key, value in given.items() if value}
    sources = partial(
        collect_sources,
        recipe,
        options,
        settings or [],
        demo=demo,
        pair=pair,
        reviewer=choose_reviewer(reviewer, reviewer_server, false_alarms),
    )
    if explain:
        from waltzrl.gateway.settings import explain_gateway

        _print_settings(explain_gateway(*sources()), as_json=as_json)
        return
    configure_logs(log_format or "text", "info")
    try:
        supervise_gateway(sources(), host, port, open_to_all=open_to_all)
    except KeyboardInterrupt:  # also from SIGTERM; later the supervisor handles both
        log.info("stopped before the gateway started")


def supervise_gateway(sources: Sources, host: str, port: int, *, open_to_all: bool) -> None:
    """Serve a gateway until it is stopped."""
    from waltzrl.gateway.listener import open_listener
    from waltzrl.gateway.processes.fork_server import ForkServer
    from waltzrl.gateway.processes.supervisor import Supervisor
    from waltzrl.gateway.processes.worker import serve_as_worker
    from waltzrl.gateway.settings import load_gateway

    load = partial(load_gateway, *sources)
    gateway = load()
    configure_logs(gateway.logs.format, gateway.logs.level)
    # Before the event loop: a process that has one cannot be forked safely. And before the port is
    # open, which a forked process would else keep after its supervisor was killed.
    with closing(ForkServer(serve_as_worker)) as fork_server, open_listener(host, port) as listener:
        announce = partial(_announce_gateway, listener)
        supervisor = Supervisor(
            load, listener, fork_server, open_to_all=open_to_all, announce=announce
        )
        asyncio.run(supervisor.run(gateway))


def collect_sources(
    recipe: Path | None,
    options: "Table",
    settings: list[str],
    *,
    demo: bool,
    pair: Path | None,
    reviewer: "Table",
) -> Sources:
    """Return where the settings come from: the arguments of `load_gateway`."""
    base = _choose_demo_options() if demo else {}
    if pair:
        from waltzrl.agents.opening import find_pair
        from waltzrl.gateway.pairs import OWN_REVIEWER, pair_settings

        answers, own_reviewer = "upstream" not in options, reviewer == OWN_REVIEWER
        if reviewer and not own_reviewer and not answers:
            raise InputError(
                "got --pair, --upstream and --reviewer, which leave the pair nothing to do; with"
                " --reviewer its conversation agent answers, with --upstream its feedback agent"
                " reviews"
            )
        base |= pair_settings(find_pair(pair), with_upstream=answers, own_reviewer=own_reviewer)
    return recipe, base | reviewer | options, settings, os.environ


def choose_reviewer(name: str | None, server: str | None, false_alarms: float | None) -> "Table":
    """Return the settings of `--reviewer` and the options that belong to it."""
    from waltzrl.agents.opening import FEEDBACK_AGENT, GUARD, RULES
    from waltzrl.gateway.pairs import OWN_REVIEWER, guard_settings, reviewer_settings

    is_guard = name is not None and name.startswith(GUARD)
    if server is not None and not is_guard:
        raise InputError(
            "--reviewer-server is for a guard model, --reviewer guard:KIND; got "
            f"{'no --reviewer' if name is None else f'--reviewer {name}'}"
        )
    if false_alarms is not None and (is_guard or name in (None, RULES, FEEDBACK_AGENT)):
        raise InputError(
            "--false-alarms chooses a point of a classifier's curve; give --reviewer NAME of one,"
            " such as smollm2"
        )
    if name is None:
        return {}
    if name == FEEDBACK_AGENT:
        return dict(OWN_REVIEWER)
    if is_guard:
        return guard_settings(name, server)
    return reviewer_settings(name, false_alarms)


def _choose_demo_options() -> "Table":
    from waltzrl.agents.opening import installed_reviewers
    from waltzrl.foundation.plugins import load_plugin
    from waltzrl.gateway.pairs import ENGLISH, english_settings

    if ENGLISH in installed_reviewers():
        print("SmolLM2-135M-Instruct answers, in English; ask it anything", file=sys.stderr)
        return english_settings()
    settings, hint = cast("ServePreset", load_plugin("waltzrl.presets", "demo")).serve_options()
    print(hint, file=sys.stderr)
    return settings


def _print_settings(settings: "list[Setting]", *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(setting) for setting in settings])
        return
    table = rich.table.Table()
    for column in ("setting", "value", "origin"):
        table.add_column(column, overflow="fold")
    for setting in settings:
        table.add_row(setting.key, json.dumps(setting.value), setting.origin)
    open_terminal().print(table)


def _announce_gateway(listener: socket.socket, gateway: "GatewayRecipe", description: str) -> None:
    from waltzrl.gateway.listener import is_loopback, listener_url

    url = listener_url(listener, has_tls=gateway.tls is not None)
    reviewers = f", reviewers {url}/desk" if gateway.memory else ""
    is_tried = gateway.keys is None and is_loopback(listener.getsockname()[0])
    trial = f", try a request at {url}/desk/try" if is_tried else ""
    log.info("%s; clients use %s/v1%s%s", description, url, reviewers, trial)
