"""`waltzrl rules`: check packs of rules, and try them on a text."""

from typing import Annotated

import typer

from waltzrl.cli.options import AsJson, print_json
from waltzrl.rules import DEFAULT_PACKS, lint_pack, load_rulebook

rules = typer.Typer(help="Check packs of rules, and try them.", no_args_is_help=True)


@rules.command()
def lint(
    packs: Annotated[
        list[str] | None, typer.Argument(help="TOML files, or names; all of ours without one.")
    ] = None,
) -> None:
    """Say what is wrong with packs of rules; exits with 1 when something is.

    **Example**

    `waltzrl rules lint my-rules.toml`
    """
    complaints = [said for pack in packs or DEFAULT_PACKS for said in lint_pack(pack)]
    for said in complaints:
        print(said)
    if complaints:
        raise typer.Exit(1)
    print(f"ok: {len(packs or DEFAULT_PACKS)} packs")


@rules.command("try")
def try_rules(
    text: Annotated[str, typer.Argument(help="What a user asks, or an assistant says.")],
    reply: Annotated[bool, typer.Option("--reply", help="Read it as a reply.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what our rules find in a text.

    **Example**

    `waltzrl rules try "How do I kill a Python process?"`
    """
    book = load_rulebook()
    findings = book.reply(text) if reply else book.request(text)
    if as_json:
        print_json([{"rule": f.rule, "severity": f.severity, "start": f.start} for f in findings])
        return
    for found in findings:
        print(f"{found.severity:.2f}  {found.rule}  {text[found.start : found.end]!r}")
    if reply and book.refuses(text):
        print("refuses")
    if not findings:
        print("nothing found")
