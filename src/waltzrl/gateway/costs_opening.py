"""Opens the ledger of a gateway: for what its agents say, and for what its judge answers."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase

from waltzrl.budget import Charge, PriceBook
from waltzrl.budget.daily import DailyLedger
from waltzrl.errors import InputError
from waltzrl.evaluation.judges import Judge, ObservedJudge
from waltzrl.gateway.costs import ServingCosts
from waltzrl.gateway.settings import GatewayRecipe
from waltzrl.records import Prompt, Verdict


@contextmanager
def open_costs(recipe: GatewayRecipe) -> Iterator[ServingCosts]:
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
            conversation=lambda model: _find_server_of_model(recipe, model),
            feedback=lambda _: reviewer,
        )


def _find_server_of_model(recipe: GatewayRecipe, model: str) -> str | None:
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
