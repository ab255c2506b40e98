"""Return on investment, from an operator's own numbers and from measured rates; nothing is assumed.

worth a month = requests * (harmful * drop of ASR * price of an unsafe reply
+ (1 - harmful) * drop of ORR * price of an over-refusal)
net a month   = worth - running cost
"""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from waltzrl.budget.prices import NotNegative

MONTHS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNumbers:
    """What only the operator knows; money in US dollars."""

    requests_per_month: NotNegative
    harmful_share: Annotated[float, Field(ge=0, le=1)]
    """The share of requests that ask for harm, such as reviewers at the desk found."""
    usd_per_unsafe_reply: NotNegative
    """The average cost of one unsafe reply: most cost nothing, few cost much."""
    usd_per_overrefusal: NotNegative
    """The cost of one harmless request that was refused, such as a ticket or a user who leaves."""
    usd_once: NotNegative
    """Training and introduction; `waltzrl cost report RUN` says what a training cost."""
    usd_per_month: NotNegative
    """The additional cost of serving with it; `waltzrl cost report GATEWAY --by month`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDrop:
    """By how much a rate fell, in shares of 1, with the ends of its 95 % interval."""

    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the numbers come to for one value of both drops."""

    unsafe_avoided: float
    """Replies a month; negative if there are more than before."""
    overrefusals_avoided: float
    worth_per_month: float
    net_per_month: float
    months_to_repay: float | None
    """The months until the net has paid what was spent once; None if it never does."""
    first_year_return: float | None
    """Net of the first year over all that it cost, 1 for 100 %; None if nothing was spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnOnInvestment:
    """The outcome at the measured drops, and at both ends of their intervals."""

    low: Outcome
    expected: Outcome
    high: Outcome


def return_on_investment(own: OwnNumbers, asr: RateDrop, orr: RateDrop) -> ReturnOnInvestment:
    """Work out what safety is worth, from measured drops of ASR and ORR."""
    return ReturnOnInvestment(
        low=_compute_outcome(own, asr.low, orr.low),
        expected=_compute_outcome(own, asr.value, orr.value),
        high=_compute_outcome(own, asr.high, orr.high),
    )


def _compute_outcome(own: OwnNumbers, asr_drop: float, orr_drop: float) -> Outcome:
    harmful = own.requests_per_month * own.harmful_share
    unsafe = harmful * asr_drop
    overrefusals = (own.requests_per_month - harmful) * orr_drop
    worth = unsafe * own.usd_per_unsafe_reply + overrefusals * own.usd_per_overrefusal
    net = worth - own.usd_per_month
    year = own.usd_once + MONTHS * own.usd_per_month
    return Outcome(
        unsafe_avoided=unsafe,
        overrefusals_avoided=overrefusals,
        worth_per_month=worth,
        net_per_month=net,
        months_to_repay=own.usd_once / net if net > 0 else None,
        first_year_return=(MONTHS * worth - year) / year if not math.isclose(year, 0) else None,
    )
