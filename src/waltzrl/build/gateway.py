"""The composition root of the gateway: builds the application of a recipe.

GatewayRecipe -> upstream, rules, bundles, audit, metrics -> App
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import structs

from waltzrl import __version__
from waltzrl.agents import RulesReviewer
from waltzrl.audit import LocalLog, Log, LogSettings, expire_contents
from waltzrl.build.background import in_background
from waltzrl.build.bundles import Bundles
from waltzrl.config.gateway import AuditConfig, GatewayRecipe, PrivacyConfig
from waltzrl.errors import WaltzError
from waltzrl.privacy import scrub_collaboration
from waltzrl.records import Collaboration, Prompt
from waltzrl.serving.access import AccessControl, KeyRing
from waltzrl.serving.app import App, ExtraRoutes, MemoryRoutes
from waltzrl.serving.events import log_decision
from waltzrl.serving.exchange import Assignment, Mode
from waltzrl.serving.gateway import (
    BundleSelector,
    DecisionLog,
    Gateway,
    Listener,
    SingleBundle,
)
from waltzrl.serving.health import OK, Health, Readiness
from waltzrl.serving.keys import ANONYMOUS, Caller
from waltzrl.serving.metrics import GatewayMetrics, GatewayStatus
from waltzrl.serving.server import check_bind, open_tls, run
from waltzrl.serving.split import PercentageSplit
from waltzrl.serving.stream import StreamSettings
from waltzrl.serving.window import BufferedWindow, SentenceWindow, UnfilteredWindow, Window
from waltzrl.telemetry.logs import fields

DAY_SECONDS = 86_400.0
RETENTION_INTERVAL_SECONDS = 600.0

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from waltzrl.build.online import OnlineServices


async def serve(
    recipe: GatewayRecipe,
    listener: socket.socket,
    *,
    open_to_all: bool,
    announce: Callable[[socket.socket, str], None],
) -> None:
    """Serve a recipe until the process receives a signal to stop.

    Args:
        recipe: what to serve.
        listener: the socket to listen on.
        open_to_all: accept clients from the network even without API keys.
        announce: called with the socket and a description once requests are accepted.

    Raises:
        InputError: weights, rules, keys, TLS files or the audit log cannot be read or written, or
            clients from the network would need no API key.
        AuditError: the audit log was altered, or is in use by another process.
        MissingExtraError: the recipe needs an extra that is not installed.
    """
    files = recipe.tls
    tls = None if files is None else open_tls(files.cert, files.key, files.client_ca)
    logger.info("the gateway starts", extra=_settings_in_short(recipe))
    async with open_gateway(recipe) as app:
        check_bind(listener.getsockname()[0], app.access.keys, open_to_all=open_to_all)
        stage = f"stage {app.stage}, rules for English," if app.stage else "no review"
        upstream = _upstream(recipe)
        announce(listener, f"{stage} in front of {upstream}, streams: {recipe.stream_mode}")
        await run(app, app.access, listener, tls)
    logger.info("the gateway has stopped")


def _settings_in_short(recipe: GatewayRecipe) -> dict[str, object]:
    feedback = recipe.feedback
    return fields(
        version=__version__,
        stage=recipe.stage if recipe.enabled else 0,
        upstream=_upstream(recipe),
        feedback=feedback.model if feedback and recipe.stage == 2 else None,
        threshold=recipe.threshold,
        on_failure=recipe.on_failure,
        streams=recipe.stream_mode,
        keys=str(recipe.keys) if recipe.keys else None,
        audit=str(recipe.audit.folder) if recipe.audit else None,
        memory=recipe.memory is not None,
        traces=recipe.traces,
    )


def _upstream(recipe: GatewayRecipe) -> str:
    """Return the folder or the URL of the model, without a password."""
    if recipe.upstream.url is None:
        return str(recipe.upstream.folder)
    parts = urlsplit(recipe.upstream.url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@asynccontextmanager
async def open_gateway(recipe: GatewayRecipe) -> AsyncIterator[App]:
    """Build a gateway; on exit, connections, audit log and traces are closed.

    Raises:
        InputError: weights, rules, keys or the audit log cannot be read or written.
        AuditError: the audit log was altered, or is in use by another process.
        MissingExtraError: the recipe needs an extra that is not installed.
    """
    folder = recipe.upstream.folder
    model_name = None if folder is None else Path(folder).name
    # The lambdas look up `metrics`, `selector` and `readiness`, assigned below, when called.
    bundles = Bundles(
        recipe.limits,
        model_name,
        lambda cause: metrics.review_failed(cause),
        lambda name, status: metrics.upstream_answered(name, status),
    )
    rules = bundles.rules(recipe.bundle)
    categories = {rule.id: rule.category for rule in rules.rulebook.rules}
    access = AccessControl(KeyRing(recipe.keys, _anonymous(recipe)), recipe.limits)
    async with AsyncExitStack() as stack:
        log = stack.enter_context(_log(recipe.audit, recipe.privacy))
        if recipe.audit is not None and recipe.audit.contents:
            await stack.enter_async_context(in_background(_expire_contents(recipe.audit)))
        metrics = GatewayMetrics(
            lambda: _status(access, bundles, selector, log, readiness),
            categories,
            knows_model=bundles.knows_model,
        )
        stack.push_async_callback(bundles.aclose)
        selector = await _selector(recipe, bundles)
        listeners: list[Listener] = [metrics.served, log_decision]
        if recipe.traces:
            listeners.append(stack.enter_context(_traces()))
        memory = None
        if recipe.memory is not None:
            services = await stack.enter_async_context(
                _online_services(recipe, bundles, selector, access.keys, log)
            )
            selector, memory = services.releases, MemoryRoutes(services.desk, services.decision)
            listeners += [services.recorder.served, services.shadows.served]
            metrics.add(services.metrics)
            stack.enter_context(_scrubbed_logs(services.shared.scrub))
        decisions = DecisionLog(log, listeners)
        readiness = Readiness(
            decisions.require,
            {
                "gateway": access.admission.health,
                "audit": decisions.health,
                "upstream": lambda: selector.serving.upstream.health(),
                "reviewer": lambda: _reviewer_health(bundles, recipe),
            },
        )
        yield App(
            Gateway(selector=selector, decisions=decisions),
            access,
            streams=StreamSettings(recipe.stream_mode, partial(_window, rules)),
            metrics=metrics,
            readiness=readiness,
            extra=ExtraRoutes(memory, recipe.pass_through),
        )


def _online_services(
    recipe: GatewayRecipe, bundles: Bundles, own: BundleSelector, keys: KeyRing, log: Log | None
) -> AbstractAsyncContextManager["OnlineServices"]:
    from waltzrl.build.online import open_online_services

    return open_online_services(recipe, bundles, own, keys, log)


async def _selector(recipe: GatewayRecipe, bundles: Bundles) -> BundleSelector:
    stage1 = replace(recipe.bundle, stage=1)
    try:
        bundle = await bundles.open(recipe.bundle)
    except WaltzError as error:
        if recipe.on_load_failure == "stop":
            raise
        bundle = await bundles.open(stage1)  # if the upstream's weights are missing, this stops
        logger.error("cannot load the feedback model, so stage 1 serves: %s", error)  # noqa: TRY400
    if bundle.stage < 2 or recipe.stage2_percentage == 100:
        return SingleBundle(Assignment(bundle))
    return PercentageSplit(await bundles.open(stage1), bundle, recipe.stage2_percentage)


@contextmanager
def _log(audit: AuditConfig | None, privacy: PrivacyConfig) -> Iterator[Log | None]:
    if audit is None:
        yield None
        return
    settings = LogSettings(on_failure=audit.on_failure, contents=_contents(audit, privacy))
    key = audit.key or audit.folder.with_name(f"{audit.folder.name}.key")
    with LocalLog.open(audit.folder, key=key, settings=settings) as log:
        yield log


async def _expire_contents(audit: AuditConfig) -> None:
    """Remove the texts of old decisions, again and again."""
    while True:
        before = time.time() - audit.contents_days * DAY_SECONDS
        try:
            await asyncio.to_thread(expire_contents, audit.folder, before)
        except (WaltzError, OSError) as error:
            logger.error("cannot remove expired contents of the audit log: %s", error)  # noqa: TRY400
        await asyncio.sleep(RETENTION_INTERVAL_SECONDS)


@contextmanager
def _scrubbed_logs(scrub: Callable[[str], str]) -> Iterator[None]:
    """Remove personal data from this process's log messages while the block runs."""
    from waltzrl.privacy import ScrubbingFilter

    scrubbers = [
        (handler, ScrubbingFilter(scrub, handler.formatter))
        for handler in logging.getLogger().handlers
    ]
    for handler, scrubber in scrubbers:
        handler.addFilter(scrubber)
    try:
        yield
    finally:
        for handler, scrubber in scrubbers:
            handler.removeFilter(scrubber)


