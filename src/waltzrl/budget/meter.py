"""The meter of a run: what each step costs goes into the ledger; a cap says when to stop."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from pydantic import Field

from waltzrl.budget.ledger import Activity, Charge, ChargeItem, Ledger
from waltzrl.budget.prices import PriceBook
from waltzrl.budget.report import MACHINE
from waltzrl.errors import BudgetError
from waltzrl.records import Usage

Above0 = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """What the machine costs, and when training stops; raise a cap to go on."""

    usd_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """The price of this machine with all its GPUs, in US dollars; 0 for one that costs nothing by
    the hour. If several machines train together, the price of all."""
    max_usd: Above0 | None = None
    """Most that the whole run may cost. Training stops after the step that reaches it."""
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    """Most tokens that all policies and the judge may read and write."""
    max_hours: Above0 | None = None
    """Most hours of wall time, those before an interruption included."""


@dataclass(eq=False, kw_only=True)
class CostMeter:
    """Counts tokens and time step by step, and writes one charge for each step."""

    ledger: Ledger
    prices: PriceBook
    settings: BudgetSettings
    activity: Activity = "training"
    device: str = "cpu"
    gpus: int = 0
    energy: Callable[[], float | None] = lambda: None
    """Returns joules since some time in the past; None where the machine does not tell."""
    timer: Callable[[], float] = time.perf_counter
    _open: dict[tuple[str, str], ChargeItem] = field(default_factory=dict)
    """What each role and model cost in the step under way."""

    def __post_init__(self) -> None:
        before = self.ledger.contents.charges
        self._charges = {
            charge.id: msgspec.structs.replace(
                charge, items=tuple(map(self._with_price, charge.items))
            )
            for charge in before
        }
        self._since = self.timer()
        self._joules = self.energy()

    def require_price(self, model: str, server: str | None) -> None:
        """Check before the first step that `max_usd` can be kept when a model is asked.

        Args:
            model: name by which it will be asked for.
            server: see `PriceBook.cost`.

        Raises:
            BudgetError: there is such a cap, and the model's price is unknown.
        """
        if self.settings.max_usd is not None and not self.prices.knows(model, server):
            raise _unknown_price(model)

    def count(
        self, role: str, usages: Iterable[Usage | None], server: str | None, model: str = ""
    ) -> None:
        """Add replies to the step under way.

        Args:
            role: who replied.
            usages: of each reply; None where unknown.
            server: see `PriceBook.cost`.
            model: see `PriceBook.cost`.
        """
        for usage in usages:
            item = self.prices.item(role, usage, server, model)
            before = self._open.get((role, item.model))
            self._open[role, item.model] = item if before is None else before.plus(item)

    def charge(self, id_: str, stage: str = "") -> Charge:
        """Write what was counted, and the time that passed, since the charge before.

        Args:
            id_: of the step; one that runs again replaces its earlier charge.
            stage: of training.

        Raises:
            InputError: the ledger cannot be written.
        """
        now = self.timer()
        seconds, self._since = now - self._since, now
        usd = seconds * self.settings.usd_per_hour / 3600
        machine = ChargeItem(role=MACHINE, model=self.device, usd=usd)
        items = [self._open[key] for key in sorted(self._open)]
        self._open.clear()
        charge = Charge(
            id=id_,
            activity=self.activity,
            items=(machine, *items),
            stage=stage,
            seconds=seconds,
            gpus=self.gpus,
            joules=self._spent_joules(),
        )
        # By id: a step that runs again after a crash replaces its charge and is not paid twice.
        self._charges[id_] = charge = self.ledger.append(charge)
        return charge

    @property
    def reached(self) -> str:
        """Which cap has been reached, and by what; empty while none is.

        Raises:
            BudgetError: a price is unknown, so that `max_usd` cannot be kept.
        """
        caps, charges = self.settings, self._charges.values()
        if caps.max_usd is not None:
            self._require_prices()
            # After `_require_prices` no price is unknown.
            usd = sum(charge.usd or 0.0 for charge in charges)
            if usd >= caps.max_usd:
                return f"{usd:.4g} of budget.max_usd {caps.max_usd:g}"
        tokens = sum(charge.tokens for charge in charges)
        if caps.max_tokens is not None and tokens >= caps.max_tokens:
            return f"{tokens:,} of budget.max_tokens {caps.max_tokens:,}"
        hours = sum(charge.seconds for charge in charges) / 3600
        if caps.max_hours is not None and hours >= caps.max_hours:
            return f"{hours:.4g} of budget.max_hours {caps.max_hours:g}"
        return ""

    def _require_prices(self) -> None:
        items = [item for charge in self._charges.values() for item in charge.items]
        unknown = {item.model or item.role: item for item in items if item.usd is None}
        if not unknown:
            return
        name = min(unknown)
        # Without token counts a price would not help, so the advice differs.
        if unknown[name].uncounted:
            raise BudgetError(
                f"{name} did not say how many tokens it read and wrote, so budget.max_usd cannot be"
                " kept; cap by budget.max_hours"
            )
        raise _unknown_price(name)

    def _with_price(self, item: ChargeItem) -> ChargeItem:
        """Price what had no price when it was charged, and has one of one's own now."""
        if item.usd is not None or item.uncounted:
            return item
        name = item.model or item.role
        usage = Usage(input_tokens=item.input_tokens, output_tokens=item.output_tokens, model=name)
        return msgspec.structs.replace(item, usd=self.prices.cost(usage, "", name))

    def _spent_joules(self) -> float | None:
        before, self._joules = self._joules, self.energy()
        return None if before is None or self._joules is None else self._joules - before


def _unknown_price(name: str) -> BudgetError:
    return BudgetError(
        f"the price of {name} is unknown, so budget.max_usd cannot be kept; set "
        f'prices."{name}" = {{input = USD, output = USD}} per million tokens, or cap by '
        "budget.max_tokens"
    )
