"""The ledger: one line for each charge, only ever appended to, safe to cut off at any byte.

A charge is one write that begins and ends with a line break, so a process that is killed leaves
whole lines and at worst one that is torn, and spoils none that others write. A step that runs
again after a crash has the same id as before and counts once.
"""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import msgspec

from waltzrl.errors import InputError
from waltzrl.foundation.files import disk_errors

LEDGER = "ledger.jsonl"
"""Name of the file in the folder of a run or of a gateway."""

Activity = Literal["training", "evaluation", "serving", "judging", "routing"]


class ChargeItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a charge: a role's tokens, or the machine's time."""

    role: str
    """conversation, feedback, teacher, judge, or machine."""
    usd: float | None
    """The cost in US dollars; None when the price or the tokens are unknown."""
    model: str = ""
    """The model's name, as its server says it; of the machine its device."""
    input_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False
    """Some tokens were estimated from the characters, because the server did not count."""
    uncounted: int = 0
    """Replies whose tokens are unknown; they are in no sum."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def plus(self, other: "ChargeItem") -> "ChargeItem":
        """Return the sum of two parts of one role and model."""
        # A sum of which a part is unknown is unknown, and not smaller.
        is_known = self.usd is not None and other.usd is not None
        return ChargeItem(
            role=self.role,
            model=self.model,
            usd=(self.usd or 0.0) + (other.usd or 0.0) if is_known else None,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            estimated=self.estimated or other.estimated,
            uncounted=self.uncounted + other.uncounted,
        )


class Charge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step, or one request, cost."""

    id: str
    """The charge's id, such as `joint/12`; of several with one id the last counts."""
    activity: Activity
    items: tuple[ChargeItem, ...]
    time: float = 0.0
    """Seconds since the epoch, set by the ledger; it never decreases, also if the clock does."""
    stage: str = ""
    """The stage of training."""
    key: str = ""
    """Name of the API key that is charged."""
    seconds: float = 0.0
    """Wall time since the charge before; 0 for one of several requests at the same time."""
    gpus: int = 0
    joules: float | None = None
    """Energy in that time; None where the machine does not tell."""

    @property
    def usd(self) -> float | None:
        """The whole price; None when a part is unknown."""
        prices = [item.usd for item in self.items]
        return None if None in prices else sum(price for price in prices if price is not None)

    @property
    def tokens(self) -> int:
        return sum([item.tokens for item in self.items])


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerContents:
    """What a ledger holds."""

    charges: tuple[Charge, ...] = ()
    """The charges in order, each id of a file once: its last charge, in the place of its first."""
    repeated: tuple[Charge, ...] = ()
    """Charges that a later one of the same id replaces: work that was done again."""
    damaged: int = 0
    """Lines that cannot be read."""


class Ledger:
    """Appends charges to a file; several processes may append to the same one."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open or create the file.

        Args:
            path: of the file; its folder is created.
            clock: seconds since the epoch.

        Raises:
            InputError: it cannot be written.
        """
        self.path, self._clock = path, clock
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            size = os.fstat(self._file).st_size
        self.contents = read_ledger(path) if size else LedgerContents()
        """The contents of the ledger when it was opened."""
        times = [charge.time for charge in self.contents.charges]
        self._last = max(times, default=0.0)

    def append(self, charge: Charge) -> Charge:
        """Write a charge, and return it with its time.

        Raises:
            InputError: the disk is full.
        """
        self._last = max(self._clock(), self._last)
        charge = msgspec.structs.replace(charge, time=self._last)
        append_line(self._file, self.path, charge)
        return charge

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._file)


def append_line(descriptor: int, path: Path, charge: Charge) -> None:
    """Write a charge to an open ledger, in one write.

    Raises:
        InputError: the disk is full.
    """
    # The line break before it ends what a killed process may have left torn.
    line = b"\n%b\n" % msgspec.json.encode(charge)
    with disk_errors(path):
        if os.write(descriptor, line) < len(line):  # a full disk takes a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_decoder = msgspec.json.Decoder(Charge)


def decode_line(line: bytes) -> Charge | None:
    """Return the charge of a line; None if it is empty, or cannot be read."""
    try:
        return _decoder.decode(line) if line else None
    # A torn line may end within a character.
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def ledgers_in(place: Path) -> list[Path]:
    """Return the ledgers of a place: a file, or the folder of a run, an evaluation or a gateway.

    Raises:
        InputError: there is none.
    """
    if place.is_file():
        return [place]
    days = sorted(place.glob(f"*-{LEDGER}"))
    ledgers = [place / LEDGER, *days] if (place / LEDGER).exists() else days
    if not ledgers:
        raise InputError(
            f"{place} holds no {LEDGER}; name the folder of a training run, of an evaluation, or "
            "budget.folder of a gateway"
        )
    return ledgers


def read_ledger(*paths: Path) -> LedgerContents:
    """Read ledgers as one; lines that cannot be read are counted and left out.

    Ids are those of one file: steps of two runs have the same.

    Raises:
        InputError: a file cannot be read.
    """
    lines: list[tuple[Path, bytes]] = []
    for path in {path.resolve(): path for path in paths}.values():
        try:
            lines += [(path, line) for line in path.read_bytes().split(b"\n")]
        except OSError as error:
            raise InputError(f"cannot read the ledger {path}: {error.strerror}") from error
    charges: dict[tuple[Path, str], Charge] = {}
    repeated: list[Charge] = []
    damaged = 0
    for path, line in lines:
        charge = decode_line(line)
        if charge is None:
            damaged += bool(line)
            continue
        key = path, charge.id
        if key in charges:
            repeated.append(charges[key])
        charges[key] = charge
    return LedgerContents(
        charges=tuple(charges.values()), repeated=tuple(repeated), damaged=damaged
    )
