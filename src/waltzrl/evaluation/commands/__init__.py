"""The commands of evaluation and of its data."""

import typer

from waltzrl.evaluation.commands.calibrate import calibrate
from waltzrl.evaluation.commands.collect import collect
from waltzrl.evaluation.commands.compare import compare
from waltzrl.evaluation.commands.data import data
from waltzrl.evaluation.commands.evaluate import evaluate
from waltzrl.evaluation.commands.judge import agreement, judge
from waltzrl.evaluation.commands.prompts import check_leaks, generate, import_prompts
from waltzrl.evaluation.commands.report import report
from waltzrl.evaluation.commands.rescore import rescore
from waltzrl.evaluation.commands.rules import rules
from waltzrl.foundation.options import DATA, EVALUATE, SERVE


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.command(rich_help_panel=EVALUATE)(evaluate)
    app.command(rich_help_panel=EVALUATE)(rescore)
    app.command(rich_help_panel=EVALUATE)(compare)
    app.command(rich_help_panel=EVALUATE)(report)
    app.command(rich_help_panel=EVALUATE)(judge)
    app.command(rich_help_panel=EVALUATE)(agreement)
    app.command(rich_help_panel=EVALUATE)(calibrate)
    app.add_typer(rules, name="rules", rich_help_panel=SERVE)
    app.command(rich_help_panel=DATA)(generate)
    app.add_typer(data, name="data", rich_help_panel=DATA)
    app.command("import", rich_help_panel=DATA)(import_prompts)
    app.command(rich_help_panel=DATA)(check_leaks)
    app.command(rich_help_panel=DATA)(collect)
