"""What serving will cost, worked by hand."""

from pathlib import Path

import pytest

from waltzrl.budget import ModelPrice
from waltzrl.budget.forecast import (
    CalledModel,
    ForecastNumbers,
    ServedAgents,
    forecast,
    read_numbers,
)
from waltzrl.errors import BudgetError, RecipeError

EXAMPLE = Path(__file__).parents[2] / "recipes/forecast.toml"
AGENTS = ServedAgents(
    name="support",
    agents=2,
    queries_per_day=500,
    model="writer",
    input_tokens=100,
    output_tokens=50,
)
REVIEW = CalledModel(model="reviewer", input_tokens=300, output_tokens=20)
PRICES = {"writer": ModelPrice(input=1, output=4), "reviewer": ModelPrice(input=0.5, output=2)}


@pytest.mark.promise(
    "Cost",
    "A forecast of serving is arithmetic on own numbers: drafts, reviews, revisions, machines",
)
def test_fifteen_specialists_cost_what_the_documents_work_out():
    result = forecast(read_numbers(EXAMPLE))
    # 150,000 queries * 768 tokens * 3 USD per million
    assert result.usd_per_day == pytest.approx(345.6)
    assert result.usd_per_month == pytest.approx(10_368)
    assert result.usd_per_year == pytest.approx(365 * 345.6)
    assert result.overhead_usd_per_day == 0


@pytest.mark.promise(
    "Cost",
    "A forecast of serving is arithmetic on own numbers: drafts, reviews, revisions, machines",
)
def test_the_loop_adds_a_review_of_every_reply_and_a_call_for_every_revision():
    numbers = ForecastNumbers(
        served=(AGENTS,), review=REVIEW, revised_share=0.2, usd_per_hour=0.5, prices=PRICES
    )
    result = forecast(numbers)
    drafts, reviews, revisions, machines = result.lines
    # 1,000 drafts of 100 + 50 tokens at 1 and 4
    assert drafts.usd_per_day == pytest.approx(1000 * (100 + 200) / 1e6)
    # 1,000 drafts and 200 revisions are reviewed, at 0.5 and 2
    assert reviews.calls_per_day == pytest.approx(1200)
    assert reviews.usd_per_day == pytest.approx(1200 * (150 + 40) / 1e6)
    # a revision reads the query, the draft and the review: 100 + 50 + 20
    assert revisions.input_tokens == 170
    assert revisions.usd_per_day == pytest.approx(200 * (170 + 200) / 1e6)
    assert machines.usd_per_day == 12
    assert result.overhead_usd_per_day == pytest.approx(0.228 + 0.074)
    assert result.usd_per_day == pytest.approx(0.3 + 0.228 + 0.074 + 12)
    assert reviews.arithmetic == (
        "2 * 500 * (1 + 0.2) calls * (300 tokens in * 0.5 + 20 out * 2) / 1,000,000"
    )


@pytest.mark.promise(
    "Cost", "A model without a price is unknown, never 0, and so are tokens that nobody counted"
)
def test_a_model_without_a_price_has_no_forecast():
    with pytest.raises(BudgetError, match="the price of writer is unknown; set prices"):
        forecast(ForecastNumbers(served=(AGENTS,)))


def test_a_share_above_one_is_refused():
    with pytest.raises(RecipeError, match="revised_share: got 2, need"):
        read_numbers(EXAMPLE, ["revised_share=2"])
