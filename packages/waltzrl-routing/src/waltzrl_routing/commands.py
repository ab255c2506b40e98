"""`waltzrl route`: which agent does which task, and why."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from waltzrl.foundation.options import SERVE, AsJson, open_terminal

if TYPE_CHECKING:
    from waltzrl_routing import RoutingPlan, TaskGraph


def route(  # noqa: PLR0913, PLR0917 - each parameter is an option
    tasks: Annotated[Path, typer.Argument(help="JSON or TOML file with `version` and `tasks`.")],
    agents: Annotated[
        Path | None,
        typer.Option(help="Agents and rules [the sixteen of recipes/routing.toml]."),
    ] = None,
    available: Annotated[
        str | None, typer.Option(metavar="A,B", help="Agents that may be used [all].")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture to this file.")] = None,
    mermaid: Annotated[Path | None, typer.Option(help="Write a Mermaid flowchart.")] = None,
    as_json: AsJson = False,
    seed: Annotated[int, typer.Option(help="Breaks ties.")] = 0,
) -> None:
    """Assign tasks to agents, and say why; exits with 1 if no agent can do one of them.

    **Examples**

    `waltzrl route tasks.json`

    `waltzrl route tasks.json --agents recipes/routing.toml --available builder_agent,qa_agent`

    `waltzrl route tasks.json --svg plan.svg --mermaid plan.mmd --json`
    """
    from waltzrl.foundation.files import write_bytes
    from waltzrl_routing import Router, load_registry, plan_as_mermaid, plan_as_svg, read_tasks

    graph = read_tasks(tasks)
    usable = None if available is None else [name.strip() for name in available.split(",")]
    plan = Router(load_registry(agents), seed=seed).route(graph, usable)
    for path, draw in ((svg, plan_as_svg), (mermaid, plan_as_mermaid)):
        if path:
            write_bytes(path, draw(graph, plan).encode())
    if as_json:
        print(plan.to_json().decode())
    else:
        _print_plan(graph, plan)
    if not plan.is_complete():
        raise typer.Exit(1)


def _print_plan(graph: "TaskGraph", plan: "RoutingPlan") -> None:
    table = Table("task", "type", "agent", "why")
    for task_id, explanation in plan.explanations.items():
        agent = explanation.agent or "none"
        cells = (task_id, graph.tasks[task_id].type, agent, explanation.words)
        table.add_row(*(Text(re.sub(r"[^ -~\xa0-\U0010ffff]", "\ufffd", cell)) for cell in cells))
    open_terminal().print(table)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.command(rich_help_panel=SERVE)(route)
