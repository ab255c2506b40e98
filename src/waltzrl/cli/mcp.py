"""`waltzrl mcp`: a guard as an MCP server."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from waltzrl.guard import Guard

Model = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="URL NAME", help="Model of an OpenAI-compatible server that reviews."),
]
Pair = Annotated[Path | None, typer.Option(help="Folder of a trained pair, from `waltzrl export`.")]
Gateway = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="URL MODEL", help="A waltzrl gateway, such as http://localhost:8080/v1."),
]
Upstream = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="URL NAME", help="Model of an OpenAI-compatible server that revises."),
]
Http = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Serve over HTTP, at /mcp; without it, over stdio."),
]


def mcp(
    model: Model = None,
    pair: Pair = None,
    gateway: Gateway = None,
    upstream: Upstream = None,
    http: Http = None,
) -> None:
    """Serve a guard to agents as an MCP server: review, revise and assess.

    Rules review unless there is a --model, a --pair or a --gateway. The key of a server is the
    environment variable OPENAI_API_KEY, that of a gateway WALTZRL_API_KEY.

    **Examples**

    `waltzrl mcp`

    `waltzrl mcp --model http://localhost:8001/v1 guard --upstream http://localhost:8000/v1 qwen`
    """
    from waltzrl.mcp import mcp_server, serve

    address = _address(http)

    async def run() -> None:
        async with _guard(model, pair, gateway, upstream) as guard:
            await serve(mcp_server(guard), address)

    asyncio.run(run())


def _guard(
    model: tuple[str, str] | None,
    pair: Path | None,
    gateway: tuple[str, str] | None,
    upstream: tuple[str, str] | None,
) -> "Guard":
    from waltzrl import open_guard
    from waltzrl.build.models import remote_policy

    return open_guard(
        model=remote_policy(*model) if model else None,
        pair=pair,
        gateway=remote_policy(*gateway, key_env="WALTZRL_API_KEY") if gateway else None,
        upstream=remote_policy(*upstream) if upstream else None,
    )


def _address(http: str | None) -> tuple[str, int] | None:
    if http is None:
        return None
    host, _, port = http.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"got {http!r}; need HOST:PORT, such as 127.0.0.1:8100")
    return host.strip("[]"), int(port)
