"""A roster that follows the release in the database that all replicas share.

Four times a second the database is asked, in a thread; a release that moves, or is rolled back, is
in force here that long after, without a restart. While the database is away, all stays as it was.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from waltzrl.errors import WaltzError
from waltzrl.memory.interaction import Arm
from waltzrl.memory.notices import Notice
from waltzrl.release.assignment import serves_candidate
from waltzrl.release.state import Release
from waltzrl.serving.gateway import Assigned, Bundle, Request, Roster
from waltzrl.serving.roster import Always, conversation

SECONDS_BETWEEN_LOOKS = 0.25

log = logging.getLogger(__name__)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What the database says."""

    serving: str | None
    """Id of the bundle that the newest full release left serving; None when there was none."""
    release: Release | None
    """The one under way."""
    notices: list[Notice]
    """New ones, the oldest first."""


class Releases:
    """Serves what the newest release says, and a release's candidate to its share."""

    def __init__(
        self,
        own: Roster,
        ask: Callable[[int], Standing],
        open_bundle: Callable[[str], Awaitable[Bundle]],
        told: Callable[[Notice], None],
        *,
        last_notice: int = 0,
    ) -> None:
        """Begin with what the recipe says.

        Args:
            own: the recipe's roster; serves until a release was full.
            ask: reads the database, given the id of the last notice that is known; blocks.
            open_bundle: makes a bundle by its id; raises a WaltzError when it cannot.
            told: hears of each notice once.
            last_notice: those up to this one are old.
        """
        self._own, self._roster = own, own
        self._ask, self._open_bundle, self._told = ask, open_bundle, told
        self._last_notice = last_notice
        self._opened = {own.serving.id: own.serving}
        self._failed: dict[str, str] = {}
        self._away = False
        self._release: Release | None = None
        self._candidate: Bundle | None = None

    @property
    def serving(self) -> Bundle:
        return self._roster.serving

    @property
    def shadow(self) -> tuple[Release, Bundle] | None:
        """The release and the bundle that is to answer for nobody; None when there is none."""
        if self._release is None or self._candidate is None or self._release.state != "shadow":
            return None
        return self._release, self._candidate

    def assigned(self, request: Request) -> Assigned:
        usual, release = self._roster.assigned(request), self._release
        if release is None:
            return usual
        arm: Arm = "serving"
        bundle = usual.bundle
        if self._candidate is not None and serves_candidate(release, conversation(request)):
            arm, bundle = "candidate", self._candidate
        return Assigned(bundle, arm, release.id)

    async def follow(self) -> None:
        """Follow the database until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)

    async def look(self) -> None:
        """Ask once, and let what was said be in force."""
        try:
            standing = await asyncio.to_thread(self._ask, self._last_notice)
        except WaltzError as error:
            if not self._away:
                log.error("%s; what serves stays as it is", error)  # noqa: TRY400 - one line
            self._away = True
            return
        self._away = False
        await self._take(standing)
        for notice in standing.notices:
            self._last_notice = notice.id
            self._told(notice)

    async def _take(self, standing: Standing) -> None:
        release = standing.release
        if release is None or release.candidate not in self._opened:
            self._release = self._candidate = None
        serving = None if standing.serving is None else await self._bundle(standing.serving)
        own = serving is None or serving.id == self._own.serving.id
        self._roster = self._own if own or serving is None else Always(Assigned(serving))
        if release is not None:
            self._candidate = await self._bundle(release.candidate)
            self._release = release

    async def _bundle(self, name: str) -> Bundle | None:
        """Return a bundle, made when it is new here; None when it cannot be made."""
        if name in self._failed:
            return None
        if name not in self._opened:
            try:
                self._opened[name] = await self._open_bundle(name)
            except WaltzError as error:
                self._failed[name] = str(error)
                log.error("bundle %s cannot serve here: %s", name, error)  # noqa: TRY400
                return None
        return self._opened[name]
