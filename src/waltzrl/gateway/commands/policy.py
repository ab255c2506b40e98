"""`waltzrl policy`: test the named policies of a gateway, and report what one observed."""

import asyncio
import os
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from waltzrl.foundation.options import AsJson, Settings, open_terminal, print_json

if TYPE_CHECKING:
    from waltzrl.gateway.policy_cases import CaseResult

LONGEST_QUOTE = 60
LISTED = 20

policy = typer.Typer(
    help="Test the named policies of a gateway, and report what one has observed.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@policy.command("test")
def run_tests(
    name: Annotated[
        str, typer.Argument(help='Of [policies.NAME]; "" for the gateway\'s own settings.')
    ],
    cases: Annotated[Path, typer.Argument(help="JSON Lines; see below.")],
    recipe: Annotated[Path | None, typer.Option(help="The gateway's TOML file.")] = None,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Compare what a policy does with what is expected of it; exits with 1 on a miss.

    A line of the cases is `{"prompt": "...", "reply": "...", "expect": "revise"}`; a conversation
    has `messages` in the place of the prompt. What is expected is `pass`, `revise` or `refuse`.
    Without a reply the upstream drafts one, by the `model` that the line names.

    **Example**

    `waltzrl policy test clinic cases.jsonl --recipe gateway.toml`
    """
    from waltzrl.gateway.policy_cases import read_cases, run_cases
    from waltzrl.gateway.settings import load_gateway

    read = read_cases(cases)
    gateway = load_gateway(recipe, {}, settings or [], os.environ)
    results = asyncio.run(run_cases(gateway, name, read))
    missed = [result for result in results if not result.passed]
    if as_json:
        print_json([_as_row(result) for result in results])
    else:
        _print_results(results, missed)
    raise typer.Exit(1 if missed else 0)


@policy.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of the audit log.")],
    name: Annotated[
        str, typer.Option("--policy", help="Of the policy; the gateway's own settings without it.")
    ] = "",
    since: Annotated[
        str, typer.Option(help="From this time on: ISO 8601 (UTC), or back from now: 2h, 7d.")
    ] = "7d",
    as_json: AsJson = False,
) -> None:
    """Report what a policy that only observes would have done, and the drafts to look at.

    An operator's own checks do not count, and neither do requests that were only tried.

    **Example**

    `waltzrl policy report audit --policy trial --since 7d`
    """
    from waltzrl.store.audit.query import Query, moment, observed_drafts, select

    query = Query(since=moment(since, datetime.now(UTC)), policy=name)
    records = [
        record
        for entry in select(folder, query)
        if (record := entry.decision) is not None and record.policy == name and not record.probe
    ]
    observed = observed_drafts(records)
    counts = Counter(draft.would for draft in observed)
    if as_json:
        print_json(
            {
                "policy": name,
                "decisions": len(records),
                "would": dict(counts),
                "drafts": [asdict(draft) for draft in observed[:LISTED]],
            }
        )
        return
    print(
        f"{len(records)} decisions since {since}: would have revised {counts['revised']}, refused "
        f"{counts['refused']}; {counts['unreviewed']} were not reviewed"
    )
    if not observed:
        return
    table = Table("request", "would have been", "risk", "category", "rules", box=None)
    for draft in observed[:LISTED]:
        risk = "" if draft.risk is None else f"{draft.risk:.2f}"
        table.add_row(draft.id, draft.would, risk, draft.category, ", ".join(draft.rules))
    terminal = open_terminal()
    terminal.print(f"look at these {len(observed[:LISTED])}: waltzrl audit show {folder} REQUEST")
    terminal.print(table)


def _as_row(result: "CaseResult") -> dict[str, object]:
    return {
        "line": result.case.line,
        "expect": result.case.expect,
        "got": result.got,
        "passed": result.passed,
        "failure": result.failure,
        "feedback": msgspec.to_builtins(result.feedback),
    }


def _print_results(results: "list[CaseResult]", missed: "list[CaseResult]") -> None:
    terminal = open_terminal()
    if missed:
        table = Table("line", "expected", "got", "category", "found by", "request", box=None)
        for result in missed:
            feedback = result.feedback
            table.add_row(
                str(result.case.line),
                result.case.expect,
                result.got or "no review",
                "" if feedback is None else feedback.category,
                result.failure if feedback is None else ", ".join(feedback.rules),
                str(result.case.turns[-1].get("content"))[:LONGEST_QUOTE],
            )
        terminal.print(table)
    terminal.print(f"{len(results) - len(missed)} of {len(results)} cases as expected")
