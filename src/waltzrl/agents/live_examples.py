"""Examples from the memory for a gateway that does not wait for its memory.

A search that takes too long, fails, or would be one too many at once gives no examples.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import BoundedSemaphore

from waltzrl.agents.coaching import Coach, examples_text
from waltzrl.errors import WaltzError
from waltzrl.records import Prompt
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.settings import ExampleReader

SEARCH_SECONDS = 0.25
AT_ONCE = 4
"""The most searches at once; each takes a thread."""
REMEMBERED = 1_024
"""The number of prompts whose examples are kept, so that the reviewer is shown those of the draft.
"""
KEPT_SECONDS = 120.0
"""The time for which they are kept; whoever is erased is forgotten here too."""

logger = logging.getLogger(__name__)


class LiveExamples:
    """Examples of exchanges that may be learned from, each prompt's looked up once."""

    def __init__(
        self,
        most: int,
        readers: Collection[ExampleReader],
        *,
        seconds: float = SEARCH_SECONDS,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        """Search nothing yet.

        Args:
            most: how many examples are shown.
            readers: whom they are shown.
            seconds: longest wait for a search.
            kept_seconds: how long what was found is kept.
        """
        self.memory: Callable[[], SafetyMemory] | None = None
        """The function that opens the memory, or raises a StorageError; None while the gateway
        starts.
        """
        self._most, self._readers = most, readers
        self._seconds, self._kept_seconds = seconds, kept_seconds
        self._threads = ThreadPoolExecutor(AT_ONCE, "examples")
        self._free = BoundedSemaphore(AT_ONCE)
        self._searches: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._failing = False

    def shown_to(self, reader: ExampleReader) -> "LiveExamples | None":
        """Return this source for an agent that is shown examples, None for another."""
        return self if reader in self._readers else None

    async def examples_for(self, prompt: Prompt) -> str:
        """Return examples; see `ExampleSource`."""
        if self.memory is None:
            return ""
        key = (prompt.id, prompt.request)
        search = self._searches.get(key)
        if search is None:
            search = asyncio.create_task(self._search(prompt, self.memory))
            self._searches[key] = search
            forget = partial(self._searches.pop, key, None)
            asyncio.get_running_loop().call_later(self._kept_seconds, forget)
            if len(self._searches) > REMEMBERED:
                del self._searches[next(iter(self._searches))]
        # Shielded, because the draft and its review may wait for the same search.
        return await asyncio.shield(search)

    async def _search(self, prompt: Prompt, memory: Callable[[], SafetyMemory]) -> str:
        if not self._free.acquire(blocking=False):
            return ""
        search = self._threads.submit(self._text, prompt, memory)
        search.add_done_callback(lambda _: self._free.release())  # also when it is too late
        try:
            async with asyncio.timeout(self._seconds):
                text = await asyncio.wrap_future(search)
        except (WaltzError, TimeoutError) as error:
            if not self._failing:
                why = str(error) or f"a search takes more than {self._seconds:g} s"
                logger.warning("no examples are shown while the memory is unavailable: %s", why)
            self._failing = True
            return ""
        self._failing = False
        return text

    def _text(self, prompt: Prompt, memory: Callable[[], SafetyMemory]) -> str:
        return examples_text(Coach(memory(), self._most, consented=True).sessions(prompt))
