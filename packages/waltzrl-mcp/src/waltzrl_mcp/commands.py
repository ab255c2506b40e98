"""`waltzrl mcp`: a guard as an MCP server; `waltzrl mcp-proxy`: guards before other servers."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.errors import InputError
from waltzrl.foundation.options import SERVE

if TYPE_CHECKING:
    from waltzrl import Guard, GuardSettings, RemotePolicy

Model = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="URL NAME", help="Model of an OpenAI-compatible server that reviews."),
]
Reviewer = Annotated[
    str | None,
    typer.Option(
        help="Reviewer that a package provides, such as smollm2; or guard:KIND, the kind of guard"
        " model that --model names."
    ),
]
Pair = Annotated[Path | None, typer.Option(help="Folder of a trained pair, from `waltzrl export`.")]
Gateway = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="URL MODEL", help="A waltzrl gateway, such as http://localhost:8080/v1."),
]
Policy = Annotated[
    str, typer.Option(help="Policy of the gateway that its key may use; its first without one.")
]
Upstream = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="URL NAME", help="Model of an OpenAI-compatible server that revises."),
]
Http = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Serve over HTTP, at /mcp; without it, over stdio."),
]


def mcp(  # noqa: PLR0913, PLR0917 - each parameter is an option
    reviewer: Reviewer = None,
    model: Model = None,
    pair: Pair = None,
    gateway: Gateway = None,
    policy: Policy = "",
    upstream: Upstream = None,
    agents: Annotated[
        Path | None,
        typer.Option(help="Agents and rules of `route` [the sixteen of recipes/routing.toml]."),
    ] = None,
    http: Http = None,
) -> None:
    """Serve a guard and the router to agents as an MCP server: review, revise, assess and route.

    Rules review unless there is a --reviewer, a --model, a --pair or a --gateway. The key of a
    server is the environment variable OPENAI_API_KEY, that of a gateway WALTZRL_API_KEY.

    **Examples**

    `waltzrl mcp --reviewer smollm2`

    `waltzrl mcp --model http://localhost:8001/v1 guard --upstream http://localhost:8000/v1 qwen`
    """
    from waltzrl_mcp.server import mcp_server
    from waltzrl_mcp.transport import serve
    from waltzrl_routing import load_registry

    address, registry = _parse_address(http), load_registry(agents)

    async def run() -> None:
        served = _open_gateway(gateway, policy)
        async with _open_guard(reviewer, model, pair, served, upstream) as guard:
            await serve(mcp_server(guard, registry), address)

    asyncio.run(run())


def mcp_proxy(  # noqa: PLR0913, PLR0917 - each parameter is an option
    servers: Annotated[
        list[str] | None, typer.Argument(metavar="[SERVER]...", help="A command or a URL each.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="JSON file with the servers under mcpServers.")
    ] = None,
    reviewer: Reviewer = None,
    model: Model = None,
    pair: Pair = None,
    gateway: Gateway = None,
    policy: Policy = "",
    http: Http = None,
    pins: Annotated[
        Path | None, typer.Option(help="JSON file that remembers descriptions between runs.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME@DIGEST", help="List a refused description; may be repeated."),
    ] = None,
    allow_call: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL | RULE | TOOL:RULE",
            help="Make calls that the rules for calls flag; may be repeated.",
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Append each decision as a line of JSON, without content.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each answer.")] = 60.0,
) -> None:
    """Stand before MCP servers, and review what passes: descriptions, calls and results.

    Rules review; a --reviewer, a --model, a --pair or a --gateway reviews beside them. A call that
    is flagged is not made; a result that is flagged is withheld; a description that is flagged, or
    that changes after it was first listed, is refused.

    **Examples**

    `waltzrl mcp-proxy "npx -y @modelcontextprotocol/server-filesystem /data"`

    `waltzrl mcp-proxy --config servers.json --pins pins.json --log decisions.jsonl`
    """
    from waltzrl import GuardSettings
    from waltzrl_mcp.connection import parse_servers, read_servers
    from waltzrl_mcp.proxy import McpProxy, ProxySettings
    from waltzrl_mcp.screen import PACKS
    from waltzrl_mcp.transport import serve

    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs what servers send
    configured, given = read_servers(config) if config else {}, parse_servers(servers or [])
    if clash := sorted(configured.keys() & given.keys()):
        raise typer.BadParameter(f"{config} has a server {clash[0]!r} too; rename it there")
    entries = configured | given
    address, rules = (
        _parse_address(http),
        GuardSettings(rules=PACKS, allow_calls=tuple(allow_call or ())),
    )
    settings = ProxySettings(
        timeout_seconds=timeout, allowed=frozenset(allow or ()), pins=pins, log=log
    )

    async def run() -> None:
        async with AsyncExitStack() as stack:
            guard = _open_guard(reviewer, model, pair, settings=rules)
            guards = [await stack.enter_async_context(guard)]
            if served := _open_gateway(gateway, policy):
                # A gateway reviews by its own rules, so it comes on top of the first guard.
                guards.append(await stack.enter_async_context(_open_guard(gateway=served)))
            proxy = await stack.enter_async_context(McpProxy(entries, guards, settings))
            await serve(proxy.server(), address)

    asyncio.run(run())


def _open_guard(
    reviewer: str | None = None,
    model: tuple[str, str] | None = None,
    pair: Path | None = None,
    gateway: "RemotePolicy | None" = None,
    upstream: tuple[str, str] | None = None,
    settings: "GuardSettings | None" = None,
) -> "Guard":
    from waltzrl import open_guard
    from waltzrl.policies.opening import remote_policy

    return open_guard(
        reviewer,
        model=remote_policy(*model) if model else None,
        pair=pair,
        gateway=gateway,
        upstream=remote_policy(*upstream) if upstream else None,
        settings=settings,
    )


def _open_gateway(gateway: tuple[str, str] | None, policy: str) -> "RemotePolicy | None":
    """Describe a gateway, and which of its policies reviews."""
    from waltzrl.policies.opening import remote_policy

    if gateway is None:
        if policy:
            raise InputError(f"--policy {policy} is of a gateway; give --gateway URL MODEL")
        return None
    headers = {"x-waltzrl-policy": policy} if policy else None
    return remote_policy(*gateway, key_env="WALTZRL_API_KEY", headers=headers)


def _parse_address(http: str | None) -> tuple[str, int] | None:
    if http is None:
        return None
    host, _, port = http.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"got {http!r}; need HOST:PORT, such as 127.0.0.1:8100")
    return host.strip("[]"), int(port)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.command(rich_help_panel=SERVE)(mcp)
    app.command(rich_help_panel=SERVE)(mcp_proxy)
