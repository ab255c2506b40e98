"""The command line: each command parses, calls one function and prints; 30 lines at most."""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import typer

from waltzrl.cli.audit import audit
from waltzrl.cli.collect import collect
from waltzrl.cli.compare import compare
from waltzrl.cli.demo import demos
from waltzrl.cli.erase import erase
from waltzrl.cli.evaluate import evaluate
from waltzrl.cli.export import export
from waltzrl.cli.judge import agreement, judge
from waltzrl.cli.keys import keys
from waltzrl.cli.prompts import check_leaks, generate, import_prompts
from waltzrl.cli.release import release
from waltzrl.cli.report import report
from waltzrl.cli.rescore import rescore
from waltzrl.cli.rules import rules
from waltzrl.cli.serve import serve
from waltzrl.cli.train import train
from waltzrl.errors import WaltzError, missing_extra

app = typer.Typer(
    help="Train, measure and serve two agents that make a language model safe and helpful.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(demos, name="demo")
app.command()(train)
app.command()(export)
app.command()(serve)
app.command()(collect)
app.command()(erase)
app.command()(evaluate)
app.command()(rescore)
app.command()(compare)
app.command()(report)
app.command()(judge)
app.command()(agreement)
app.command()(generate)
app.command("import")(import_prompts)
app.command()(check_leaks)
app.add_typer(release, name="release")
app.add_typer(keys, name="keys")
app.add_typer(rules, name="rules")
app.add_typer(audit, name="audit")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; errors for people are one line on stderr, and exit with 2.

    Args:
        arguments: the command and its options; those of this process when None.
    """
    logging.basicConfig(format="warning: %(message)s", level=logging.WARNING)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # its last failure is our error
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if arguments is None:  # SIGTERM, as service managers send it, ends us as tidily as Ctrl-C
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with _whole_output():
            app(arguments)
    except (WaltzError, OSError) as error:
        _exit_with(error)
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        _exit_with(missing)
    except SystemExit as stop:
        if stop.code == 130:
            print(
                "stopped; train, evaluate and demo go on from here when called again",
                file=sys.stderr,
            )
        raise


def _exit_with(error: Exception) -> NoReturn:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)


@contextmanager
def _whole_output() -> Iterator[None]:
    """Bring out what was printed, or raise; without this, a full disk is noticed too late."""
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise
