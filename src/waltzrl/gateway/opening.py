"""The composition root of the gateway: builds the application of a recipe.

GatewayRecipe -> upstream, rules, bundles, audit, metrics -> App
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from msgspec import structs
from prometheus_client.registry import Collector

from waltzrl.budget import PriceBook
from waltzrl.budget.daily import DailyLedger
from waltzrl.errors import InputError, MissingExtraError, RequestError, WaltzError
from waltzrl.foundation.background import in_background
from waltzrl.foundation.plugins import load_plugin
from waltzrl.gateway.access import AccessControl, Event, KeyRing, Receive, Send
from waltzrl.gateway.app import (
    App,
    DeskHandler,
    ExtraRoutes,
    HttpRequest,
    MemoryRoutes,
    OpenDesk,
    RoutingHandler,
)
from waltzrl.gateway.bundles import Bundles
from waltzrl.gateway.costs import ServingCosts
from waltzrl.gateway.events import log_decision
from waltzrl.gateway.exchange import Assignment, Bundle, BundleSelector
from waltzrl.gateway.gateway import (
    DecisionLog,
    Gateway,
    Listener,
    SingleBundle,
)
from waltzrl.gateway.health import OK, Check, Health
from waltzrl.gateway.keys import ANONYMOUS
from waltzrl.gateway.metric_groups import BackendCounters
from waltzrl.gateway.metrics import GatewayMetrics, GatewayStatus, OtherMetrics, StatusGauges
from waltzrl.gateway.model_names import ModelNames
from waltzrl.gateway.named_policies import PolicyChooser, PolicySelector
from waltzrl.gateway.settings import BundleRecipe, GatewayRecipe, OnLoadFailure
from waltzrl.gateway.shares import RateTable, WorkerLoad
from waltzrl.gateway.split import PercentageSplit
from waltzrl.gateway.trials import Trials
from waltzrl.gateway.wire import CHAT
from waltzrl.policies.gguf import short_name
from waltzrl.store.audit.log import Log
from waltzrl.store.audit.opening import contents_expire, log_key, log_settings
from waltzrl.store.audit.writer import LocalLog
from waltzrl.store.memory.settings import MemoryConfig

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from waltzrl.agents.live_examples import LiveExamples
    from waltzrl.foundation.otlp import MetricsPush
    from waltzrl.gateway.traces import Traces
    from waltzrl.store.memory.safety import SafetyMemory


class Services(MemoryRoutes, Protocol):
    """What a gateway with a memory does with what it has served."""

    @property
    def releases(self) -> BundleSelector:
        """Selects the bundle of each request."""
        ...

    @property
    def collect(self) -> Listener:
        """Takes everything that is served, to be stored and learned from."""
        ...

    @property
    def listeners(self) -> Sequence[Listener]:
        """They are told of everything that is served, after `collect`."""
        ...

    @property
    def metrics(self) -> Collector:
        """The metrics of these services."""
        ...

    @property
    def scrub(self) -> Callable[[str], str]:
        """Removes personal data from a text."""
        ...

    def memory(self) -> "SafetyMemory":
        """Return the memory.

        Raises:
            StorageError: the database is unavailable.
        """
        ...

    def desk(self, trials: Trials) -> DeskHandler:
        """Return the handler of the review desk."""
        ...


OpenServices = Callable[
    [GatewayRecipe, Bundles, BundleSelector, AccessControl, Log | None, "LiveExamples | None"],
    AbstractAsyncContextManager[Services],
]
OpenGuestDesk = Callable[[KeyRing, Trials], DeskHandler]
OpenRoutes = Callable[[Path | None, "Callable[[], SafetyMemory] | None"], RoutingHandler]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What one worker of a gateway shares with the others."""

    log: Log | None
    """The audit log, which another process writes."""
    load: WorkerLoad
    rates: RateTable
    other_metrics: OtherMetrics | None = None
    """Returns the metrics of the others; None if there are none."""


def describe_gateway(recipe: GatewayRecipe, app: App) -> str:
    """Return what serves, in a few words."""
    bundle = app.gateway.selector.serving()
    stage = f"stage {bundle.stage}, rules for English," if bundle.stage else "no review"
    named = f", policies: {', '.join(recipe.policies)}" if recipe.policies else ""
    return f"{stage} in front of {recipe.upstream.name}, streams: {bundle.stream_mode}{named}"


@asynccontextmanager
async def open_gateway(recipe: GatewayRecipe, shares: Shares | None = None) -> AsyncIterator[App]:
    """Build a gateway; on exit, connections, audit log and traces are closed.

    Args:
        recipe: what to serve.
        shares: of one of several workers; None for a gateway in this process alone.

    Raises:
        InputError: weights, rules, keys or the audit log cannot be read or written.
        AuditError: the audit log was altered, or is in use by another process.
        MissingExtraError: the recipe needs an extra that is not installed.
    """
    folder = recipe.upstream.folder
    model_name = None if folder is None else short_name(folder)
    examples = None if recipe.memory is None else _open_live_examples(recipe.memory)
    backend = BackendCounters()
    bundles = Bundles(
        recipe.limits, model_name, backend, examples and examples.shown_to("feedback")
    )
    anonymous = structs.replace(
        ANONYMOUS,
        allow_fields=recipe.allow_fields,
        media=recipe.media,
        system_turns=recipe.system_turns,
    )
    keys = KeyRing(
        recipe.keys,
        anonymous,
        has_ledger=recipe.budget is not None,
        policies=recipe.policies,
    )
    async with AsyncExitStack() as stack:
        shared = (
            await stack.enter_async_context(_share_nothing(recipe)) if shares is None else shares
        )
        log = shared.log
        costs = (
            None
            if recipe.budget is None
            else ServingCosts(
                stack.enter_context(closing(DailyLedger(recipe.budget.folder))),
                PriceBook(recipe.prices),
                lambda id_: bundles.descriptions[id_][0],
            )
        )
        access = AccessControl(keys, recipe.limits, shared.load, shared.rates, costs)
        # Before a bundle is opened, so that one that fails to open leaves no connection.
        stack.push_async_callback(bundles.aclose)
        selector = await _open_selector(recipe, bundles)
        policies = await _open_policies(recipe, bundles)
        served = (selector.serving(), *policies.values())
        metrics = GatewayMetrics(
            {rule: name for bundle in served for rule, name in bundle.categories.items()},
            backend=backend,
            knows_model=bundles.knows_model,
            price=None if costs is None else costs.cost,
            others=shared.other_metrics,
        )
        if policies:
            selector = PolicySelector(selector, policies)
        listeners: list[Listener] = [metrics.served, log_decision]
        if costs is not None:
            listeners.append(costs.served)
        traces = stack.enter_context(closing(_open_traces())) if recipe.traces else None
        if traces is not None:
            listeners.append(traces.served)
        services = None
        if recipe.memory is not None:
            open_services = cast("OpenServices", load_plugin("waltzrl.services", "memory"))
            services = await stack.enter_async_context(
                open_services(recipe, bundles, selector, access, log, examples)
            )
            selector = services.releases
            listeners += [
                services.collect if traces is None else traces.collecting(services.collect),
                *services.listeners,
            ]
            metrics.add(services.metrics)
            stack.enter_context(_scrub_logs(services.scrub))
        decisions = DecisionLog(log, listeners)
        checks = {
            "gateway": access.admission.health,
            "audit": decisions.health,
            # Asked anew each time: a release changes which bundle serves.
            "upstream": lambda: selector.serving().upstream.health(),
            "reviewer": lambda: _check_reviewer(bundles, recipe, selector.serving()),
            **({} if costs is None else {"costs": costs.health}),
        }
        metrics.add(
            StatusGauges(partial(_collect_status, access, bundles, selector, log, checks, policies))
        )
        if recipe.push_metrics:
            await stack.enter_async_context(in_background(_open_metrics_push(metrics).run()))
        yield App(
            Gateway(
                selector=selector,
                decisions=decisions,
                names=_open_model_names(recipe, bundles),
                examples=examples and examples.shown_to("conversation"),
                usd=None if costs is None else costs.usd,
            ),
            access,
            policies=PolicyChooser(recipe.policies, is_open=keys.is_open),
            metrics=metrics,
            checks=checks,
            extra=ExtraRoutes(
                services,
                _find_desk(services, keys),
                _open_routing(recipe, services),
                recipe.pass_through,
                recipe.origins,
            ),
        )


def _open_model_names(recipe: GatewayRecipe, bundles: Bundles) -> ModelNames:
    """Return which names of models may be recorded; without the scanner only known ones."""
    if recipe.audit is None and recipe.memory is None and not recipe.traces:
        return ModelNames(bundles.knows_model, scrub=str)  # only metrics: they ask knows_model too
    from waltzrl.store.privacy.opening import open_redaction

    try:
        return ModelNames(bundles.knows_model, open_redaction().scrub)
    except MissingExtraError:
        return ModelNames(bundles.knows_model)


def _open_routing(recipe: GatewayRecipe, services: Services | None) -> RoutingHandler | None:
    if recipe.routing is None:
        return None
    open_routes = cast("OpenRoutes", load_plugin("waltzrl.routes", "routing"))
    return open_routes(recipe.routing.agents, None if services is None else services.memory)


def _find_desk(services: Services | None, keys: KeyRing) -> OpenDesk | None:
    """Return what opens the desk; None where nobody could log in.

    Without a memory it is only the page that tries requests, for clients that need no key.
    """
    if services is not None:
        return services.desk
    return partial(_open_guest_desk, keys) if keys.is_open else None


