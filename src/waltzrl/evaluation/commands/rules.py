"""`waltzrl rules`: check rule packs, and try them on a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from waltzrl.agents.rules import DEFAULT_PACKS, count_hits, lint_frames, lint_pack, load_rulebook
from waltzrl.foundation.options import AsJson, print_json

rules = typer.Typer(help="Check rule packs, and try them on a text.", no_args_is_help=True)


LEAST_PRECISION = 0.9
"""The precision below which a rule is no reason to flag a text on its own."""


@rules.command()
def lint(
    packs: Annotated[
        list[str] | None, typer.Argument(help="TOML files or names; default: all of ours.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Labelled prompts on which rules are measured; may be repeated."),
    ] = None,
) -> None:
    """List the problems of rule packs, and measure their rules; exits with 1 if any fails.

    A rule fails if it misses its example, matches a twin or, on --data, if its precision is
    certainly below 90 %: then its patterns, or some of them, belong under `ambiguous` or `weak`.

    **Examples**

    `waltzrl rules lint my-rules.toml`

    `waltzrl rules lint my-rules.toml --data harmful.jsonl --data benign.jsonl`
    """
    chosen = packs or DEFAULT_PACKS
    problems = [problem for pack in chosen for problem in lint_pack(pack)]
    if not packs:
        problems += lint_frames()
    if data and not problems:
        problems = _measure_packs(chosen, data)
    for problem in problems:
        print(problem)
    if problems:
        raise typer.Exit(1)
    print(f"ok: {len(chosen)} packs")


def _measure_packs(packs: Sequence[str], data: Sequence[Path]) -> list[str]:
    """Print a table of the rules, and return the failing ones."""
    from waltzrl.evaluation.intervals import share
    from waltzrl.foundation.jsonl import read_prompts

    prompts = [prompt for path in data for prompt in read_prompts(path)]
    harmful = [prompt.request for prompt in prompts if prompt.label == "unsafe"]
    benign = [prompt.request for prompt in prompts if prompt.label == "benign"]
    print(f"| rule | hits of {len(harmful)} harmful | hits of {len(benign)} benign | precision |")
    print("| --- | ---: | ---: | --- |")
    failing = []
    for hits in count_hits(packs, harmful, benign):
        precision = share(hits.harmful, hits.harmful + hits.benign)
        value, low, high = precision.value or 0.0, precision.low or 0.0, precision.high or 0.0
        interval = f"{value:.1%} ({low:.1%}-{high:.1%})"
        print(f"| {hits.rule} | {hits.harmful} | {hits.benign} | {interval} |")
        if high < LEAST_PRECISION:
            failing.append(
                f"rule {hits.rule!r} has a precision of {interval}; narrow a pattern, or list it"
                " under ambiguous or weak"
            )
    return failing


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
