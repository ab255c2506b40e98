"""The composition root of the gateway: a recipe becomes an application.

GatewayRecipe -> upstream, rules, bundles, audit, metrics -> App
"""

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from waltzrl.agents import RulesReviewer
from waltzrl.audit import Log, LogSettings
from waltzrl.recipes.bundles import model_bundle, rules_bundle, split
from waltzrl.recipes.gateway import Auditing, GatewayRecipe
from waltzrl.recipes.models import local_policy
from waltzrl.records import Prompt
from waltzrl.rules import load_rulebook
from waltzrl.serving.app import App
from waltzrl.serving.breaker import Breaker
from waltzrl.serving.door import Door
from waltzrl.serving.gateway import Bundle, Gateway, Mode
from waltzrl.serving.http_upstream import HttpUpstream
from waltzrl.serving.keys import KeyRing, check_bind
from waltzrl.serving.ledger import Book, Told
from waltzrl.serving.metrics import GatewayMetrics, Now
from waltzrl.serving.server import run
from waltzrl.serving.upstream import PolicyUpstream, Upstream
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
    rules = RulesReviewer(
        load_rulebook(recipe.rules), recipe.threshold, mend_refusals=recipe.rules_mend_refusals
    )
    door, breaker = Door(KeyRing(recipe.keys), recipe.limits), Breaker()
    first = serving = rules_bundle(recipe, rules)
    async with AsyncExitStack() as stack:
        log = stack.enter_context(_log(recipe.audit))
        metrics = GatewayMetrics(
            lambda: _now(door, breaker, serving, log),
            {rule.id: rule.category for rule in rules.rulebook.rules},
        )
        if recipe.enabled and recipe.stage == 2:
            told = metrics.review_failed
            serving = await model_bundle(recipe, rules, breaker, told, stack)
        upstream = _upstream(recipe)
        stack.push_async_callback(upstream.aclose)
        traces = stack.enter_context(_traces()) if recipe.traces else ()
        book = Book(log, [metrics.served, *traces])
        share = recipe.stage2_percentage
        yield App(
            Gateway(upstream=upstream, bundle_for=split(first, serving, share), ledger=book),
            door,
            mode=recipe.stream_mode,
            open_window=partial(_window, rules),
            metrics=metrics,
            ready=book.require,
        )


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


def _upstream(recipe: GatewayRecipe) -> Upstream:
    about = recipe.upstream
    if about.folder is not None:
        policy = local_policy(about.folder, in_thread=True)
        return PolicyUpstream(Path(about.folder).name, policy, about.max_new_tokens)
    assert about.url is not None
    return HttpUpstream(
        about.url,
        recipe.limits,
        api_key=os.environ.get(about.api_key_env),
        timeout_seconds=about.timeout_seconds,
    )


def _window(rules: RulesReviewer, mode: Mode, prompt: Prompt) -> Window:
    if mode == "audit":
        return Open()
    if mode == "buffer":
        return Closed()
    sentences = mode != "speculative"
    return Sentences(rules.rulebook, prompt, rules.threshold, whole_sentences=sentences)


def _now(door: Door, breaker: Breaker, serving: Bundle, log: Log | None) -> Now:
    return Now(
        active=door.admission.active,
        waiting=door.admission.waiting,
        draining=door.admission.draining,
        breaker=breaker.state,
        keys=len(door.keys),
        keys_stale=door.keys.stale,
        bundle=serving.id,
        unaudited=0 if log is None else log.unaudited,
        audit_failing=log is not None and log.failed is not None,
    )
