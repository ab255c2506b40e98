"""`waltzrl export`: a run's agents as plain Hugging Face models."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="Run directory of `waltzrl train`.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; an earlier export is replaced.")],
) -> None:
    """Write both agents of a run as models that any server loads.

    Those of the best step on data.validation, if the recipe has it, else those of the last.

    **Example**

    `waltzrl export runs/tiny agents`
    """
    from waltzrl.training.opening import export_agents, open_run

    export_agents(open_run(run), out)
    print(f"exported: {out}")
