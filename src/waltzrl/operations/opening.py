"""The composition root of what a gateway does with served traffic: memory, releases, console.

gateway -> recorder client =pipe=> recorder -> memory, evidence, decisions
gateway <- release follower <- database                    notices -> audit log
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar, cast

import msgspec

from waltzrl.agents.live_examples import LiveExamples
from waltzrl.agents.rules import Rulebook
from waltzrl.errors import (
    AuditError,
    InputError,
    MissingExtraError,
    RequestError,
    StorageError,
)
from waltzrl.evaluation.judges.opening import open_judge
from waltzrl.foundation.background import in_background
from waltzrl.foundation.counters import LabeledCounter
from waltzrl.foundation.plugins import find_plugin
from waltzrl.foundation.validation import validate_table
from waltzrl.gateway.access import AccessControl, Event, KeyRing, Receive, Send
from waltzrl.gateway.app import DeskHandler
from waltzrl.gateway.bundles import Bundles
from waltzrl.gateway.exchange import Bundle, BundleSelector
from waltzrl.gateway.gateway import Listener
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.settings import BundleRecipe, GatewayRecipe, bundle_table
from waltzrl.gateway.trials import Trials
from waltzrl.gateway.wire.fields import as_name, invalid_field, read_object
from waltzrl.operations.desk import AuditLog, Console, ConsoleSource, DrawPlan
from waltzrl.operations.online.metrics import FlywheelMetrics
from waltzrl.operations.online.recorder_client import RecorderClient
from waltzrl.operations.online.recorder_opening import COMMAND, RecorderConfig, SharedDatabase
from waltzrl.operations.online.release_follower import ReleaseFollower, ReleaseStatus
from waltzrl.operations.online.shadow import Shadows
from waltzrl.operations.release.book import BY_ITSELF
from waltzrl.operations.release.state import Release
from waltzrl.operations.release.view import decision_body
from waltzrl.store.audit.log import Log
from waltzrl.store.audit.opening import log_key
from waltzrl.store.audit.query import subject_digest
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.schemas import Thumb
from waltzrl.store.notices import Notice, last_notice, notices_after
from waltzrl.store.privacy.opening import open_redaction

T = TypeVar("T")

RETRY_AFTER_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineServices:
    """What a gateway with a memory has in addition."""

    shared: SharedDatabase
    releases: ReleaseFollower
    """Selects the bundle of each request."""
    collect: Listener
    listeners: Sequence[Listener]
    scrub: Callable[[str], str]
    metrics: FlywheelMetrics
    keys: KeyRing
    audit: AuditLog | None
    rulebook: Rulebook
    """The recipe's rules, with which the desk marks texts."""
    thumbs: LabeledCounter

    def memory(self) -> SafetyMemory:
        """Return the memory.

        Raises:
            StorageError: the database is unavailable.
        """
        return self.shared.memory

    def desk(self, trials: Trials) -> DeskHandler:
        """Return the handler of the console's pages."""
        open_console = cache(partial(self._open_console, trials))

        async def serve(scope: Event, receive: Receive, send: Send) -> None:
            console = await asyncio.to_thread(open_console)
            await console(scope, receive, send)

        return serve

    def _open_console(self, trials: Trials) -> Console:
        source = ConsoleSource(
            trials=trials,
            database=self.shared,
            redact=open_redaction().scrub,
            audit=self.audit,
            draw_plan=_plan_drawing(),
            rulebook=self.rulebook,
        )
        return Console(self.keys, source)

    async def decision(self) -> bytes:
        """Return the body of `/v1/release/decision`.

        Raises:
            RequestError: 503, the database is unavailable.
        """
        # A lambda, because reading `book` connects too, which must not block the event loop.
        view = await _ask_database(lambda: self.shared.book.view())
        return msgspec.json.encode(decision_body(view))

    async def feedback(self, body: bytes, caller: Caller) -> bytes:
        """Answer `POST /v1/feedback`: `{"id": "...", "thumb": "up" or "down"}`.

        Raises:
            RequestError: 400, 404 for a reply that is unknown or another key's, 503.
        """
        fields = read_object(body)
        id_ = as_name(fields.get("id"), "id")
        try:
            thumb = msgspec.convert(fields.get("thumb"), Thumb)
        except msgspec.ValidationError:
            raise invalid_field("thumb", fields.get("thumb"), '"up" or "down"') from None
        if not await _ask_database(lambda: self.shared.memory.store_thumb(id_, caller.name, thumb)):
            raise RequestError(
                404,
                "not_found",
                f"the memory has no reply {id_[:100]!r} to this key; give the response's header "
                "x-waltzrl-id, or x-request-id without one; a new reply is there within seconds",
                param="id",
            )
        self.thumbs.add(thumb)
        return msgspec.json.encode({"id": id_, "object": "waltzrl.feedback", "thumb": thumb})


def _plan_drawing() -> DrawPlan | None:
    """Return what draws routed plans, where the extra for routing is installed."""
    try:
        return cast("DrawPlan | None", find_plugin("waltzrl.drawings", "plan"))
    except MissingExtraError:
        return None


