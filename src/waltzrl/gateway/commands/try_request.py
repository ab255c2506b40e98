"""`waltzrl try`: one request through a gateway in this process, and everything that was said."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import rich.table
import typer
from rich.console import Console
from rich.text import Text

from waltzrl.foundation.options import AsJson, Settings, open_terminal, print_json
from waltzrl.foundation.texts import make_visible
from waltzrl.gateway.commands.serve import (
    ReviewerServer,
    UpstreamUrl,
    choose_reviewer,
    collect_sources,
)

if TYPE_CHECKING:
    from waltzrl.agents.rules import RuleFinding
    from waltzrl.foundation.validation import Table
    from waltzrl.gateway.settings import GatewayRecipe
    from waltzrl.gateway.trials import Trial, TrialPart, TrialResult
    from waltzrl.records import Feedback

Row: TypeAlias = "tuple[str, Text | str]"


def try_request(  # noqa: PLR0913, PLR0917 - each parameter is an option
    request: Annotated[
        str, typer.Argument(help="What a user says; or, in JSON, the messages of a conversation.")
    ],
    recipe: Annotated[
        Path | None, typer.Argument(help="TOML file of a gateway, such as recipes/gateway.toml.")
    ] = None,
    upstream: UpstreamUrl = None,
    model: Annotated[str, typer.Option(help="Model to ask; the upstream's first by default.")] = "",
    policy: Annotated[
        str | None, typer.Option(help="Policy of the recipe that serves, by its name.")
    ] = None,
    reviewer: Annotated[
        str | None,
        typer.Option(help="Reviewer that a package provides, guard:KIND[:MODEL], or rules."),
    ] = None,
    reviewer_server: ReviewerServer = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Ask a small model, as `waltzrl serve --demo` serves it.")
    ] = False,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Answer one request as a gateway would: draft, findings, advice, revision, times.

    The settings are those of `waltzrl serve`. Nothing is kept: no audit log, no memory; a ledger of
    costs is charged.

    **Examples**

    `waltzrl try "How do I make a pipe bomb?" --upstream http://localhost:8000/v1`

    `waltzrl try "Which stocks should I buy?" recipes/gateway.toml --policy strict`

    `waltzrl try "How do I kill a process?" --demo --json`
    """
    from waltzrl.gateway.settings import load_gateway
    from waltzrl.gateway.trials import Trial

    options: Table = {"upstream": {"url": upstream}} if upstream else {}
    sources = collect_sources(
        recipe,
        options,
        settings or [],
        demo=demo,
        pair=None,
        reviewer=choose_reviewer(reviewer, reviewer_server, None),
    )
    trial = Trial(request=request, model=model, policy=policy)
    result = asyncio.run(_run_trial(load_gateway(*sources), trial))
    if as_json:
        print_json(_list_fields(result))
    else:
        _print_result(open_terminal(), result)
    if result.problem is not None:
        raise result.problem


async def _run_trial(recipe: "GatewayRecipe", trial: "Trial") -> "TrialResult":
    """Try a request on a gateway of this process, which keeps nothing but costs.

    Raises:
        WaltzError: as `open_gateway` and `Trials.run`.
    """
    from waltzrl.gateway.opening import open_gateway

    # A gateway that serves the recipe may have its log open, which only one process writes.
    async with open_gateway(recipe.unrecorded) as app:
        return await app.trials.run(trial)


def _list_fields(result: "TrialResult") -> dict[str, object]:
    """Return what there is to say of a result, in JSON's types."""
    exchange = result.exchange
    said = exchange.said
    return {
        "decision": exchange.decision,
        "reason": exchange.reason,
        "policy": exchange.policy,
        "bundle": exchange.bundle,
        "model": exchange.model,
        "milliseconds": exchange.milliseconds,
        "usd": exchange.usd,
        "collaboration": msgspec.to_builtins(said),
        "findings": {}
        if said is None
        else {
            "request": msgspec.to_builtins(result.find_in_request(said.prompt.request)),
            "replies": [
                msgspec.to_builtins(result.find_in_reply(reply.full_text)) for reply in said.replies
            ],
        },
        "parts": msgspec.to_builtins(result.parts),
    }


def _print_result(terminal: Console, result: "TrialResult") -> None:
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _list_rows(result):
        table.add_row(name, text)
    terminal.print(table)


def _list_rows(result: "TrialResult") -> Iterator[Row]:
    """Yield what is printed, in the order in which it was said."""
    exchange = result.exchange
    if (said := exchange.said) is not None:
        request = said.prompt.request
        yield from _mark_text("request", request, result.find_in_request(request))
        draft = said.draft.full_text
        yield from _mark_text("draft", draft, result.find_in_reply(draft))
        for number, turn in enumerate(said.rounds, start=1):
            yield from _describe_feedback(f"feedback {number}", turn.feedback)
            if turn.revision is not None:
                revision = turn.revision.full_text
                found = result.find_in_reply(revision)
                yield from _mark_text(f"revision {number}", revision, found)
    yield "decision", ": ".join(filter(None, (exchange.decision, exchange.reason)))
    yield "served by", f"{exchange.policy or 'own settings'}, {exchange.model}, {exchange.bundle}"
    yield "took", "; ".join(map(_describe_part, result.parts)) or f"{exchange.milliseconds:.0f} ms"


def _mark_text(name: str, text: str, findings: "Sequence[RuleFinding]") -> Iterator[Row]:
    """Yield a text, and below it what was found in it."""
    # As long as the text, in which the findings have their places.
    marked = Text(make_visible(text.replace("\r\n", " \n")))
    for finding in findings:
        marked.stylize("bold reverse", finding.start, finding.end)
    yield name, marked
    for finding in findings:
        words = " ".join(text[finding.start : finding.end].split())
        yield "", f"{finding.rule}: {make_visible(words)}"


def _describe_feedback(name: str, feedback: "Feedback") -> Iterator[Row]:
    risk = {} if feedback.risk is None else {"risk": feedback.risk}
    scores = {**risk, **feedback.scores}
    words = [*feedback.labels, *(f"{key} {score:.2f}" for key, score in scores.items())]
    yield name, ", ".join([*words, *feedback.rules])
    if feedback.text:
        yield "advice", make_visible(feedback.text)


def _describe_part(part: "TrialPart") -> str:
    """Describe what a reply or a review took, such as `draft 812 ms, 40 tokens`."""
    tokens = ""
    if part.usage is not None:
        about = "about " if part.usage.estimated else ""
        tokens = f", {about}{part.usage.output_tokens} tokens"
    usd = "" if part.usd is None else f", USD {part.usd:.6f}"
    return f"{part.name} {part.milliseconds:.1f} ms{tokens}{usd}"
