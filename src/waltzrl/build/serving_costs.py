"""Opens the ledger of a gateway: for what its agents say, and for what its judge answers."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase

from waltzrl.budget import Charge, ChargeItem, PriceBook
from waltzrl.budget.daily import DailyLedger
from waltzrl.config.gateway import GatewayRecipe
from waltzrl.errors import InputError
from waltzrl.judges import Judge
from waltzrl.records import Prompt, Reply, Verdict
from waltzrl.serving.costs import ServingCosts


@contextmanager
def opened_costs(recipe: GatewayRecipe) -> Iterator[ServingCosts]:
    """Yield what charges the requests of a gateway whose recipe has a `budget`.

    Raises:
        InputError: the ledger cannot be written.
    """
    assert recipe.budget is not None, "checked by the caller"
    with closing(DailyLedger(recipe.budget.folder)) as ledger:
        reviewer = None if recipe.feedback is None else recipe.feedback.server
        yield ServingCosts(
            ledger,
            PriceBook(recipe.prices),
            conversation=lambda model: _server(recipe, model),
            feedback=lambda _: reviewer,
        )


def _server(recipe: GatewayRecipe, model: str) -> str | None:
    """Return the URL of the upstream whose longest pattern matches a model; None in this process.

    A fallback that answered in its place is taken for it.
    """
    matching = [
        (len(pattern), upstream.url)
        for upstream in recipe.upstreams.values()
        for pattern in upstream.models
        if fnmatchcase(model, pattern)
    ]
    return max(matching)[1] if matching else recipe.upstream.url


class ChargedJudge:
    """A judge whose model's answers are charged to a gateway's ledger, to no API key."""

    def __init__(
        self, judge: Judge, ledger: DailyLedger, prices: PriceBook, place: tuple[str, str | None]
    ) -> None:
        """Charge for a judge.

        Args:
            judge: labels the replies.
            ledger: of the gateway.
            prices: of models.
            place: the judge's model and its server; see `judge_place`.
        """
        self.name = judge.name
        self._judge, self._ledger, self._prices = judge, ledger, prices
        self._model, self._server = place

    async def judge(self, prompt: Prompt, reply: Reply) -> Verdict:
        """Label `reply` as the judge does; a ledger that cannot be written loses the charge."""
        verdict = await self._judge.judge(prompt, reply)
        items = tuple(
            ChargeItem(
                role="judge",
                model=usage.model or self._model,
                usd=self._prices.cost(usage, self._server, self._model),
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                estimated=usage.estimated,
            )
            for answer in verdict.answers
            if (usage := answer.usage) is not None
        )
        if items:
            with suppress(InputError):
                charge = Charge(id=f"{prompt.id}/{self.name}", activity="judging", items=items)
                self._ledger.append(charge)
        return verdict
