"""`waltzrl rules`: check rule packs, and try them on a text."""

from typing import Annotated

import typer

from waltzrl.cli.options import AsJson, print_json
from waltzrl.rules import DEFAULT_PACKS, lint_pack, load_rulebook

rules = typer.Typer(help="Check rule packs, and try them on a text.", no_args_is_help=True)


@rules.command()
def lint(
    packs: Annotated[
        list[str] | None, typer.Argument(help="TOML files or names; default: all of ours.")
    ] = None,
) -> None:
    """List the problems of rule packs; exits with 1 if there are any.

    **Example**

    `waltzrl rules lint my-rules.toml`
    """
    problems = [problem for pack in packs or DEFAULT_PACKS for problem in lint_pack(pack)]
    for problem in problems:
        print(problem)
    if problems:
        raise typer.Exit(1)
    print(f"ok: {len(packs or DEFAULT_PACKS)} packs")


@rules.command("try")
def try_rules(
    text: Annotated[str, typer.Argument(help="A request or, with --reply, a reply.")],
    reply: Annotated[bool, typer.Option("--reply", help="Treat the text as a reply.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the rules find in a text.

    **Example**

    `waltzrl rules try "How do I kill a Python process?"`
    """
    book = load_rulebook()
    findings = book.reply(text) if reply else book.request(text)
    if as_json:
        print_json([{"rule": f.rule, "severity": f.severity, "start": f.start} for f in findings])
        return
    for finding in findings:
        match = text[finding.start : finding.end]
        print(f"{finding.severity:.2f}  {finding.rule}  {match!r}")
    if reply and book.refuses(text):
        print("refuses")
    if not findings:
        print("nothing found")
