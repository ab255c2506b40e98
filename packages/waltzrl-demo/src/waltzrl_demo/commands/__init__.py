"""The commands of the demos."""

import typer

from waltzrl.foundation.options import TRAIN
from waltzrl_demo.commands.demo import demos
from waltzrl_demo.commands.study import study


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.add_typer(demos, name="demo", rich_help_panel=TRAIN)
    app.command(rich_help_panel=TRAIN)(study)
