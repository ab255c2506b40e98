"""Works with a database that may be away: in threads, and again until it answers."""

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import TypeVar

from waltzrl.errors import StorageError

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
"""Before it is asked again; twice as long each time."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class DatabaseRetry:
    """Says once that the database is away, and once that it is back."""

    def __init__(self, tell: Callable[[bool], None]) -> None:
        """Expect a database that answers; `tell` hears whether it is away when that changes."""
        self._tell = tell
        self._away = False

    async def insist(self, work: Callable[[], T]) -> T:
        """Return what work gives, however long the database is away.

        Raises:
            Exception: what else the work raises.
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                done = await asyncio.to_thread(work)
            except StorageError as error:
                if not self._away:
                    log.error("%s", error)  # noqa: TRY400 - one line
                    self._note(away=True)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                if self._away:
                    log.warning("the database answers again")
                    self._note(away=False)
                return done

    async def attempt(self, work: Callable[[], T]) -> T | None:
        """Insist, but go on, with None, when the work fails for a reason of its own."""
        try:
            return await self.insist(work)
        except Exception as error:  # noqa: BLE001 - the boundary: one failure must not end all
            log.error("went on after %s", failure_location(error))  # noqa: TRY400 - its words may be private
            return None

    def _note(self, *, away: bool) -> None:
        self._away = away
        self._tell(away)


def failure_location(error: Exception) -> str:
    """Say what failed and where; its message, or a traceback, may hold what somebody wrote."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {place.filename}:{place.lineno}"
