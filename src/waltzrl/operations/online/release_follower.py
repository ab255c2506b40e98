"""A bundle selector that follows the release in the database that all replicas share.

It polls the database four times a second, in a thread, so that a release that advances or is
rolled back takes effect without a restart. While the database is unavailable nothing changes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec

from waltzrl.errors import StorageError, WaltzError
from waltzrl.gateway.exchange import Assignment, Bundle, BundleSelector, GatewayRequest
from waltzrl.gateway.split import conversation_key
from waltzrl.operations.release.assignment import serves_candidate
from waltzrl.operations.release.state import Action, Mover, Release, ReleaseState
from waltzrl.records import Arm
from waltzrl.store.notices import Notice

SECONDS_BETWEEN_POLLS = 0.25
MISMATCH = (
    "bundle %s comes out as %s here: its weights, its rules or their packs differ from those where "
    "it was proposed; as a candidate it does not serve here"
)

log = logging.getLogger(__name__)


class ReleaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the database."""

    released: Mapping[str, str]
    """The name of each policy with a full release -> the candidate of the newest one."""
    release: Release | None
    """The one under way."""
    newest: Release | None
    """The newest release, in any state."""
    moves: dict[tuple[Action, Mover], float]
    """See `ReleaseBook.last_moves`."""
    notices: list[Notice]
    """The notices since the last poll, the oldest first."""
    last_notice: int
    """Id of the newest."""


class ReleaseFollower:
    """Selects the bundle of each request: by the current release, else the newest full one."""

    def __init__(
        self,
        own: BundleSelector,
        read_status: Callable[[int | None], ReleaseStatus | None],
        open_bundle: Callable[[str], Awaitable[Bundle]],
        on_notice: Callable[[Notice], None],
        hold: Callable[[Release, str], None],
    ) -> None:
        """Start with the recipe's selector.

        Args:
            own: the recipe's; it serves until a release is full.
            read_status: reads the database, given the id of the last known notice, None at first;
                returns None when there is no newer one. It blocks.
            open_bundle: opens a bundle by its id; raises a StorageError to be retried at the next
                poll, and any other error when the bundle cannot be opened.
            on_notice: called once for each new notice.
            hold: holds a release whose candidate cannot serve here, with a reason. It blocks.
        """
        self._own = own
        self._released: dict[str, Bundle] = {}
        """The name of each policy with a full release -> the bundle that serves it."""
        self._read_status, self._open_bundle = read_status, open_bundle
        self._on_notice, self._hold = on_notice, hold
        self._last_notice: int | None = None
        self._opened = {own.serving().id: own.serving()}
        self._failed: dict[str, str] = {}
        """The reasons why bundles could not be opened at the last attempt."""
        self._failing = False
        self._newest: Release | None = None
        self.moves: dict[tuple[Action, Mover], float] = {}
        """When each kind of move was last made; see `ReleaseBook.last_moves`."""
        self._release: Release | None = None
        self._candidate: Bundle | None = None

    def serving(self, policy: str = "") -> Bundle:
        return self._released.get(policy) or self._own.serving(policy)

    @property
    def state(self) -> ReleaseState | Literal["off"]:
        """Of the newest release, also after its end; off when there has been none."""
        return "off" if self._newest is None else self._newest.state

    @property
    def percentage(self) -> float:
        """Share of the conversations that the newest candidate answers here, 0 to 100."""
        newest = self._newest
        if newest is None:
            return 0.0
        serving = self.serving(newest.policy)
        is_here = self._candidate is not None or serving.id == newest.candidate
        return newest.percentage if is_here else 0.0

    @property
    def shadow(self) -> tuple[Release, Bundle] | None:
        """The release in shadow and its candidate; None when there is none."""
        if self._release is None or self._candidate is None or self._release.state != "shadow":
            return None
        return self._release, self._candidate

    def assigned(self, request: GatewayRequest) -> Assignment:
        usual, release = self._own.assigned(request), self._release
        policy = usual.bundle.policy
        if policy in self._released:
            usual = Assignment(self._released[policy])
        if release is None or release.policy != policy:
            return usual
        arm: Arm = "serving"
        bundle = usual.bundle
        if self._candidate is not None and serves_candidate(release, conversation_key(request)):
            arm, bundle = "candidate", self._candidate
        return Assignment(bundle, arm, release.id)

    async def follow(self) -> None:
        """Follow the database until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(SECONDS_BETWEEN_POLLS)

    async def poll(self) -> None:
        """Read the database once and apply changes; after a failure the next poll reads again."""
        try:
            status = await asyncio.to_thread(self._read_status, self._last_notice)
            if status is not None:
                await self._apply(status)
        except Exception as error:  # noqa: BLE001 - the boundary: later rollbacks must be noticed
            if not self._failing:
                log.error("%s; the serving bundles do not change", _format_error(error))  # noqa: TRY400 - one line
            self._failing = True
            return
        self._failing = False
        if status is not None:
            # Only after everything was applied: a failure before is tried again at the next poll.
            self._last_notice = status.last_notice
            for notice in status.notices:
                self._on_notice(notice)

    async def _apply(self, status: ReleaseStatus) -> None:
        release = status.release
        # Opening a new candidate takes a while; the previous one must not serve until then.
        if release is None or release.candidate not in self._opened:
            self._release = self._candidate = None
        released = {policy: await self._bundle(id_) for policy, id_ in status.released.items()}
        self._released = {
            policy: bundle
            for policy, bundle in released.items()
            # The recipe's own may be a split of two, of which this one is a part.
            if bundle is not None and bundle.id != self._own.serving().id
        }
        if release is not None:
            self._candidate = await self._bundle(release.candidate, exact=True)
            self._release = release
            if self._candidate is None and not release.held:
                await asyncio.to_thread(self._hold, release, self._failure(release.candidate))
        self._newest, self.moves = status.newest, status.moves

    async def _bundle(self, bundle_id: str, *, exact: bool = False) -> Bundle | None:
        """Return a bundle, opened at its first use; None when it cannot be opened.

        Opening is retried at every change, because missing files may be there by then. With `exact`
        the bundle must have this very id, as a candidate that is measured; without, it may come out
        as another, as the serving bundle does when its recipe meets newer rules after an upgrade.
        """
        if bundle_id not in self._opened:
            try:
                opened = await self._open_bundle(bundle_id)
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary: weights fail in many ways
                self._failed[bundle_id] = _format_error(error)
                log.error("bundle %s cannot serve here: %s", bundle_id, _format_error(error))  # noqa: TRY400
            else:
                self._opened[bundle_id] = opened
                if opened.id != bundle_id:
                    log.warning(MISMATCH, bundle_id, opened.id)
        bundle = self._opened.get(bundle_id)
        return None if bundle is None or (exact and bundle.id != bundle_id) else bundle

    def _failure(self, candidate: str) -> str:
        if candidate in self._opened:
            return "in a gateway the candidate comes out as another bundle; see its log"
        return f"a gateway cannot serve the candidate: {self._failed[candidate]}"


def _format_error(error: Exception) -> str:
    """Return the message of an error for people; of any other also its type."""
    return str(error) if isinstance(error, WaltzError) else repr(error)
