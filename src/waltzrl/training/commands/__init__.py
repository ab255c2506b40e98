"""The commands of training."""

import typer

from waltzrl.foundation.options import EVALUATE, TRAIN
from waltzrl.training.commands.cost import cost
from waltzrl.training.commands.sweep import sweep
from waltzrl.training.commands.train import export, train


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.command(rich_help_panel=TRAIN)(train)
    app.command(rich_help_panel=TRAIN)(sweep)
    app.command(rich_help_panel=TRAIN)(export)
    app.add_typer(cost, name="cost", rich_help_panel=EVALUATE)