def _open_guest_desk(keys: KeyRing, trials: Trials) -> DeskHandler:
    """Return a handler that loads the pages at their first request: most gateways get none."""
    desk: DeskHandler | None = None

    async def serve(scope: Event, receive: Receive, send: Send) -> None:
        nonlocal desk
        if desk is None:
            try:
                desk = await asyncio.to_thread(
                    lambda: cast("OpenGuestDesk", load_plugin("waltzrl.routes", "desk"))(
                        keys, trials
                    )
                )
            except WaltzError as error:
                unavailable = RequestError(404, "not_found", str(error))
                await HttpRequest(CHAT, scope, receive, send).refuse(unavailable)
                return
        await desk(scope, receive, send)

    return serve


def _open_live_examples(memory: MemoryConfig) -> "LiveExamples | None":
    if not memory.examples:
        return None
    from waltzrl.agents.live_examples import LiveExamples

    logger.warning(
        "memory.examples: agents that were not trained with examples may get much worse by them; "
        "measure yours with `waltzrl evaluate --set examples=URL`, see docs/memory.md"
    )
    return LiveExamples(memory.examples, memory.examples_for)


async def _open_selector(recipe: GatewayRecipe, bundles: Bundles) -> BundleSelector:
    bundle = await _open_bundle(recipe.bundle, bundles, recipe.on_load_failure)
    if bundle.stage < 2 or recipe.stage2_percentage == 100:
        return SingleBundle(Assignment(bundle))
    # A stream waits for its review whichever of the two serves it.
    stage1 = replace(recipe.bundle, stage=1, stream=recipe.stream_mode)
    return PercentageSplit(await bundles.open(stage1), bundle, recipe.stage2_percentage)


async def _open_policies(recipe: GatewayRecipe, bundles: Bundles) -> dict[str, Bundle]:
    """Open the bundle of each policy, by its name."""
    opened = {}
    for name, policy in recipe.policies.items():
        try:
            opened[name] = await _open_bundle(policy.bundle, bundles, recipe.on_load_failure, name)
        except InputError as error:
            raise InputError(f"policies.{name}: {error}") from error
    return opened


async def _open_bundle(
    recipe: BundleRecipe, bundles: Bundles, on_load_failure: OnLoadFailure, policy: str = ""
) -> Bundle:
    """Open a bundle, or its stage 1 if that is to serve where its feedback model cannot be loaded.

    Raises:
        WaltzError: it cannot be opened.
    """
    try:
        return await bundles.open(recipe, policy)
    except WaltzError as error:
        if on_load_failure == "stop":
            raise
        # If the upstream's weights are missing, this stops.
        bundle = await bundles.open(replace(recipe, stage=1), policy)
        logger.error("cannot load the feedback model, so stage 1 serves: %s", error)  # noqa: TRY400
        return bundle


@asynccontextmanager
async def _share_nothing(recipe: GatewayRecipe) -> AsyncIterator[Shares]:
    """Share nothing: this process writes the audit log itself."""
    async with AsyncExitStack() as stack:
        log = None
        if (audit := recipe.audit) is not None:
            settings = log_settings(audit, recipe.privacy)
            log = LocalLog.open(audit.folder, key=log_key(audit), settings=settings)
            stack.enter_context(log)
            await stack.enter_async_context(contents_expire(audit))
        yield Shares(log=log, load=WorkerLoad(), rates=RateTable())


@contextmanager
def _scrub_logs(scrub: Callable[[str], str]) -> Iterator[None]:
    """Remove personal data from this process's log messages while the block runs."""
    from waltzrl.store.privacy.scrubbing import ScrubbingFilter

    # Of the handlers, because a logger's filter does not see what its children log.
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


def _open_traces() -> "Traces":
    from waltzrl.gateway.traces import open_traces

    return open_traces()


def _open_metrics_push(metrics: GatewayMetrics) -> "MetricsPush":
    from waltzrl.foundation.otlp import open_push

    return open_push(metrics.families)


def _check_reviewer(bundles: Bundles, recipe: GatewayRecipe, serving: Bundle) -> Health:
    check = bundles.check(recipe.bundle)
    health = OK if check is None else check.health()
    if health.detail or not serving.languages:
        return health
    return replace(health, detail=f"not for other languages than {', '.join(serving.languages)}")


def _collect_status(
    access: AccessControl,
    bundles: Bundles,
    selector: BundleSelector,
    log: Log | None,
    checks: Mapping[str, Check],
    policies: Mapping[str, Bundle],
) -> GatewayStatus:
    return GatewayStatus(
        gauges={
            "active_requests": access.admission.active,
            "waiting_requests": access.admission.waiting,
            "draining": access.admission.draining,
            "keys": len(access.keys),
            "keys_stale": access.keys.stale,
            "unaudited_total": 0 if log is None else log.unaudited,
            "audit_failing": log is not None and log.failed is not None,
            "waiting_reviews": bundles.waiting_reviews,
        },
        checks={name: check().status for name, check in checks.items()},
        breakers=bundles.breakers,
        bundle=selector.serving().id,
        self_test=bundles.self_test,
        policies={name: bundle.id for name, bundle in policies.items()},
    )
