"""`waltzrl serve`: the gateway in front of a model."""

import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from waltzrl.cli.options import Settings
from waltzrl.errors import InputError

DEMO = Path("runs/demo")


def serve(  # noqa: PLR0913, PLR0917 - each parameter is an option
    recipe: Annotated[
        Path | None, typer.Argument(help="TOML file, such as recipes/gateway.toml.")
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(help="URL of the model's server, such as http://localhost:8000/v1."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 8080,
    keys: Annotated[Path | None, typer.Option(help="API keys, from `waltzrl keys add`.")] = None,
    audit: Annotated[Path | None, typer.Option(help="Folder of the audit log.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Database, such as sqlite:///runs/memory.db; see docs/memory.md."),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve the agents of `waltzrl demo`.")
    ] = False,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Accept network clients without API keys.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Serve OpenAI and Anthropic clients, and review every reply before it is sent.

    **Examples**

    `waltzrl serve --upstream http://localhost:8000/v1`

    `waltzrl serve recipes/gateway.toml --keys keys.toml --host 0.0.0.0 --set stage=2`

    `waltzrl serve --demo` serves the agents that `make demo` trained, without an upstream.
    """
    import uvloop

    from waltzrl.build.gateway import serve
    from waltzrl.config.gateway import load_gateway
    from waltzrl.serving.server import listen

    defaults: dict[str, object] = {"upstream": {"url": upstream}} if upstream else {}
    if demo:
        from waltzrl.demo.serving import demo_settings, example_prompt

        defaults = demo_settings(DEMO)
        print(
            f"the demo's model knows only the demo's language; try: {example_prompt(DEMO)}",
            file=sys.stderr,
        )
    if not (recipe or defaults or settings):
        raise InputError("no model to serve; use --upstream http://localhost:8000/v1 or --demo")
    if keys:
        defaults["keys"] = keys
    if audit:
        defaults["audit"] = {"folder": audit}
    if memory:
        defaults["memory"] = {"url": memory}
    gateway = load_gateway(recipe, defaults, settings or [], os.environ)
    listener = listen(host, port)
    announce = partial(_announce, desk=gateway.memory is not None)
    uvloop.run(serve(gateway, listener, open_to_all=open_to_all, announce=announce))


def _announce(listener: socket.socket, description: str, *, desk: bool) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://{host}:{port}"
    reviewers = f", reviewers {url}/desk" if desk else ""
    print(f"{description}; clients use {url}/v1{reviewers}", file=sys.stderr, flush=True)
