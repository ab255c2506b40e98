"""The commands of a gateway's operation."""

import typer

from waltzrl.foundation.options import DATA, SERVE
from waltzrl.operations.commands.access import access
from waltzrl.operations.commands.backup import backup
from waltzrl.operations.commands.bundle import bundle
from waltzrl.operations.commands.erase import erase
from waltzrl.operations.commands.flywheel import flywheel
from waltzrl.operations.commands.metrics import metrics
from waltzrl.operations.commands.release import release


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.command(rich_help_panel=SERVE)(metrics)
    app.add_typer(release, name="release", rich_help_panel=SERVE)
    app.command(rich_help_panel=SERVE)(flywheel)
    app.add_typer(bundle, name="bundle", rich_help_panel=SERVE)
    app.add_typer(backup, name="backup", rich_help_panel=SERVE)
    app.command(rich_help_panel=DATA)(access)
    app.command(rich_help_panel=DATA)(erase)
