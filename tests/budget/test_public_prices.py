"""The prices of genai-prices, which the extra `prices` installs."""

import pytest

from waltzrl.budget import ModelPrice, PriceBook
from waltzrl.records import Usage

OPENAI = "https://api.openai.com/v1"
OWN = "http://127.0.0.1:8000/v1"


@pytest.mark.promise(
    "Cost",
    "A model in this process costs nothing by the token; public models cost what their server "
    "lists",
)
def test_public_models_have_the_price_of_their_server():
    book = PriceBook()
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000, model="gpt-4o-mini")
    # OpenAI's list price: 0.15 and 0.60 dollars per million
    assert book.cost(usage, OPENAI) == pytest.approx(0.75)
    assert book.cost(usage, OWN) is None  # the same name on one's own server is another matter


def test_own_prices_come_before_public_ones():
    book = PriceBook({"gpt-4o-mini": ModelPrice(input=1, output=1)})
    usage = Usage(input_tokens=1_000_000, output_tokens=0, model="gpt-4o-mini")
    assert book.cost(usage, OPENAI) == 1.0


def test_a_price_that_grows_with_the_input_is_computed_for_each_reply():
    book = PriceBook()
    server = "https://api.anthropic.com"

    def cost(tokens):
        usage = Usage(input_tokens=tokens, output_tokens=0, model="claude-sonnet-4-5")
        return book.cost(usage, server)

    assert cost(1_000_000) > 5 * cost(200_000)  # dearer above 200,000 tokens


def test_the_source_names_the_library_and_its_version():
    assert "genai-prices 0." in PriceBook().source
