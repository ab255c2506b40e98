"""Options of several commands, and JSON output."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

TRAIN, EVALUATE, SERVE, DATA = "Train", "Evaluate", "Serve", "Data"
"""Groups of commands in the help."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and no progress.")]
Server = Annotated[
    str | None,
    typer.Option(help="URL of an OpenAI-compatible server, such as http://host:8000/v1."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting of the recipe; may be repeated."
    ),
]
JudgeName = Annotated[
    str,
    typer.Option(
        "--judge",
        help="refusal, harm, smollm2 (package waltzrl-smollm2), saved:FILE, labelled:SET, or "
        "KIND:MODEL@URL or KIND:FOLDER with the KIND llm, strong-reject, wildguard, llama-guard, "
        "qwen3guard, granite-guardian, shieldgemma, harmbench",
    ),
]
JudgePrompts = Annotated[
    bool,
    typer.Option(
        "--judge-prompts", help="The judge says whether a prompt is harmful, not the set's label."
    ),
]
Cluster = Annotated[
    Literal["cluster", "category", "source"],
    typer.Option("--cluster", help="Field of the prompts by which intervals count clusters."),
]
JudgeErrors = Annotated[
    Path | None,
    typer.Option(
        "--judge-errors",
        help="What `waltzrl agreement PEOPLE JUDGE --json` printed; corrects rates for it.",
    ),
]
Evaluation = Annotated[Path, typer.Argument(help="Folder of `waltzrl evaluate`.")]


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def open_terminal(narrowest: int = 0, *, stderr: bool = False) -> Console:
    """Return the terminal, on which brackets in a text are no markup.

    Args:
        narrowest: columns at least; a narrower terminal wraps or scrolls.
        stderr: print there.
    """
    console = Console(stderr=stderr, markup=False, highlight=False)
    console.width = max(console.width, narrowest)
    return console
