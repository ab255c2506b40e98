"""`waltzrl release`: replaces the serving bundle step by step."""

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from waltzrl.errors import InputError
from waltzrl.foundation.options import AsJson, Settings, open_terminal, print_json

if TYPE_CHECKING:
    from waltzrl.operations.release.book import ReleaseBook
    from waltzrl.operations.release.state import Action, Release

release = typer.Typer(
    help="Release a bundle: shadow, canary, full, or roll back at once.\n\n"
    "**Example**\n\n`waltzrl release propose candidate.toml --before runs/old --after runs/new`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Memory = Annotated[
    str, typer.Option(help="The gateways' memory: sqlite:///FILE or postgresql://USER@HOST/NAME.")
]
By = Annotated[str | None, typer.Option(help="Author, for the audit log [the login name].")]
Why = Annotated[str, typer.Option(help="For the history and the audit log.")]
DEFAULT_MEMORY = "sqlite:///runs/memory.db"


@release.command()
def show(memory: Memory = DEFAULT_MEMORY, as_json: AsJson = False) -> None:
    """Show the newest release: its state, what it changes, its evidence, and what it waits for.

    **Examples**

    `waltzrl release show`

    `waltzrl release show --memory postgresql://waltzrl@db/waltzrl --json`
    """
    from waltzrl.operations.commands.release_table import release_page
    from waltzrl.operations.release.view import decision_body

    book = open_book(memory)
    view = book.view()
    changes = () if view is None else book.changes(view.release)
    if as_json:
        print_json(decision_body(view) | {"changes": list(changes)})
    elif view is None:
        print("there is no release yet; start one: waltzrl release propose RECIPE.toml")
    else:
        open_terminal().print(release_page(view, changes))


@release.command()
def propose(  # noqa: PLR0913, PLR0917 - each parameter is an option
    recipe: Annotated[
        Path, typer.Argument(help="TOML file: the differences from the serving bundle.")
    ],
    plan: Annotated[str, typer.Option(help="See `waltzrl release plans`, or a TOML file.")] = (
        "seven_days"
    ),
    before: Annotated[Path | None, typer.Option(help="Evaluation of the serving bundle.")] = None,
    after: Annotated[Path | None, typer.Option(help="Evaluation of the candidate.")] = None,
    override: Annotated[
        str | None, typer.Option(metavar="REASON", help="Why no evaluation is needed.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Policy of the gateways that it is for, instead of their own.")
    ] = "",
    settings: Settings = None,
    by: By = None,
    memory: Memory = DEFAULT_MEMORY,
) -> None:
    """Start a release, if the evaluations show no regression.

    **Examples**

    `waltzrl release propose candidate.toml --before runs/serving --after runs/candidate`

    `waltzrl release propose candidate.toml --plan quick --override "to try it out"`
    """
    from waltzrl.gateway.settings import load_bundle
    from waltzrl.operations.release import opening as releases
    from waltzrl.operations.release.plan import load_plan

    book = open_book(memory)
    serving = releases.read_stored_recipe(book, releases.serving_bundle(book, policy))
    candidate = load_bundle(recipe, serving, settings or [])
    gate = releases.gate_from_options(before, after, override and _without_personal_data(override))
    _print_state(
        releases.propose_release(
            book, candidate, load_plan(plan), by or _read_login(), gate, policy
        )
    )


@release.command()
def advance(why: Why = "advanced by hand", by: By = None, memory: Memory = DEFAULT_MEMORY) -> None:
    """Advance the release to its next step now, whatever the evidence says.

    **Example**

    `waltzrl release advance --why "enough was seen"`
    """
    _move_release("advance", by, why, memory)


@release.command()
def hold(why: Why = "held by hand", by: By = None, memory: Memory = DEFAULT_MEMORY) -> None:
    """Stop the release from advancing; it is still rolled back when it is worse.

    **Example**

    `waltzrl release hold --why "until the labels are in"`
    """
    _move_release("hold", by, why, memory)


@release.command()
def resume(why: Why = "resumed by hand", by: By = None, memory: Memory = DEFAULT_MEMORY) -> None:
    """Resume a release that is held.

    **Example**

    `waltzrl release resume --why "the weights are there"`
    """
    _move_release("resume", by, why, memory)


@release.command()
def roll_back(
    why: Why,
    by: By = None,
    memory: Memory = DEFAULT_MEMORY,
) -> None:
    """End the release and serve the previous bundle, in every gateway within a second.

    **Example**

    `waltzrl release roll-back --why "complaints about refusals"`
    """
    _move_release("roll_back", by, why, memory)


@release.command()
def history(
    release_id: Annotated[
        str | None, typer.Argument(metavar="RELEASE", help="Its id [the newest release].")
    ] = None,
    memory: Memory = DEFAULT_MEMORY,
    as_json: AsJson = False,
) -> None:
    """List the transitions of a release: when, who, what and why.

    **Example**

    `waltzrl release history`
    """
    from waltzrl.operations.commands.release_table import history_table

    book = open_book(memory)
    moves = book.history(release_id or _find_newest_release(book).id)
    if not moves:
        raise InputError(f"there is no release {release_id}")
    if as_json:
        print_json(msgspec.to_builtins(moves))
    else:
        open_terminal().print(history_table(moves))


@release.command()
def plans() -> None:
    """List the plans that come with waltzrl.

    **Example**

    `waltzrl release plans`
    """
    from waltzrl.operations.commands.release_table import plans_table
    from waltzrl.operations.release.plan import PRESETS, load_plan

    open_terminal().print(plans_table([load_plan(name) for name in PRESETS]))


def open_book(memory: str) -> "ReleaseBook":
    """Open the releases and bundles of a memory.

    Raises:
        InputError: the URL is invalid, or its file is missing.
    """
    from waltzrl.operations.release.book import ReleaseBook
    from waltzrl.store.database import existing_database

    try:
        return ReleaseBook(existing_database(memory))
    except InputError as error:
        raise InputError(
            f"{error}; a gateway without a memory keeps neither bundles nor releases"
        ) from None


def _find_newest_release(book: "ReleaseBook") -> "Release":
    if newest := book.latest():
        return newest
    raise InputError("there is no release yet; start one: waltzrl release propose RECIPE.toml")


def _move_release(action: "Action", by: str | None, why: str, memory: str) -> None:
    book = open_book(memory)
    _print_state(
        book.move(
            _find_newest_release(book), action, by or _read_login(), _without_personal_data(why)
        )
    )


def _without_personal_data(why: str) -> str:
    """Scrub a reason, because nothing is ever erased from audit logs."""
    from waltzrl.store.privacy.opening import open_redaction

    return open_redaction().scrub(why)


def _print_state(release: "Release") -> None:
    from waltzrl.operations.release.state import describe_place

    state = describe_place(release.state, release.percentage) + (", held" if release.held else "")
    bundles = f"candidate {release.candidate}, serving {release.serving}"
    print(f"release {release.id}: {state}; {bundles}")


def _read_login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a process without an account
        return "unknown"
