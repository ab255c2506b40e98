"""What serving will cost, worked out from an operator's own numbers; nothing is assumed.

drafts    = queries
reviews   = queries * (1 + revised share): the gateway reviews every draft and every revision
revisions = queries * revised share: each reads the query, its draft and the review
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from waltzrl.budget.prices import MILLION, ModelPrice, NotNegative, PriceBook
from waltzrl.errors import BudgetError
from waltzrl.foundation.validation import read_table, require_finite, validate_table, with_overrides
from waltzrl.records import Usage

Count = Annotated[int, Field(ge=0)]
DAYS_OF_MONTH = 30
DAYS_OF_YEAR = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledModel:
    """A model, and the tokens of one call."""

    model: str
    input_tokens: Count
    """Tokens that it reads: the query, with all that stands before it."""
    output_tokens: Count
    """Tokens that it writes."""
    server: str = ""
    """URL of its server, by which genai-prices finds its price; without one `prices` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAgents(CalledModel):
    """Agents of one kind, and what each of them is asked."""

    name: str
    agents: Annotated[int, Field(ge=1)] = 1
    """How many there are."""
    queries_per_day: NotNegative
    """Of each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastNumbers:
    """What only the operator knows; money in US dollars."""

    served: tuple[ServedAgents, ...]
    review: CalledModel | None = None
    """The model that reviews; None where rules do, which costs nothing."""
    revised_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of drafts that are revised, such as the feedback trigger rate of an evaluation."""
    usd_per_hour: NotNegative = 0.0
    """The price of one's own machines, which are paid by the hour."""
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)
    """Prices of models, by their names; others are those of genai-prices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastLine:
    """One part of the cost of a day."""

    name: str
    arithmetic: str
    """What is multiplied, to be read before `usd_per_day`."""
    usd_per_day: float
    calls_per_day: float = 0.0
    input_tokens: int = 0
    """Tokens that one call reads."""
    output_tokens: int = 0
    """Tokens that one call writes."""
    is_overhead: bool = False
    """It is spent on reviews and revisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a day, a month of 30 days and a year of 365 days cost."""

    lines: tuple[ForecastLine, ...]
    usd_per_day: float
    overhead_usd_per_day: float
    """The part of a day's cost that reviews and revisions are."""
    usd_per_month: float
    usd_per_year: float


def read_numbers(path: Path, settings: Sequence[str] = ()) -> ForecastNumbers:
    """Read one's own numbers.

    Args:
        path: a TOML file with the fields of `ForecastNumbers`.
        settings: `key=value`, which override it.

    Raises:
        InputError: the file is not TOML, or a number is missing or invalid.
    """
    table = with_overrides(read_table(path), settings)
    require_finite(table, str(path))
    return validate_table(ForecastNumbers, table, str(path))


def forecast(numbers: ForecastNumbers) -> Forecast:
    """Work out what serving will cost.

    Raises:
        BudgetError: the price of a model is unknown.
    """
    book = PriceBook(numbers.prices)
    lines = [line for agents in numbers.served for line in _list_lines(numbers, agents, book)]
    if numbers.usd_per_hour:
        arithmetic = f"24 hours * {_render(numbers.usd_per_hour)}"
        usd = 24 * numbers.usd_per_hour
        lines.append(ForecastLine(name="machines", arithmetic=arithmetic, usd_per_day=usd))
    day = sum(line.usd_per_day for line in lines)
    return Forecast(
        lines=tuple(lines),
        usd_per_day=day,
        overhead_usd_per_day=sum(line.usd_per_day for line in lines if line.is_overhead),
        usd_per_month=day * DAYS_OF_MONTH,
        usd_per_year=day * DAYS_OF_YEAR,
    )


def _list_lines(
    numbers: ForecastNumbers, served: ServedAgents, book: PriceBook
) -> Iterator[ForecastLine]:
    """Yield what the drafts of some agents cost, and their reviews and revisions."""
    queries = served.agents * served.queries_per_day
    counted = f"{served.agents:,} * {_render(served.queries_per_day)}"
    share, review = numbers.revised_share, numbers.review
    yield replace(
        _price(f"{served.name}, drafts", counted, queries, served, book), is_overhead=False
    )
    if review is not None:
        reviews = f"{counted} * (1 + {_render(share)})"
        yield _price(f"{served.name}, reviews", reviews, queries * (1 + share), review, book)
    if share:
        advice = 0 if review is None else review.output_tokens
        read = served.input_tokens + served.output_tokens + advice
        revisions, revised = f"{counted} * {_render(share)}", replace(served, input_tokens=read)
        yield _price(f"{served.name}, revisions", revisions, queries * share, revised, book)


def _price(
    name: str, counted: str, number: float, called: CalledModel, book: PriceBook
) -> ForecastLine:
    """Price the calls of a day with one purpose; `counted` says how their number comes about."""
    usage = Usage(input_tokens=called.input_tokens, output_tokens=called.output_tokens)
    usd = book.cost(usage, called.server, called.model)
    read_usd = book.cost(replace(usage, output_tokens=0), called.server, called.model)
    if usd is None or read_usd is None:
        raise BudgetError(
            f'the price of {called.model} is unknown; set prices."{called.model}" = {{input = USD,'
            f" output = USD}} per million tokens, or the URL of its server, with the extra prices"
        )
    # A price may depend on the length: these are those of a call of this one.
    prices = [
        _render(part / tokens * MILLION if tokens else 0.0)
        for part, tokens in (
            (read_usd, called.input_tokens),
            (usd - read_usd, called.output_tokens),
        )
    ]
    return ForecastLine(
        name=name,
        arithmetic=f"{counted} calls * ({called.input_tokens:,} tokens in * {prices[0]} +"
        f" {called.output_tokens:,} out * {prices[1]}) / {MILLION:,}",
        usd_per_day=number * usd,
        calls_per_day=number,
        input_tokens=called.input_tokens,
        output_tokens=called.output_tokens,
        is_overhead=True,
    )


def _render(value: float) -> str:
    return f"{value:,.10g}"
