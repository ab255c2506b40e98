"""The price book: what tokens of a model cost, in US dollars; unknown is None and never 0.

A model in this process costs nothing by the token: its machine is paid by the hour. A model on a
server costs what the recipe says, else what genai-prices lists for that server.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from waltzrl.budget.ledger import ChargeItem
from waltzrl.records import Collaboration, Reply, Usage

CURRENCY = "USD"
MILLION = 1_000_000

NotNegative = Annotated[float, Field(ge=0)]
Costing = Callable[[Usage], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice:
    """What a model on a server costs, in US dollars per million tokens."""

    input: NotNegative
    """The price of the tokens that it reads; 0 for a server of one's own, which is paid by the
    hour."""
    output: NotNegative
    """The price of the tokens that it writes."""

    def cost(self, usage: Usage) -> float:
        """Return the price of some tokens in US dollars."""
        return (usage.input_tokens * self.input + usage.output_tokens * self.output) / MILLION


class PriceBook:
    """Prices of models, one's own before those of genai-prices, if that is installed."""

    def __init__(self, own: Mapping[str, ModelPrice] | None = None) -> None:
        """Look up prices.

        Args:
            own: prices by the name of the model.
        """
        self._own = dict(own or {})
        self._listed: dict[tuple[str, str], Costing | None] = {}

    @property
    def source(self) -> str:
        """Where prices come from, with the currency and the date, for reports."""
        today = f"{CURRENCY}, {datetime.now(UTC):%Y-%m-%d}"
        try:
            from genai_prices import __version__
        except ModuleNotFoundError:
            return f"own prices, {today}; genai-prices (extra prices) is not installed"
        return f"own prices, then genai-prices {__version__}, {today}"

    def cost(self, usage: Usage | None, server: str | None, model: str = "") -> float | None:
        """Return what a reply cost in US dollars; None where price or tokens are unknown.

        Args:
            usage: of the reply; None when unknown.
            server: URL of the model's server, "" for an unknown one; None for a model in this
                process, which costs nothing by the token.
            model: name by which the model was asked for, where the server calls it otherwise.
        """
        if server is None:
            return 0.0
        if usage is None:
            return None
        costing = self._costing(usage.model, server, model)
        return None if costing is None else costing(usage)

    def item(
        self, role: str, usage: Usage | None, server: str | None, model: str = ""
    ) -> ChargeItem:
        """Return the part of a charge that is a reply, with its price; see `cost`.

        Args:
            role: of who wrote it.
            usage: of the reply; None when unknown, which is marked.
            server: as for `cost`.
            model: as for `cost`.
        """
        if usage is None:
            return ChargeItem(role=role, usd=self.cost(None, server), model=model, uncounted=1)
        return ChargeItem(
            role=role,
            usd=self.cost(usage, server, model),
            model=usage.model or model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            estimated=usage.estimated,
        )

    def knows(self, model: str, server: str | None) -> bool:
        """Return whether the price of a model is known."""
        return server is None or self._costing(model, server, model) is not None

    def _costing(self, named: str, server: str, asked: str) -> Costing | None:
        for name in (asked, named):
            if name in self._own:
                return self._own[name].cost
        if not server:
            return None
        for name in (named, asked):
            key = (name, server)
            if name and key not in self._listed:
                self._listed[key] = _find_listed_costing(name, server)
            if (costing := self._listed.get(key)) is not None:
                return costing
        return None


def priced_replies(collaboration: Collaboration) -> Iterator[tuple[str, Reply]]:
    """Yield every reply that a policy wrote, with its role; others cost nothing."""
    for reply in collaboration.replies:
        if reply.origin == "policy":
            yield "conversation", reply
    for turn in collaboration.rounds:
        feedback = turn.feedback.reply
        if feedback is not None and feedback.origin == "policy":
            yield "feedback", feedback


def _find_listed_costing(model: str, server: str) -> Costing | None:
    """Return how genai-prices computes the cost of a model of a server; None if unknown to it.

    Discounts for cached input are not counted, because servers differ in how they report it.
    """
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ModuleNotFoundError:
        return None

    def cost(usage: Usage) -> float:
        tokens = Tokens(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        return float(calc_price(tokens, model, provider_api_url=server).total_price)

    tokens = Tokens(input_tokens=MILLION, output_tokens=MILLION)
    try:
        price = calc_price(tokens, model, provider_api_url=server).model_price
    except LookupError:
        return None
    flat = (price.input_mtok, price.output_mtok)
    if not all(isinstance(each, Decimal) for each in flat):
        return cost  # its price depends on the length of the input
    return ModelPrice(input=float(flat[0]), output=float(flat[1])).cost
