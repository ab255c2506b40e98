"""The commands of the gateway."""

import typer

from waltzrl.foundation.options import EVALUATE, SERVE
from waltzrl.gateway.commands.compare_reviewers import compare_reviewers
from waltzrl.gateway.commands.keys import keys
from waltzrl.gateway.commands.policy import policy
from waltzrl.gateway.commands.serve import serve
from waltzrl.gateway.commands.try_request import try_request


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.command(rich_help_panel=SERVE)(serve)
    app.command("try", rich_help_panel=SERVE)(try_request)
    app.command(rich_help_panel=EVALUATE)(compare_reviewers)
    app.add_typer(keys, name="keys", rich_help_panel=SERVE)
    app.add_typer(policy, name="policy", rich_help_panel=SERVE)
