"""What a run will cost, from the steps that were measured in another one or in a pilot."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles

from waltzrl.budget.ledger import Charge


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRange:
    """An expected amount, and what it would be if every step were as a cheap or a dear one."""

    low: float
    """The amount if all steps were as the tenth percentile of the measured ones."""
    expected: float
    """The amount if they are as their mean."""
    high: float
    """The amount if all steps were as the ninetieth percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A stage of the run to estimate, with the steps that were measured of it."""

    name: str
    steps: int
    measured: Sequence[Charge]
    """The stage's steps in another run; empty when there are none."""
    scale: float = 1.0
    """Turns of a step of this run, for each turn of a measured step."""
    most_tokens: int | None = None
    """Upper bound of the tokens to sample over all steps; None where nothing is sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one stage will cost; None where nothing was measured."""

    name: str
    steps: int
    measured_steps: int
    tokens: CostRange | None
    """Read and written by the agents and the judge."""
    most_sampled_tokens: int | None
    hours: CostRange | None
    usd: CostRange | None
    """The cost in US dollars; None also where the price of the judge is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What a run will cost."""

    stages: tuple[StageCost, ...]
    tokens: CostRange | None
    hours: CostRange | None
    usd: CostRange | None


def estimate(
    stages: Sequence[PlannedStage], overhead: Sequence[Charge], usd_per_hour: float
) -> RunCost:
    """Extrapolate measured steps.

    Args:
        stages: of the run.
        overhead: what a run costs beside its steps: it starts, and ends.
        usd_per_hour: of the machine; what the measured one cost is not used.
    """
    costs = tuple(_estimate_stage(stage, usd_per_hour) for stage in stages)
    hours = sum(charge.seconds for charge in overhead) / 3600
    return RunCost(
        stages=costs,
        tokens=_sum_ranges(
            [cost.tokens for cost in costs], sum(charge.tokens for charge in overhead)
        ),
        hours=_sum_ranges([cost.hours for cost in costs], hours),
        usd=_sum_ranges(
            [cost.usd for cost in costs], hours * usd_per_hour + _sum_server_costs(overhead)
        ),
    )


def _estimate_stage(stage: PlannedStage, usd_per_hour: float) -> StageCost:
    factor, measured = stage.steps * stage.scale, stage.measured
    known = bool(measured) and all(charge.usd is not None for charge in measured)
    prices = [
        charge.seconds / 3600 * usd_per_hour + _sum_server_costs([charge]) for charge in measured
    ]
    return StageCost(
        name=stage.name,
        steps=stage.steps,
        measured_steps=len(measured),
        tokens=_find_range([charge.tokens for charge in measured], factor),
        most_sampled_tokens=stage.most_tokens,
        hours=_find_range([charge.seconds / 3600 for charge in measured], factor),
        usd=_find_range(prices, factor) if known else None,
    )


def _sum_server_costs(charges: Sequence[Charge]) -> float:
    """Return what the tokens of models on servers cost."""
    items = [item for charge in charges for item in charge.items]
    # An item without tokens is the machine's time, which costs `usd_per_hour` here.
    return sum(item.usd for item in items if item.tokens and item.usd is not None)


def _find_range(values: Sequence[float], factor: float) -> CostRange | None:
    if not values:
        return None
    # `quantiles` needs two values; a single one is both of its own percentiles.
    tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else [*values, *values]
    return CostRange(
        low=tenths[0] * factor, expected=fmean(values) * factor, high=tenths[-1] * factor
    )


def _sum_ranges(parts: Sequence[CostRange | None], fixed: float) -> CostRange | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not parts:
        return None
    return CostRange(
        low=fixed + sum(part.low for part in known),
        expected=fixed + sum(part.expected for part in known),
        high=fixed + sum(part.high for part in known),
    )