@asynccontextmanager
async def open_online_services(
    recipe: GatewayRecipe,
    bundles: Bundles,
    own: BundleSelector,
    access: AccessControl,
    log: Log | None,
    examples: LiveExamples | None,
) -> AsyncIterator[OnlineServices]:
    """Start recording and following releases; an unavailable database is retried meanwhile.

    Args:
        recipe: has a memory.
        bundles: opens those that are released.
        own: the recipe's own selector.
        access: of the gateway; its keys with a role open the console, and its ledger is charged
            for shadows.
        log: the audit log, to which notices of releases and erasures are copied.
        examples: of the gateway, for shadows too; gets its memory here.

    Raises:
        InputError: the database's URL, a key or the judge is invalid, or the subject key is not
            the memory's.
        MissingExtraError: an extra that it needs is not installed.
    """
    memory = recipe.memory
    assert memory is not None, "the caller has checked"
    costs = access.costs
    rulebook = bundles.rules(recipe.bundle).rulebook
    config = RecorderConfig(
        memory=memory,
        privacy=recipe.privacy,
        logs=recipe.logs,
        categories={rule.id: rule.category for rule in rulebook.rules},
        budget=recipe.budget,
        prices=recipe.prices,
    )
    shared = SharedDatabase(config)
    if examples is not None:
        examples.memory = lambda: shared.memory
    releases = ReleaseFollower(
        own,
        partial(_read_status, shared, own, bundles),
        partial(_open_bundle, shared, bundles),
        partial(_copy_notice, log),
        partial(_hold_release, shared),
    )
    async with AsyncExitStack() as stack:
        for judge in (memory.judge, memory.second_judge):
            if judge is not None:
                async with open_judge(judge):  # fails here rather than in the recorder
                    pass
        with suppress(StorageError):  # the recorder retries; an InputError about the key is raised
            await asyncio.to_thread(lambda: shared.memory)
        may_learn = memory.consent == "assumed"
        recorder = RecorderClient(COMMAND, config.to_json(), may_learn=may_learn)
        await stack.enter_async_context(recorder.running())
        shadows = Shadows(
            releases,
            [recorder.served] if costs is None else [recorder.served, costs.served],
            at_once=memory.shadows_at_once,
            per_minute=memory.shadows_per_minute,
            examples=examples and examples.shown_to("conversation"),
        )
        stack.push_async_callback(shadows.aclose)
        # Once before the gateway serves, so that its first answers are of the released bundle.
        await releases.poll()
        await stack.enter_async_context(in_background(releases.follow()))
        thumbs = LabeledCounter("waltzrl_thumbs_total", known=[("up",), ("down",)])
        has_judge = memory.judge is not None
        yield OnlineServices(
            shared=shared,
            releases=releases,
            collect=recorder.served,
            listeners=[shadows.served],
            scrub=shared.scrub,
            metrics=FlywheelMetrics(
                recorder, releases, shadows, thumbs=thumbs, has_judge=has_judge
            ),
            keys=access.keys,
            audit=_find_audit_log(recipe, log),
            rulebook=rulebook,
            thumbs=thumbs,
        )


def _find_audit_log(recipe: GatewayRecipe, log: Log | None) -> AuditLog | None:
    if recipe.audit is None or log is None:
        return None
    digest = partial(subject_digest, log_key(recipe.audit))
    return AuditLog(folder=recipe.audit.folder, key=log.public_key, digest=digest)


def _read_status(
    shared: SharedDatabase, own: BundleSelector, bundles: Bundles, last: int | None
) -> ReleaseStatus | None:
    """Read the state of releases; the first time, report the bundles that serve here.

    Every change adds a notice, so that one small query is enough while there is none.
    """
    book = shared.book  # first, because it creates the tables
    newest = last_notice(shared.engine)
    if newest == last:
        return None
    if last is None:
        for id_, (recipe, description) in list(bundles.descriptions.items()):
            table = json.dumps(bundle_table(recipe))
            is_base = id_ == own.serving().id or description.policy != ""
            book.add_bundle(id_, table, description, is_base=is_base)
    return ReleaseStatus(
        # Read before `released`: if it becomes full in between, the candidate serves either way.
        release=book.current(),
        released=book.released(),
        newest=book.latest(),
        moves=book.last_moves(),
        notices=[
            notice
            for notice in notices_after(shared.engine, newest if last is None else last)
            if notice.id <= newest  # later ones belong to the next poll
        ],
        last_notice=newest,
    )


async def _open_bundle(shared: SharedDatabase, bundles: Bundles, bundle_id: str) -> Bundle:
    """Open a bundle from its recipe in the database; it may come out with another id.

    Raises:
        InputError: there is none, or files that it names are missing.
        MissingExtraError: its weights need an extra that is not installed.
        StorageError: the database is unavailable.
    """
    stored = await asyncio.to_thread(lambda: shared.book.stored_bundle(bundle_id))
    recipe = await asyncio.to_thread(lambda: shared.book.bundle(bundle_id))
    if stored is None or recipe is None:
        raise InputError(f"the database has no bundle {bundle_id}; propose it again")
    return await bundles.open(
        validate_table(BundleRecipe, json.loads(recipe), f"bundle {bundle_id}"),
        stored.description.policy,
    )


def _hold_release(shared: SharedDatabase, release: Release, why: str) -> None:
    """Hold a release; the reason goes to its history, the console and the audit log."""
    with suppress(InputError):  # it has moved, or another gateway has held it
        shared.book.move(release, "hold", BY_ITSELF, shared.scrub(why))


def _copy_notice(log: Log | None, notice: Notice) -> None:
    fields = (f"{name} {value}" for name, value in notice.body.items())
    # Labels are many and expected; the other kinds are for operators to see.
    level = logging.INFO if notice.kind == "label" else logging.WARNING
    logger.log(level, "%s: %s", notice.kind, ", ".join(fields))
    if log is not None:
        with suppress(AuditError):  # the log reports it, and refuses requests as configured
            log.notice({"kind": notice.kind, **notice.body}, number=notice.id)


async def _ask_database(work: Callable[[], T]) -> T:
    """Return the result of work in a thread.

    Raises:
        RequestError: 503, the database is unavailable.
    """
    try:
        return await asyncio.to_thread(work)
    except StorageError as error:
        raise RequestError(
            503, "overloaded", str(error), retry_after_seconds=RETRY_AFTER_SECONDS
        ) from error