def _contents(
    audit: AuditConfig, privacy: PrivacyConfig
) -> Callable[[Collaboration], Collaboration] | None:
    """Return the function that scrubs contents before they are stored; None if none are."""
    if not audit.contents:
        return None
    from waltzrl.build.redaction import open_redaction

    return partial(scrub_collaboration, scrub=open_redaction(privacy.actions, privacy.key).scrub)


@contextmanager
def _traces() -> Iterator[Listener]:
    from waltzrl.serving.traces import open_traces

    traces = open_traces()
    try:
        yield traces.served
    finally:
        traces.close()


def _window(rules: RulesReviewer, mode: Mode, prompt: Prompt) -> Window:
    if mode == "audit":
        return UnfilteredWindow()
    if mode == "buffer":
        return BufferedWindow()
    sentences = mode != "speculative"
    return SentenceWindow(rules.rulebook, prompt, rules.threshold, whole_sentences=sentences)


def _anonymous(recipe: GatewayRecipe) -> Caller:
    """Return what every client may do where there are no keys."""
    return structs.replace(
        ANONYMOUS,
        allow_fields=recipe.allow_fields,
        media=recipe.media,
        system_turns=recipe.system_turns,
    )


def _reviewer_health(bundles: Bundles, recipe: GatewayRecipe) -> Health:
    check = bundles.check(recipe.bundle)
    return OK if check is None else check.health()


def _status(
    access: AccessControl,
    bundles: Bundles,
    selector: BundleSelector,
    log: Log | None,
    readiness: Readiness,
) -> GatewayStatus:
    return GatewayStatus(
        active=access.admission.active,
        waiting=access.admission.waiting,
        draining=access.admission.draining,
        checks={name: check().status for name, check in readiness.checks.items()},
        breakers=bundles.breakers,
        keys=len(access.keys),
        keys_stale=access.keys.stale,
        bundle=selector.serving.id,
        unaudited=0 if log is None else log.unaudited,
        audit_failing=log is not None and log.failed is not None,
        self_test=bundles.self_test,
    )
