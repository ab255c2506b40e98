"""The composition root of what a gateway remembers and releases.

gateway -> remembrance =pipe=> recorder -> memory, evidence, decisions
gateway <- releases <- database                       notices -> audit log
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial

import msgspec

from waltzrl.audit import Log
from waltzrl.build.background import in_background
from waltzrl.build.bundles import Bundles
from waltzrl.build.judges import open_judge
from waltzrl.build.memory import MemorySettings, open_memory
from waltzrl.build.recorder import COMMAND, RecorderSettings
from waltzrl.build.redaction import open_redaction
from waltzrl.config.gateway import BundleRecipe, GatewayRecipe, MemoryConfig, bundle_table
from waltzrl.config.validation import validated
from waltzrl.console import AuditLog, Console, ConsoleSource
from waltzrl.errors import AuditError, InputError, RequestError, StorageError
from waltzrl.memory.safety import SafetyMemory
from waltzrl.online.metrics import FlywheelMetrics
from waltzrl.online.recorder_client import RecorderClient, open_recorder
from waltzrl.online.release_follower import ReleaseFollower, ReleaseStatus
from waltzrl.online.shadow import Shadows
from waltzrl.release.book import BY_ITSELF, ReleaseBook
from waltzrl.release.state import Release
from waltzrl.release.view import decision_body
from waltzrl.rules import Rule
from waltzrl.serving.access import Event, KeyRing, Receive, RequestHeaders, Send
from waltzrl.serving.app import HttpRequest
from waltzrl.serving.exchange import Bundle
from waltzrl.serving.gateway import BundleSelector
from waltzrl.serving.wire import CHAT
from waltzrl.storage.database import open_database
from waltzrl.storage.notices import Notice, last_notice, notices_after

RETRY_AFTER_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineServices:
    """What a gateway with a memory has more than one without."""

    shared: "SharedDatabase"
    releases: ReleaseFollower
    """The roster."""
    shadows: Shadows
    remembrance: RecorderClient
    keys: KeyRing
    audit: AuditLog | None

    @property
    def metrics(self) -> FlywheelMetrics:
        return FlywheelMetrics(self.remembrance.now, self.releases, self.shadows)

    async def desk(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve a page of the desk, as ASGI 3 asks."""
        try:
            desk = await asyncio.to_thread(lambda: self.shared.desk(self.keys, self.audit))
        except StorageError as error:
            await HttpRequest(CHAT, RequestHeaders.read(scope), receive, send).refuse(_away(error))
            return
        await desk(scope, receive, send)

    async def decision(self) -> bytes:
        """Return what `/v1/release/decision` answers.

        Raises:
            RequestError: 503, the database is away.
        """
        try:
            view = await asyncio.to_thread(lambda: self.shared.book.view())
        except StorageError as error:
            raise _away(error) from error
        return msgspec.json.encode(decision_body(view))


class SharedDatabase:
    """The database that all replicas share; each part is made when it is first reached."""

    def __init__(self, settings: MemorySettings) -> None:
        """Ask nothing of the database yet.

        Raises:
            InputError: the database's address or a key is none.
            MissingExtraError: something of it needs an extra that is not installed.
        """
        self.engine = open_database(settings.database)
        self.scrub = settings.open_redaction().scrub
        settings.open_digest()  # told now if there is none, not by the recorder
        self._settings = settings
        self._desk: Console | None = None

    @cached_property
    def book(self) -> ReleaseBook:
        """Raises StorageError while the database is away, as does whatever is asked of it."""
        return ReleaseBook(self.engine)

    @cached_property
    def memory(self) -> SafetyMemory:
        return open_memory(self._settings, self.engine, self.scrub)

    def desk(self, keys: KeyRing, audit: AuditLog | None) -> Console:
        """Return the desk, the same one each time.

        Raises:
            StorageError: the database is away.
        """
        if self._desk is None:
            source = ConsoleSource(
                memory=self.memory,
                releases=self.book,
                redact=open_redaction({}, None).scrub,
                audit=audit,
            )
            self._desk = Console(keys, source)
        return self._desk


