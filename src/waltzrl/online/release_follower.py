"""A roster that follows the release in the database that all replicas share.

Four times a second the database is asked, in a thread; a release that moves, or is rolled back, is
in force here that long after, without a restart. While the database is away, all stays as it was.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from waltzrl.errors import StorageError, WaltzError
from waltzrl.records import Arm
from waltzrl.release.assignment import serves_candidate
from waltzrl.release.state import Release, ReleaseState
from waltzrl.serving.exchange import Assignment, Bundle, GatewayRequest
from waltzrl.serving.gateway import BundleSelector, SingleBundle, conversation_key
from waltzrl.storage.notices import Notice

SECONDS_BETWEEN_LOOKS = 0.25
OTHERWISE = (
    "bundle %s comes out as %s here: its weights, its rules or their packs are others than where "
    "it was proposed; as a candidate it serves nobody here"
)

log = logging.getLogger(__name__)


class ReleaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the database says."""

    serving: str | None
    """Id of the bundle that the newest full release left serving; None when there was none."""
    release: Release | None
    """The one under way."""
    notices: list[Notice]
    """New ones, the oldest first."""
    last_notice: int
    """Id of the newest."""


class ReleaseFollower:
    """Serves what the newest release says, and a release's candidate to its share."""

    def __init__(
        self,
        own: BundleSelector,
        ask: Callable[[int | None], ReleaseStatus | None],
        open_bundle: Callable[[str], Awaitable[Bundle]],
        told: Callable[[Notice], None],
        hold: Callable[[Release, str], None],
    ) -> None:
        """Begin with what the recipe says.

        Args:
            own: the recipe's roster; serves until a release was full.
            ask: reads the database, given the id of the last notice that is known, None at first;
                returns None when there is none since. It blocks.
            open_bundle: makes a bundle by its id; raises a StorageError when it must be asked again
                later, and anything else when it cannot.
            told: hears of each new notice once.
            hold: stops a release on its way, since its candidate cannot serve here, and says why.
                It blocks.
        """
        self._own, self._roster = own, own
        self._ask, self._open_bundle, self._told, self._hold = ask, open_bundle, told, hold
        self._last_notice: int | None = None
        self._opened = {own.serving.id: own.serving}
        self._failed: dict[str, str] = {}
        """Why a bundle could not be opened, when that was last tried."""
        self._away = False
        self._release: Release | None = None
        self._candidate: Bundle | None = None

    @property
    def serving(self) -> Bundle:
        return self._roster.serving

    @property
    def state(self) -> ReleaseState | Literal["off"]:
        """Of the release under way; off when there is none."""
        return "off" if self._release is None else self._release.state

    @property
    def percentage(self) -> float:
        """Share of the conversations that the candidate answers here, 0 to 100."""
        return 0.0 if self._release is None or self._candidate is None else self._release.percentage

    @property
    def shadow(self) -> tuple[Release, Bundle] | None:
        """The release and the bundle that is to answer for nobody; None when there is none."""
        if self._release is None or self._candidate is None or self._release.state != "shadow":
            return None
        return self._release, self._candidate

    def assigned(self, request: GatewayRequest) -> Assignment:
        usual, release = self._roster.assigned(request), self._release
        if release is None:
            return usual
        arm: Arm = "serving"
        bundle = usual.bundle
        if self._candidate is not None and serves_candidate(release, conversation_key(request)):
            arm, bundle = "candidate", self._candidate
        return Assignment(bundle, arm, release.id)

    async def follow(self) -> None:
        """Follow the database until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)

    async def look(self) -> None:
        """Ask once, and let what was said be in force; the next look asks again when that fails."""
        try:
            standing = await asyncio.to_thread(self._ask, self._last_notice)
            if standing is not None:
                await self._take(standing)
        except Exception as error:  # noqa: BLE001 - the boundary: a rollback must still be heard of
            if not self._away:
                log.error("%s; what serves stays as it is", _told(error))  # noqa: TRY400 - one line
            self._away = True
            return
        self._away = False
        if standing is not None:
            self._last_notice = standing.last_notice
            for notice in standing.notices:
                self._told(notice)

    async def _take(self, standing: ReleaseStatus) -> None:
        release = standing.release
        if release is None or release.candidate not in self._opened:
            self._release = self._candidate = None
        serving = None if standing.serving is None else await self._bundle(standing.serving)
        own = serving is None or serving.id == self._own.serving.id
        self._roster = self._own if own or serving is None else SingleBundle(Assignment(serving))
        if release is not None:
            self._candidate = await self._bundle(release.candidate, only_the_same=True)
            self._release = release
            if self._candidate is None and not release.held:
                await asyncio.to_thread(self._hold, release, self._why_not(release.candidate))

    async def _bundle(self, name: str, *, only_the_same: bool = False) -> Bundle | None:
        """Return a bundle, made when it is new here; None when it cannot be made.

        That is tried again whenever something moves, for what was missing may have come.
        What serves all goes on after an upgrade, by its recipe with the rules of today; a candidate
        is measured, and must be the very one that was proposed.
        """
        if name not in self._opened:
            try:
                made = await self._open_bundle(name)
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary: weights fail in many ways
                self._failed[name] = _told(error)
                log.error("bundle %s cannot serve here: %s", name, _told(error))  # noqa: TRY400
            else:
                self._opened[name] = made
                if made.id != name:
                    log.warning(OTHERWISE, name, made.id)
        found = self._opened.get(name)
        return None if found is None or (only_the_same and found.id != name) else found

    def _why_not(self, candidate: str) -> str:
        if candidate in self._opened:
            return "in a gateway the candidate comes out as another bundle; its log tells more"
        return f"a gateway cannot serve the candidate: {self._failed[candidate]}"


def _told(error: Exception) -> str:
    """Return the words of a failure that people can mend; of a mistake of ours also its kind."""
    return str(error) if isinstance(error, WaltzError) else repr(error)
