"""What served requests cost: the ledger, the daily budgets of API keys, headers.

The ledger is also charged for what the judge of a gateway answers.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase

from waltzrl.budget import Charge, ChargeItem, PriceBook, priced_replies
from waltzrl.budget.daily import DailyLedger
from waltzrl.errors import InputError, RequestError
from waltzrl.evaluation.judges.judge import Judge, ObservedJudge
from waltzrl.gateway.exchange import Answer, ServedChoice
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.settings import BundleRecipe, GatewayRecipe
from waltzrl.records import Collaboration, Prompt, Usage, Verdict, estimate_reply

DEGRADED = Health("degraded", "cannot be written; costs since then are not recorded")

RecipeOf = Callable[[str], BundleRecipe]
"""Returns the recipe of a bundle, by its id."""

log = logging.getLogger(__name__)


class ServingCosts:
    """Prices replies, charges them to keys, and refuses keys that have used up their budget."""

    def __init__(self, ledger: DailyLedger, prices: PriceBook, recipe_of: RecipeOf) -> None:
        """Charge to a ledger.

        Args:
            ledger: that all workers share.
            prices: of models.
            recipe_of: says where the models of a bundle are.
        """
        self._ledger, self._prices, self._recipe_of = ledger, prices, recipe_of
        self._failing = False

    def require(self, caller: Caller) -> None:
        """Check that a key has some of its budget left.

        Raises:
            RequestError: 429, it has none until midnight (UTC); 403, its budget is in money and a
                model that it used today has no price.
        """
        if not caller.has_budget:
            return
        try:
            spent = self._ledger.spent(caller.name)
        except InputError as error:
            raise RequestError(503, "overloaded", "the ledger of costs cannot be read") from error
        if caller.usd_per_day is not None and spent.unpriced:
            raise RequestError(
                403,
                "permission",
                f"{caller.name} has a budget in money and used a model without a price; ask the "
                "operator to set its price",
            )
        if caller.tokens_per_day is not None and spent.tokens >= caller.tokens_per_day:
            raise self._used_up(f"{caller.name} may use {caller.tokens_per_day:,} tokens a day")
        if caller.usd_per_day is not None and spent.usd >= caller.usd_per_day:
            raise self._used_up(f"{caller.name} may spend {caller.usd_per_day:g} USD a day")

    def usd(self, collaboration: Collaboration, model: str, bundle: str) -> float | None:
        """Return what all replies to a request cost; None when a price is unknown."""
        prices = [item.usd for item in self._items(collaboration, model, bundle)]
        return None if None in prices else sum(price for price in prices if price is not None)

    def cost(self, role: str, usage: Usage, model: str, bundle: str) -> float | None:
        """Return what the tokens of a role of a bundle cost; None when the price is unknown."""
        server = _find_server(self._recipe_of(bundle), role, model)
        return self._prices.cost(usage, server, model)

    def served(self, served: ServedChoice) -> None:
        """Charge what was said, also if it ended early, to its key; a shadow's to no key."""
        exchange = served.exchange
        if exchange.said is None:
            return
        items = tuple(self._items(exchange.said, exchange.model, exchange.bundle))
        key = "" if exchange.arm == "shadow" else exchange.caller
        try:
            self._ledger.append(Charge(id=exchange.id, activity="serving", items=items, key=key))
            self._failing = False
        except InputError as error:
            if not self._failing:
                log.error("costs are not recorded: %s", error)  # noqa: TRY400 - one line
            self._failing = True

    def headers(self, answers: Sequence[Answer]) -> list[tuple[bytes, bytes]]:
        """Return the tokens and the price of answers, as headers of a response."""
        usages = [
            answer.collaboration.usage for answer in answers if answer.collaboration is not None
        ]
        if None in usages:
            counts = []
        else:
            known = [usage for usage in usages if usage is not None]
            counts = [
                (b"x-waltzrl-input-tokens", sum(usage.input_tokens for usage in known)),
                (b"x-waltzrl-output-tokens", sum(usage.output_tokens for usage in known)),
            ]
        prices = [answer.usd for answer in answers]
        price = (
            "unknown"
            if None in prices
            else f"{sum(price for price in prices if price is not None):.8f}"
        )
        written = [(name, str(count).encode()) for name, count in counts]
        return [*written, (b"x-waltzrl-cost-usd", price.encode())]

    def health(self) -> Health:
        """Return whether charges can be written, for `/readyz`."""
        return DEGRADED if self._failing else OK

    def _items(self, collaboration: Collaboration, model: str, bundle: str) -> Iterator[ChargeItem]:
        recipe = self._recipe_of(bundle)
        for role, reply in priced_replies(collaboration):
            # The reviewer's model is not the one that the client named.
            asked = model if role == "conversation" else ""
            usage = reply.usage or estimate_reply(collaboration.prompt, reply, asked)
            yield self._prices.item(role, usage, _find_server(recipe, role, asked), asked)

    def _used_up(self, rule: str) -> RequestError:
        left = max(1, math.ceil(self._ledger.seconds_left))
        error = RequestError(
            429,
            "rate_limit",
            f"{rule}, and has used that up; it may send again at "
            f"{self._ledger.ends:%Y-%m-%dT%H:%M:%SZ}, in {left} s",
            retry_after_seconds=left,
        )
        # OpenAI's code for a budget that is used up.
        error.code = "insufficient_quota"
        return error


@contextmanager
def open_costs(recipe: GatewayRecipe, recipe_of: RecipeOf) -> Iterator[ServingCosts]:
    """Yield what charges the requests of a gateway whose recipe has a `budget`.

    Args:
        recipe: of the gateway.
        recipe_of: returns that of each bundle which serves.

    Raises:
        InputError: the ledger cannot be written.
    """
    assert recipe.budget is not None, "checked by the caller"
    with closing(DailyLedger(recipe.budget.folder)) as ledger:
        yield ServingCosts(ledger, PriceBook(recipe.prices), recipe_of)


def _find_server(recipe: BundleRecipe, role: str, model: str) -> str | None:
    """Return the URL of the server of a role's model in a bundle; None in this process.

    Of the upstreams it is the one whose longest pattern matches the model; a fallback that answered
    in its place is taken for it.
    """
    if role == "feedback":
        return None if recipe.feedback is None else recipe.feedback.server
    matching = [
        (len(pattern), upstream.url)
        for upstream in recipe.upstreams.values()
        for pattern in upstream.models
        if fnmatchcase(model, pattern)
    ]
    return max(matching)[1] if matching else recipe.upstream.url


def charge_to_gateway(
    judge: Judge, ledger: DailyLedger, prices: PriceBook, place: tuple[str, str | None]
) -> Judge:
    """Return a judge whose model's answers are charged to a gateway's ledger, to no API key.

    A ledger that cannot be written loses the charge.

    Args:
        judge: labels the replies.
        ledger: of the gateway.
        prices: of models.
        place: the judge's model and its server; see `judge_place`.
    """
    model, server = place

    def charge(prompt: Prompt, verdict: Verdict) -> None:
        items = tuple(
            prices.item("judge", answer.usage, server, model)
            for answer in verdict.answers
            if answer.usage is not None
        )
        if items:
            with suppress(InputError):
                ledger.append(
                    Charge(id=f"{prompt.id}/{judge.name}", activity="judging", items=items)
                )

    return ObservedJudge(judge, charge)