@asynccontextmanager
async def open_online_services(
    recipe: GatewayRecipe,
    bundles: Bundles,
    own: BundleSelector,
    keys: KeyRing,
    log: Log | None,
) -> AsyncIterator[OnlineServices]:
    """Begin to remember, and follow releases; a database that is away is waited for beside.

    Args:
        recipe: has a memory.
        bundles: makes those that are released.
        own: serves what the recipe says.
        keys: of the gateway; those with a role open the desk.
        log: the audit log, told of every release that moves, and of erasures.

    Raises:
        InputError: the database's address or a key is none, the key of names is not the memory's,
            or there is no such judge.
        MissingExtraError: something of it needs an extra that is not installed.
    """
    about = recipe.memory
    assert about is not None, "who calls has looked"
    settings = _recorder_settings(recipe, about, bundles.rules(recipe.bundle).rulebook.rules)
    shared = SharedDatabase(settings)
    releases = ReleaseFollower(
        own,
        partial(_standing, shared, own.serving.id, recipe),
        partial(_bundle, shared, bundles),
        partial(_note, log),
        partial(_hold, shared),
    )
    async with AsyncExitStack() as stack:
        if about.judge is not None:
            async with open_judge(about.judge):  # told now if there is none, not by the recorder
                pass
        with suppress(StorageError):  # it is waited for; another's key is told now
            await asyncio.to_thread(lambda: shared.memory)
        remembrance = await stack.enter_async_context(
            open_recorder(
                COMMAND,
                settings,
                os.environ,
                may_learn=about.consent == "assumed",
            )
        )
        shadows = Shadows(
            releases,
            remembrance.served,
            at_once=about.shadows_at_once,
            per_minute=about.shadows_per_minute,
        )
        stack.push_async_callback(shadows.aclose)
        await releases.look()
        await stack.enter_async_context(in_background(releases.follow()))
        yield OnlineServices(
            shared=shared,
            releases=releases,
            shadows=shadows,
            remembrance=remembrance,
            keys=keys,
            audit=_audit(recipe, log),
        )


def _audit(recipe: GatewayRecipe, log: Log | None) -> AuditLog | None:
    if recipe.audit is None or log is None:
        return None
    return AuditLog(folder=recipe.audit.folder, key=log.public_key)


def _standing(
    shared: SharedDatabase, own: str, recipe: GatewayRecipe, last: int | None
) -> ReleaseStatus | None:
    """Ask the database where the release stands; the first time, tell it what serves here.

    Whatever moves gives a notice, so that while there is none, one small question is enough.
    """
    book = shared.book  # first: it makes the tables
    newest = last_notice(shared.engine)
    if newest == last:
        return None
    if last is None:
        book.add_bundle(own, json.dumps(bundle_table(recipe.bundle)), is_base=True)
    return ReleaseStatus(
        release=book.current(),  # first: when it moves on meanwhile, nobody loses the candidate
        serving=book.serving(),
        notices=[
            notice
            for notice in notices_after(shared.engine, newest if last is None else last)
            if notice.id <= newest  # those that came meanwhile are for the next look
        ],
        last_notice=newest,
    )


async def _bundle(shared: SharedDatabase, bundles: Bundles, name: str) -> Bundle:
    """Make a bundle of the recipe that the database has of it; it may come out as another.

    Raises:
        InputError: there is none, or what it names is not here.
        MissingExtraError: its weights need an extra that is not installed.
        StorageError: the database is away.
    """
    recipe = await asyncio.to_thread(lambda: shared.book.bundle(name))
    if recipe is None:
        raise InputError(f"the database knows no bundle {name}; propose it again")
    return await bundles.open(validated(BundleRecipe, json.loads(recipe), f"bundle {name}"))


def _hold(shared: SharedDatabase, release: Release, why: str) -> None:
    """Hold a release where it stands; the history, the desk and the audit log tell why."""
    with suppress(InputError):  # it has moved, or another gateway was first
        shared.book.move(release, "hold", BY_ITSELF, shared.scrub(why))


def _note(log: Log | None, notice: Notice) -> None:
    said = (f"{name} {value}" for name, value in notice.body.items())
    logger.warning("%s: %s", notice.kind, ", ".join(said))
    if log is not None:
        with suppress(AuditError):  # it says so itself, and is ready or not for every request
            log.notice({"kind": notice.kind, **notice.body})


def _away(error: StorageError) -> RequestError:
    return RequestError(503, "overloaded", str(error), retry_after_seconds=RETRY_AFTER_SECONDS)


def _recorder_settings(
    recipe: GatewayRecipe, about: MemoryConfig, rules: Iterable[Rule]
) -> RecorderSettings:
    return RecorderSettings(
        database=about.url,
        subject_key=str(about.subject_key),
        privacy=dict(recipe.privacy.actions),
        privacy_key=None if recipe.privacy.key is None else str(recipe.privacy.key),
        retention_days=asdict(about.retention_days),
        categories={rule.id: rule.category for rule in rules},
        judge=about.judge,
        judge_share=about.judge_share,
        niceness=about.niceness,
    )
