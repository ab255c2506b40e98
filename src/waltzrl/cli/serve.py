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
        Path | None, typer.Argument(help="TOML file, see recipes/gateway.toml.")
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Server of the model, such as http://localhost:8000/v1.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    keys: Annotated[Path | None, typer.Option(help="File that `waltzrl keys add` wrote.")] = None,
    audit: Annotated[Path | None, typer.Option(help="Folder of the audit log.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Database, such as sqlite:///runs/memory.db; see docs/memory.md."),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve the demo's own trained pair.")
    ] = False,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Answer the network although there are no keys.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Answer OpenAI and Anthropic clients, with every reply reviewed before it leaves.

    **Examples**

    `waltzrl serve --upstream http://localhost:8000/v1`

    `waltzrl serve recipes/gateway.toml --keys keys.toml --host 0.0.0.0 --set stage=2`

    `waltzrl serve --demo` needs no upstream: it serves what `make demo` trained.
    """
    import uvloop

    from waltzrl.build.gateway import serve
    from waltzrl.config.gateway import load_gateway
    from waltzrl.serving.server import listen

    said: dict[str, object] = {"upstream": {"url": upstream}} if upstream else {}
    if demo:
        from waltzrl.demo.serving import demo_settings, example_prompt

        said = demo_settings(DEMO)
        print(f"ask it in its own language: {example_prompt(DEMO)}", file=sys.stderr)
    if not (recipe or said or settings):
        raise InputError("name the model's server: --upstream http://localhost:8000/v1, or --demo")
    if keys:
        said["keys"] = keys
    if audit:
        said["audit"] = {"folder": audit}
    if memory:
        said["memory"] = {"url": memory}
    gateway = load_gateway(recipe, said, settings or [], os.environ)
    listener = listen(host, port)
    announce = partial(_announce, desk=gateway.memory is not None)
    uvloop.run(serve(gateway, listener, open_to_all=open_to_all, announce=announce))


def _announce(listener: socket.socket, what: str, *, desk: bool) -> None:
    host, port = listener.getsockname()[:2]
    here = f"http://{host}:{port}"
    beside = f", reviewers {here}/desk" if desk else ""
    print(f"{what}; clients use {here}/v1{beside}", file=sys.stderr, flush=True)
