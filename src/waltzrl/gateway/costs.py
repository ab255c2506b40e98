"""What served requests cost: the ledger, the daily budgets of API keys, headers.

The ledger is also charged for what the judge of a gateway answers.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase

from waltzrl.budget import Charge, ChargeItem, PriceBook, priced_replies
from waltzrl.budget.daily import DailyLedger
from waltzrl.errors import InputError, RequestError
from waltzrl.evaluation.judges.judge import Judge, ObservedJudge
from waltzrl.gateway.exchange import Answer, Fallback, ServedChoice
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.settings import BundleRecipe
from waltzrl.records import Collaboration, Prompt, Reply, Usage, Verdict, estimate_reply

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
        self._in_progress: Counter[str] = Counter()
        """Requests of this worker, by the name of their key; only of keys with a budget."""

    def require(self, caller: Caller) -> None:
        """Check that a key has some of its budget left.

        Raises:
            RequestError: 429, it has none until midnight (UTC), or what is in progress may use it
                up; 403, its budget is in money and a model that it used today has no price.
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
        running = self._in_progress[caller.name]
        if spent.reaches(caller.tokens_per_day, caller.usd_per_day, in_progress=running):
            raise RequestError(
                429,
                "rate_limit",
                f"{caller.name} has {running} requests in progress, which may use up its budget "
                "of the day; try again when they have ended",
                retry_after_seconds=1,
            )

    @contextmanager
    def in_progress(self, caller: Caller) -> Iterator[None]:
        """Count a request of a key whose charge is still to come."""
        self._in_progress[caller.name] += 1
        try:
            yield
        finally:
            self._in_progress[caller.name] -= 1

    def usd(
        self,
        collaboration: Collaboration,
        model: str,
        bundle: str,
        fallbacks: Mapping[Reply, Fallback],
    ) -> float | None:
        """Return what all replies to a request cost; None when a price is unknown."""
        return _add_up(item.usd for item in self._items(collaboration, model, bundle, fallbacks))

    def cost(
        self, role: str, usage: Usage, model: str, bundle: str, fallback: Fallback | None = None
    ) -> float | None:
        """Return what the tokens of a role of a bundle cost; None when the price is unknown."""
        server, model = _find_server(self._recipe_of(bundle), role, model, fallback)
        return self._prices.cost(usage, server, model)

    def served(self, served: ServedChoice) -> None:
        """Charge what was said, also if it ended early, to its key; a shadow's to no key."""
        exchange = served.exchange
        if exchange.said is None:
            return
        items = tuple(self._items(exchange.said, exchange.model, exchange.bundle, served.fallbacks))
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
        usages = [answer.collaboration.usage for answer in answers]
        read = _add_up(None if usage is None else usage.input_tokens for usage in usages)
        written = _add_up(None if usage is None else usage.output_tokens for usage in usages)
        headers = []
        if read is not None and written is not None:
            headers = [
                (b"x-waltzrl-input-tokens", b"%d" % read),
                (b"x-waltzrl-output-tokens", b"%d" % written),
            ]
        usd = _add_up(answer.usd for answer in answers)
        price = "unknown" if usd is None else f"{usd:.8f}"
        return [*headers, (b"x-waltzrl-cost-usd", price.encode())]

    def health(self) -> Health:
        """Return whether charges can be written, for `/readyz`."""
        return DEGRADED if self._failing else OK

    def _items(
        self,
        collaboration: Collaboration,
        model: str,
        bundle: str,
        fallbacks: Mapping[Reply, Fallback],
    ) -> Iterator[ChargeItem]:
        recipe = self._recipe_of(bundle)
        for role, reply in priced_replies(collaboration):
            # The reviewer's model is not the one that the client named.
            asked = model if role == "conversation" else ""
            server, asked = _find_server(recipe, role, asked, fallbacks.get(reply))
            usage = reply.usage or estimate_reply(collaboration.prompt, reply, asked)
            yield self._prices.item(role, usage, server, asked)

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


def _add_up(numbers: Iterable[float | None]) -> float | None:
    """Return the sum; None when one of them is unknown."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)


def _find_server(
    recipe: BundleRecipe, role: str, model: str, fallback: Fallback | None
) -> tuple[str | None, str]:
    """Return the URL of the server of a role's model in a bundle, and the model that it was asked.

    The URL is None in this process. Of the upstreams it is that of the fallback that answered, or
    else of the one whose longest pattern matches the model.
    """
    if role == "feedback":
        return None if recipe.feedback is None else recipe.feedback.server, model
    if fallback is not None:
        upstream = recipe.upstreams.get(fallback.upstream, recipe.upstream)
        return upstream.url, fallback.model
    matching = [
        (len(pattern), upstream.url)
        for upstream in recipe.upstreams.values()
        for pattern in upstream.models
        if fnmatchcase(model, pattern)
    ]
    return max(matching)[1] if matching else recipe.upstream.url, model


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
