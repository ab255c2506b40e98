"""Options that several commands share, and JSON for programs."""

import json
from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, no progress.")]
Server = Annotated[
    str | None,
    typer.Option(help="URL of an OpenAI-compatible server, such as http://host:8000/v1."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting.")
]
JudgeName = Annotated[
    str, typer.Option("--judge", help="refusal (offline), saved:FILE, or llm:MODEL@URL.")
]
Evaluation = Annotated[Path, typer.Argument(help="Folder that `waltzrl evaluate` wrote.")]


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))
