"""The command line: each command parses its options, calls one function and prints."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from waltzrl import __version__
from waltzrl.cli.access import access
from waltzrl.cli.audit import audit
from waltzrl.cli.backup import backup
from waltzrl.cli.calibrate import calibrate
from waltzrl.cli.collect import collect
from waltzrl.cli.compare import compare
from waltzrl.cli.cost import cost
from waltzrl.cli.demo import demos
from waltzrl.cli.erase import erase
from waltzrl.cli.evaluate import evaluate
from waltzrl.cli.evolve import evolve
from waltzrl.cli.export import export
from waltzrl.cli.judge import agreement, judge
from waltzrl.cli.keys import keys
from waltzrl.cli.mcp import mcp, mcp_proxy
from waltzrl.cli.metrics import metrics
from waltzrl.cli.prompts import check_leaks, generate, import_prompts
from waltzrl.cli.release import release
from waltzrl.cli.report import report
from waltzrl.cli.rescore import rescore
from waltzrl.cli.route import route
from waltzrl.cli.rules import rules
from waltzrl.cli.serve import serve
from waltzrl.cli.specialists import specialists
from waltzrl.cli.study import study
from waltzrl.cli.sweep import sweep
from waltzrl.cli.train import train
from waltzrl.cli.verify import verification
from waltzrl.errors import WaltzError, explain

TRAIN, EVALUATE, SERVE, DATA = "Train", "Evaluate", "Serve", "Data"
"""Groups of commands in the help."""
RESUMABLE = ("train", "evaluate", "sweep", "demo", "study", "specialists", "evolve")
"""Commands that resume where they were stopped."""

app = typer.Typer(
    help="Train, measure and serve two agents that make a language model safe and helpful.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"waltzrl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Take the options before a command."""


# `--help` shows groups and commands in this order.
app.command(rich_help_panel=TRAIN)(train)
app.command(rich_help_panel=TRAIN)(sweep)
app.command(rich_help_panel=TRAIN)(export)
app.add_typer(demos, name="demo", rich_help_panel=TRAIN)
app.command(rich_help_panel=TRAIN)(study)
app.add_typer(specialists, name="specialists", rich_help_panel=TRAIN)
app.command(rich_help_panel=EVALUATE)(evaluate)
app.command(rich_help_panel=EVALUATE)(rescore)
app.command(rich_help_panel=EVALUATE)(compare)
app.command(rich_help_panel=EVALUATE)(report)
app.command(rich_help_panel=EVALUATE)(judge)
app.command(rich_help_panel=EVALUATE)(agreement)
app.add_typer(evolve, name="evolve", rich_help_panel=EVALUATE)
app.command(rich_help_panel=EVALUATE)(calibrate)
app.add_typer(cost, name="cost", rich_help_panel=EVALUATE)
app.command(rich_help_panel=SERVE)(serve)
app.add_typer(verification, name="verify", rich_help_panel=SERVE)
app.command(rich_help_panel=SERVE)(metrics)
app.command(rich_help_panel=SERVE)(mcp)
app.command(rich_help_panel=SERVE)(mcp_proxy)
app.command(rich_help_panel=SERVE)(route)
app.add_typer(keys, name="keys", rich_help_panel=SERVE)
app.add_typer(rules, name="rules", rich_help_panel=SERVE)
app.add_typer(audit, name="audit", rich_help_panel=SERVE)
app.add_typer(release, name="release", rich_help_panel=SERVE)
app.add_typer(backup, name="backup", rich_help_panel=SERVE)
app.command(rich_help_panel=DATA)(generate)
app.command("import", rich_help_panel=DATA)(import_prompts)
app.command(rich_help_panel=DATA)(check_leaks)
app.command(rich_help_panel=DATA)(collect)
app.command(rich_help_panel=DATA)(access)
app.command(rich_help_panel=DATA)(erase)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; errors are one line on stderr, with exit status 2.

    Args:
        arguments: the command and its options; None for those of this process.
    """
    logging.basicConfig(format="warning: %(message)s", level=logging.WARNING)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # our error reports its last failure
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if arguments is None:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _flushed_output():
            app(arguments)
    except (WaltzError, OSError) as error:
        _exit_with(error)
    except (ModuleNotFoundError, MemoryError, RuntimeError) as error:
        if (explained := explain(error)) is None:
            raise
        _exit_with(explained)
    except SystemExit as stop:
        if stop.code == 130:
            command = (sys.argv[1:] if arguments is None else arguments)[0]
            hint = f"; run {command} again to resume" if command in RESUMABLE else ""
            print(f"stopped{hint}", file=sys.stderr)
        raise


def _interrupt(*_: object) -> None:
    """Let SIGTERM, sent by service managers, stop us as Ctrl-C does."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.raise_signal(signal.SIGINT)
        return
    # A shell lets background jobs ignore SIGINT, and event loops then do not handle it.
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise KeyboardInterrupt from None
    # Between two steps of tasks: raised inside one, it would be logged as that task's failure.
    loop.call_soon_threadsafe(signal.default_int_handler, signal.SIGINT, None)


def _exit_with(error: Exception) -> NoReturn:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)


@contextmanager
def _flushed_output() -> Iterator[None]:
    """Flush stdout at the end, so that an error such as a full disk is reported."""
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            # Python flushes again at exit, and would report the same error a second time.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise
