"""The price book: own prices, those of genai-prices, and what is unknown."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.budget import ModelPrice, PriceBook
from waltzrl.records import Usage

OPENAI = "https://api.openai.com/v1"
OWN = "http://127.0.0.1:8000/v1"


def test_own_prices_are_per_million_tokens():
    book = PriceBook({"guard": ModelPrice(input=2.0, output=10.0)})
    usage = Usage(input_tokens=300, output_tokens=40, model="guard")
    # 300 * 2 / 10^6 + 40 * 10 / 10^6
    assert book.cost(usage, OWN) == pytest.approx(0.0006 + 0.0004)


@pytest.mark.promise(
    "Cost",
    "A model in this process costs nothing by the token; public models cost what their server "
    "lists",
)
def test_a_model_in_this_process_costs_nothing_by_the_token():
    book = PriceBook()
    assert book.cost(Usage(input_tokens=5, output_tokens=5, model="x"), None) == 0.0
    assert book.cost(None, None) == 0.0
    assert book.knows("x", None)


@pytest.mark.promise(
    "Cost", "A model without a price is unknown, never 0, and so are tokens that nobody counted"
)
@pytest.mark.parametrize("server", [OWN, "", OPENAI])
def test_a_model_without_a_price_is_unknown_and_not_free(server):
    book = PriceBook({"other": ModelPrice(input=1, output=1)})
    usage = Usage(input_tokens=5, output_tokens=5, model="no-such-model")
    assert book.cost(usage, server) is None
    assert not book.knows("no-such-model", server)


@pytest.mark.promise(
    "Cost", "A model without a price is unknown, never 0, and so are tokens that nobody counted"
)
def test_unknown_tokens_have_an_unknown_price():
    book = PriceBook({"guard": ModelPrice(input=2.0, output=10.0)})
    assert book.cost(None, OWN, "guard") is None


def test_a_price_is_found_by_the_name_that_was_asked_for_too():
    book = PriceBook({"guard": ModelPrice(input=1_000_000, output=0)})
    assert book.cost(Usage(input_tokens=3, output_tokens=9, model="guard-q4"), OWN, "guard") == 3


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_reply_costs_what_its_halves_cost(read, written):
    price = ModelPrice(input=0.15, output=0.6)
    parts = (
        Usage(input_tokens=read, output_tokens=0),
        Usage(input_tokens=0, output_tokens=written),
    )
    whole = price.cost(Usage(input_tokens=read, output_tokens=written))
    assert whole == pytest.approx(sum(price.cost(part) for part in parts))


def test_a_price_below_zero_is_refused():
    from waltzrl.errors import RecipeError
    from waltzrl.foundation.validation import validate_table

    with pytest.raises(RecipeError, match="input"):
        validate_table(ModelPrice, {"input": -1.0, "output": 1.0}, "prices")


def test_the_source_says_currency_and_date():
    source = PriceBook().source
    assert "USD" in source
    assert f"{datetime.now(UTC):%Y}" in source
