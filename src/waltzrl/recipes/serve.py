"""The composition root of the gateway: a recipe becomes an application.

GatewayRecipe -> upstream, rules, bundles, audit, metrics -> App
"""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from waltzrl.agents import RulesReviewer
from waltzrl.audit import Log, LogSettings
from waltzrl.recipes.bundles import Bundles
from waltzrl.recipes.gateway import Auditing, GatewayRecipe
from waltzrl.records import Prompt
from waltzrl.rules import load_rulebook
from waltzrl.serving.app import App
from waltzrl.serving.door import Door
from waltzrl.serving.gateway import Assigned, Gateway, Mode, Roster
from waltzrl.serving.keys import KeyRing, check_bind
from waltzrl.serving.ledger import Book, Told
from waltzrl.serving.metrics import GatewayMetrics, Now
from waltzrl.serving.roster import Always, Split
from waltzrl.serving.server import run
from waltzrl.serving.window import Closed, Open, Sentences, Window


async def hold_open(
    recipe: GatewayRecipe,
    listener: socket.socket,
    *,
    open_to_all: bool,
    announce: Callable[[socket.socket, str], None],
) -> None:
    """Serve a recipe until the process is told to stop.

    Args:
        recipe: what to serve.
        listener: where.
        open_to_all: answer the network although no keys are asked for.
        announce: told where it listens and what it serves, once it can answer.

    Raises:
        InputError: weights, rules, keys or the audit log cannot be read or written, or the
            network would be answered without keys.
        AuditError: the audit log was altered, or another process writes to it.
        MissingExtraError: something of the recipe needs an extra that is not installed.
    """
    async with open_gateway(recipe) as app:
        check_bind(listener.getsockname()[0], app.door.keys, open_to_all=open_to_all)
        stage = f"stage {recipe.stage}" if recipe.enabled else "no review"
        what = recipe.upstream.url or recipe.upstream.folder
        announce(listener, f"{stage} in front of {what}, streams: {recipe.stream_mode}")
        await run(app, listener)


@asynccontextmanager
async def open_gateway(recipe: GatewayRecipe) -> AsyncIterator[App]:
    """Put a gateway together; on leaving, connections, audit log and traces are closed.

    Raises:
        InputError: weights, rules, keys or the audit log cannot be read or written.
        AuditError: the audit log was altered, or another process writes to it.
        MissingExtraError: something of the recipe needs an extra that is not installed.
    """
    rules = RulesReviewer(load_rulebook(recipe.rules), recipe.threshold)
    categories = {rule.id: rule.category for rule in rules.rulebook.rules}
    door = Door(KeyRing(recipe.keys), recipe.limits)
    async with AsyncExitStack() as stack:
        log = stack.enter_context(_log(recipe.audit))
        metrics = GatewayMetrics(lambda: _now(door, bundles, roster, log), categories)
        bundles = Bundles(recipe.limits, _model_name(recipe), metrics.review_failed)
        stack.push_async_callback(bundles.aclose)
        roster = await _roster(recipe, bundles)
        traces = stack.enter_context(_traces()) if recipe.traces else ()
        book = Book(log, [metrics.served, *traces])
        yield App(
            Gateway(roster=roster, ledger=book),
            door,
            mode=recipe.stream_mode,
            open_window=partial(_window, rules),
            metrics=metrics,
            ready=book.require,
        )


async def _roster(recipe: GatewayRecipe, bundles: Bundles) -> Roster:
    last = await bundles.open(recipe.bundle)
    if last.stage < 2 or recipe.stage2_percentage == 100:
        return Always(Assigned(last))
    first = await bundles.open(replace(recipe.bundle, stage=1))
    return Split(first, last, recipe.stage2_percentage)


def _model_name(recipe: GatewayRecipe) -> str | None:
    return None if recipe.upstream.folder is None else Path(recipe.upstream.folder).name


@contextmanager
def _log(audit: Auditing | None) -> Iterator[Log | None]:
    if audit is None:
        yield None
        return
    settings = LogSettings(on_failure=audit.on_failure, contents=audit.contents)
    key = audit.key or audit.folder.with_name(f"{audit.folder.name}.key")
    with Log.open(audit.folder, key=key, settings=settings) as log:
        yield log


@contextmanager
def _traces() -> Iterator[tuple[Told]]:
    from waltzrl.serving.traces import open_traces

    traces = open_traces()
    try:
        yield (traces.served,)
    finally:
        traces.close()


def _window(rules: RulesReviewer, mode: Mode, prompt: Prompt) -> Window:
    if mode == "audit":
        return Open()
    if mode == "buffer":
        return Closed()
    sentences = mode != "speculative"
    return Sentences(rules.rulebook, prompt, rules.threshold, whole_sentences=sentences)


def _now(door: Door, bundles: Bundles, roster: Roster, log: Log | None) -> Now:
    return Now(
        active=door.admission.active,
        waiting=door.admission.waiting,
        draining=door.admission.draining,
        breaker=bundles.breaker,
        keys=len(door.keys),
        keys_stale=door.keys.stale,
        bundle=roster.serving.id,
        unaudited=0 if log is None else log.unaudited,
        audit_failing=log is not None and log.failed is not None,
    )
