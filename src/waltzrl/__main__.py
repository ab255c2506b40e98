"""The command line: each command parses its options, calls one function and prints."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, NoReturn

import typer

from waltzrl import __version__
from waltzrl.errors import EXIT_STATUS, MissingPackageError, WaltzError, explain
from waltzrl.foundation.plugins import DISTRIBUTIONS

PACKAGES = ("training", "gateway", "evaluation", "store", "operations")
"""The packages with commands, in the order in which the help shows them."""
RESUMABLE = (
    *("train", "evaluate", "compare-reviewers", "attack"),
    *("sweep", "demo", "study", "specialists", "evolve", "flywheel"),
)
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


def _add_commands() -> None:
    """Add the commands of the installed packages: ours in this order, then those of others."""
    entries = {entry.name: entry for entry in entry_points(group="waltzrl.commands")}
    if not entries.keys() >= set(PACKAGES):
        sys.exit("error: this waltzrl is not installed, or by halves; run pip install . again")
    for name in (*PACKAGES, *sorted(entries.keys() - set(PACKAGES))):
        try:
            add_commands: Callable[[typer.Typer], None] = entries[name].load()
        except (ImportError, AttributeError) as error:
            # A broken package of somebody else must not make every other command unavailable.
            if name in PACKAGES:
                raise
            print(f"warning: the commands of {name} are left out: {error}", file=sys.stderr)
            continue
        add_commands(app)
    for distribution, provided in DISTRIBUTIONS.items():
        # Each of our distributions names its entry point like itself, without the prefix.
        if distribution.removeprefix("waltzrl-") not in entries:
            for command in provided.get("waltzrl.commands", ()):
                _add_absent_command(command, distribution)


def _add_absent_command(name: str, distribution: str) -> None:
    """Add a command that says in which distribution it is."""

    @app.command(
        name,
        help=f"Not installed: pip install {distribution}",
        rich_help_panel="In other packages",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def raise_missing() -> None:
        raise MissingPackageError(f"the command {name}", distribution)


_add_commands()


@cache
def _build_commands() -> Callable[[Sequence[str] | None], object]:
    """Build all commands, which takes longer than most of them: once for several in a process."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; errors are one line on stderr, with exit status 2.

    Args:
        arguments: the command and its options; None for those of this process.
    """
    logging.basicConfig(format="warning: %(message)s", level=logging.WARNING)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # our error reports its last failure
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # A program that passes arguments has handlers of its own, and may be in another thread.
    if arguments is None:
        signal.signal(signal.SIGTERM, _raise_keyboard_interrupt)
    try:
        with _flush_output():
            _build_commands()(arguments)
    except (WaltzError, OSError) as error:
        _exit_with(error)
    except (ModuleNotFoundError, MemoryError, RuntimeError) as error:
        if (explained := explain(error)) is None:
            raise
        _exit_with(explained)
    except SystemExit as stop:
        # typer's status for a command that Ctrl-C interrupted
        if stop.code == 130:
            command = (sys.argv[1:] if arguments is None else arguments)[0]
            hint = f"; run {command} again to resume" if command in RESUMABLE else ""
            print(f"stopped{hint}", file=sys.stderr)
        raise


def _raise_keyboard_interrupt(*_: object) -> None:
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
    sys.exit(error.exit_status if isinstance(error, WaltzError) else EXIT_STATUS)


@contextmanager
def _flush_output() -> Iterator[None]:
    """Flush stdout at the end, so that an error such as a full disk is reported."""
    try:
        yield
    finally:
        try:
            if sys.stdout is not None:  # it was closed when the program was started
                sys.stdout.flush()
        except OSError:
            # Python flushes again at exit, and would report the same error a second time.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise


if __name__ == "__main__":
    main()
