"""Sums of charges, by role, model, API key, month, activity or stage."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from waltzrl.budget.ledger import Charge, ChargeItem

GROUPS: Mapping[str, Callable[[Charge, ChargeItem], str]] = {
    "role": lambda charge, item: item.role,
    "model": lambda charge, item: item.model or "unknown",
    "key": lambda charge, item: charge.key or "none",
    "month": lambda charge, item: f"{datetime.fromtimestamp(charge.time, UTC):%Y-%m}",
    "activity": lambda charge, item: charge.activity,
    "stage": lambda charge, item: charge.stage or "none",
}
"""The groupings by which charges can be summed, and the group of a part of a charge."""
MACHINE = "machine"
"""The role of the machine's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The sum of some charges."""

    charges: int = 0
    """Steps or requests."""
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    """The seconds of the machine."""
    gpu_seconds: float = 0.0
    joules: float | None = None
    """The energy of the machines; None where no machine told."""
    usd: float = 0.0
    """The sum in US dollars of what has a known price."""
    unpriced_tokens: int = 0
    """Tokens whose price is unknown; they are in no price."""
    uncounted: int = 0
    """Replies whose tokens are unknown."""

    @property
    def is_complete(self) -> bool:
        """Whether `usd` is all that was spent."""
        return not (self.unpriced_tokens or self.uncounted)


def totals(charges: Iterable[Charge], by: str) -> dict[str, Total]:
    """Sum up charges by one of `GROUPS`, in alphabetical order of the groups."""
    group = GROUPS[by]
    parts: dict[str, list[tuple[Charge, ChargeItem]]] = {}
    for charge in charges:
        for item in charge.items:
            parts.setdefault(group(charge, item), []).append((charge, item))
    return {name: _sum_parts(parts[name]) for name in sorted(parts)}


def total(charges: Iterable[Charge]) -> Total:
    """Sum up all charges."""
    return _sum_parts([(charge, item) for charge in charges for item in charge.items])


def _sum_parts(parts: list[tuple[Charge, ChargeItem]]) -> Total:
    machines = [charge for charge, item in parts if item.role == MACHINE]
    energies = [charge.joules for charge in machines if charge.joules is not None]
    items = [item for _, item in parts]
    return Total(
        # A charge is here once for each of its items.
        charges=len({id(charge) for charge, _ in parts}),
        input_tokens=sum(item.input_tokens for item in items),
        output_tokens=sum(item.output_tokens for item in items),
        seconds=sum(charge.seconds for charge in machines),
        gpu_seconds=sum(charge.seconds * charge.gpus for charge in machines),
        joules=sum(energies) if energies else None,
        usd=sum(item.usd for item in items if item.usd is not None),
        unpriced_tokens=sum(item.tokens for item in items if item.usd is None),
        uncounted=sum(item.uncounted for item in items),
    )


def accumulate_costs(charges: Iterable[Charge]) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield the time of each charge, and what each role has cost until then in US dollars."""
    spent: dict[str, float] = {}
    for charge in sorted(charges, key=lambda charge: charge.time):
        for item in charge.items:
            spent[item.role] = spent.get(item.role, 0.0) + (item.usd or 0.0)
        yield charge.time, dict(spent)
