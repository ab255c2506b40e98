"""The ledger of a gateway: a file for each day, which all its workers append to and read.

What a key has used today is read from the file, so that workers, restarts and replicas on one disk
agree, and a clock that is set back returns to the file of that day, with all that was used then.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from waltzrl.budget.ledger import LEDGER, Charge, append_line, decode_line
from waltzrl.errors import InputError
from waltzrl.foundation.files import disk_errors

DAY_SECONDS = 86_400
UNKNOWN_TOKENS, UNKNOWN_USD = 4_000, 0.05
"""What a request is taken for before anything of the day was charged to its key."""


@dataclass(slots=True)
class Spent:
    """What an API key has used in a day (UTC)."""

    tokens: int = 0
    usd: float = 0.0
    """The sum in US dollars of what has a known price."""
    unpriced: bool = False
    """Some of it has none."""
    charges: int = 0

    def add(self, charge: Charge) -> None:
        self.charges += 1
        self.tokens += charge.tokens
        for item in charge.items:
            if item.usd is None:
                self.unpriced = True
            else:
                self.usd += item.usd

    def reaches(self, tokens: int | None, usd: float | None, *, in_progress: int) -> bool:
        """Whether one of two budgets is used up, once so many more requests have ended.

        Each of them is taken for as large as those so far are on average.
        """
        share = 1 + in_progress / self.charges if self.charges else 1
        unknown = 0 if self.charges else in_progress
        return (
            tokens is not None and self.tokens * share + unknown * UNKNOWN_TOKENS >= tokens
        ) or (usd is not None and self.usd * share + unknown * UNKNOWN_USD >= usd)


class DailyLedger:
    """Appends charges to the file of the day, and knows what each key has used in it."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open or create the file of today.

        Args:
            folder: of the files, created if missing.
            clock: seconds since the epoch.

        Raises:
            InputError: it cannot be written.
        """
        self._folder, self._clock = folder, clock
        self._day, self._file, self._offset = -1, -1, 0
        self._spent: dict[str, Spent] = {}
        self._open_day()

    def append(self, charge: Charge) -> None:
        """Write a charge.

        Raises:
            InputError: the disk is full. The charge counts for its key in this process.
        """
        self._open_day()
        charge = msgspec.structs.replace(charge, time=self._clock())
        try:
            # What is written is counted when it is read back, as the lines of other workers are.
            append_line(self._file, self.path, charge)
        except BaseException:
            self._add(charge)
            raise

    def spent(self, key: str) -> Spent:
        """Return what a key has used today, in all processes.

        Raises:
            InputError: the file of the day cannot be opened.
        """
        self._open_day()
        self._read_on()
        return self._spent.get(key) or Spent()

    @property
    def path(self) -> Path:
        """The file of the day."""
        day = datetime.fromtimestamp(self._day * DAY_SECONDS, UTC)
        return self._folder / f"{day:%Y-%m-%d}-{LEDGER}"

    @property
    def ends(self) -> datetime:
        """When the day ends (UTC)."""
        return datetime.fromtimestamp((self._day + 1) * DAY_SECONDS, UTC)

    @property
    def seconds_left(self) -> float:
        """Until then."""
        return (self._day + 1) * DAY_SECONDS - self._clock()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open_day(self) -> None:
        day = int(self._clock() // DAY_SECONDS)
        if day == self._day:
            return
        self.close()
        self._day, self._offset, self._spent = day, 0, {}
        try:
            with disk_errors(self.path):
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except InputError:
            self._day = -1  # so that the next call tries again
            raise

    def _read_on(self) -> None:
        """Read the lines that this and other processes have appended since the last look."""
        missing = os.fstat(self._file).st_size - self._offset
        if missing <= 0:
            return
        lines = os.pread(self._file, missing, self._offset)
        # Another process may be in the middle of a line, which is then read the next time.
        end = lines.rfind(b"\n") + 1
        self._offset += end
        for line in lines[:end].split(b"\n"):
            if (charge := decode_line(line)) is not None:
                self._add(charge)

    def _add(self, charge: Charge) -> None:
        if charge.key:
            self._spent.setdefault(charge.key, Spent()).add(charge)
