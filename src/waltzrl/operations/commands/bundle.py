"""`waltzrl bundle`: what a bundle is, who made it, when it served, and how two differ."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from waltzrl.errors import InputError
from waltzrl.foundation.options import AsJson, open_terminal, print_json
from waltzrl.foundation.texts import moment
from waltzrl.operations.commands.release import DEFAULT_MEMORY, Memory, open_book

if TYPE_CHECKING:
    from waltzrl.gateway.description import StoredBundle
    from waltzrl.operations.release.book import ReleaseBook
    from waltzrl.operations.release.state import Release
    from waltzrl.operations.release.view import Transition

bundle = typer.Typer(
    help="Show what bundles are: recipe, rules, weights, who made them, when they served.\n\n"
    "**Example**\n\n`waltzrl bundle diff`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@bundle.command("list")
def list_bundles(memory: Memory = DEFAULT_MEMORY, as_json: AsJson = False) -> None:
    """List all bundles, the newest first.

    **Example**

    `waltzrl bundle list`
    """
    book = open_book(memory)
    bundles = [found for id_ in book.bundles() if (found := book.stored_bundle(id_))]
    if as_json:
        print_json(msgspec.to_builtins(bundles))
        return
    table = Table("bundle", "made by", "added (UTC)", "by a gateway's recipe since", box=None)
    for each in bundles:
        table.add_row(
            each.id, each.by or "-", _format_time(each.added), _format_time(each.base_since)
        )
    open_terminal().print(table)


@bundle.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Its id, or the start of it [what serves].")
    ] = None,
    memory: Memory = DEFAULT_MEMORY,
    as_json: AsJson = False,
) -> None:
    """Show a bundle: its settings, rules and weights, who made it and when it served.

    **Examples**

    `waltzrl bundle show`

    `waltzrl bundle show 5b1e --memory postgresql://waltzrl@db/waltzrl --json`
    """
    from waltzrl.gateway.description import format_setting, made_by
    from waltzrl.operations.release.opening import serving_bundle

    book = open_book(memory)
    found = _find_bundle(book, name or serving_bundle(book))
    moves = book.moves_of(found.id)
    if as_json:
        history = [msgspec.to_builtins(move) for _, move in moves]
        print_json(msgspec.to_builtins(found) | {"moves": history})
        return
    console, described = open_terminal(), found.description
    console.print(f"bundle {found.id}", style="bold")
    console.print(
        f"made by {made_by(found)}, added {_format_time(found.added)}, "
        f"by a gateway's recipe since {_format_time(found.base_since)}"
    )
    table = Table(box=None, show_header=False)
    for key, value in described.settings.items():
        table.add_row(key, format_setting(value) or "-")
    for part, identity in described.parts.items():
        table.add_row(f"({part})", identity)
    count = len(described.rules)
    table.add_row("(number of rules)", str(count) if count else "unknown")
    table.add_row("(waltzrl)", described.version or "unknown")
    console.print(table)
    console.print(_tabulate_moves(found.id, moves) if moves else "no release had this bundle")


@bundle.command()
def diff(
    before: Annotated[
        str | None, typer.Argument(metavar="[BEFORE]", help="[what the newest release replaces]")
    ] = None,
    after: Annotated[
        str | None, typer.Argument(metavar="[AFTER]", help="[the newest release's candidate]")
    ] = None,
    memory: Memory = DEFAULT_MEMORY,
    as_json: AsJson = False,
) -> None:
    """Say how two bundles differ; without ids those of the newest release.

    **Examples**

    `waltzrl bundle diff`

    `waltzrl bundle diff 90aa 5b1e`
    """
    from waltzrl.gateway.description import describe_differences

    book = open_book(memory)
    if before is None or after is None:
        newest = book.latest()
        if newest is None:
            raise InputError("there is no release yet; give the ids of two bundles")
        before, after = before or newest.serving, after or newest.candidate
    first, second = _find_bundle(book, before), _find_bundle(book, after)
    changes = describe_differences(first.description, second.description)
    if as_json:
        print_json({"before": first.id, "after": second.id, "differences": list(changes)})
        return
    print(f"{first.id} -> {second.id}")
    print("\n".join(changes) or "no difference in settings, rules and weights")


def _find_bundle(book: "ReleaseBook", name: str) -> "StoredBundle":
    """Return the bundle with this id, or whose id alone begins so."""
    ids = [id_ for id_ in book.bundles() if id_.startswith(name)]
    ids = [name] if name in ids else ids
    if not ids:
        raise InputError(
            f"this memory has no bundle {name!r}: a gateway keeps the description of its bundle in "
            "its memory.url, and without one nowhere; see waltzrl bundle list"
        )
    if len(ids) > 1:
        raise InputError(f"{len(ids)} bundles begin with {name!r}; see waltzrl bundle list")
    found = book.stored_bundle(ids[0])
    assert found is not None, "it was listed"
    return found


def _tabulate_moves(id_: str, moves: "Sequence[tuple[Release, Transition]]") -> Table:
    table = Table("time (UTC)", "release", "as", "what", "to", "%", "who", "why", box=None)
    for release, move in moves:
        role = "candidate" if release.candidate == id_ else "serving"
        place = (move.action, move.after, f"{move.percentage:g}", move.by, move.why)
        table.add_row(moment(move.time), release.id, role, *place)
    return table


def _format_time(seconds: float | None) -> str:
    return "-" if seconds is None else moment(seconds)
