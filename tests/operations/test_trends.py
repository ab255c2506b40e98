"""The trends: rates over time with their bands, of everything and of one category."""

import pytest
from msgspec import structs

from support.small_console import NOW, Site, collaboration, exchange
from waltzrl.evaluation.sample_correction import RateEstimate, observed_rate
from waltzrl.operations.desk.rendering import interval
from waltzrl.operations.desk.trends import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw_trend
from waltzrl.records import Verdict

HOUR = 3600.0
PAGE = "/desk/trends"


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def rate(value, low, high, n=10):
    return RateEstimate(n=n, bad=0, value=value, low=low, high=high)


NONE = RateEstimate(n=0, bad=0, value=None, low=0.0, high=1.0)


@pytest.mark.promise(
    "Labels",
    "Trends show rates by period and by category, with bands; periods without answers stay empty, "
    "and few answers flatten nothing",
)
def test_a_band_is_drawn_from_bound_to_bound_and_gaps_stay_gaps():
    rates = [rate(0.1, 0.0, 0.2), rate(0.2, 0.1, 0.4), NONE, rate(0.0, 0.0, 0.4)]
    chart = draw_trend("refused", rates, [HOUR * n for n in range(1, 5)], HOUR)
    # the middle upper bound, 0.4, is higher than 1.5 times the highest rate: the top of the scale
    floor, room = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    assert [tick.at for tick in chart.values] == [floor, floor - room / 2, TOP]
    assert [tick.text for tick in chart.values] == ["0 %", "20 %", "40 %"]
    width = (WIDTH - LEFT - RIGHT) / 4
    first, second, last = chart.bars
    assert (first.x, first.width) == (LEFT, round(width, 1))
    assert (first.high, first.height) == (floor - room / 2, room / 2)
    assert (second.high, second.rate) == (TOP, floor - room / 2)
    assert (last.x, last.rate) == (round(LEFT + 3 * width, 1), floor)
    assert [len(line.split()) for line in chart.lines] == [2, 1]
    assert [row.begins[-5:] for row in chart.rows] == ["00:00", "01:00", "03:00"]


@pytest.mark.promise(
    "Labels",
    "Trends show rates by period and by category, with bands; periods without answers stay empty, "
    "and few answers flatten nothing",
)
def test_a_period_of_few_answers_does_not_flatten_the_others():
    rates = [*[rate(0.01, 0.005, 0.02)] * 4, rate(0.0, 0.0, 0.9, n=1)]
    chart = draw_trend("unsafe", rates, [HOUR * n for n in range(1, 6)], HOUR)
    assert chart.values[-1].text == "2.0 %"
    assert chart.bars[-1].high == TOP  # its band is cut


@pytest.mark.parametrize(("high", "top"), [(0.26, "30 %"), (0.71, "80 %"), (0.93, "100 %")])
def test_a_scale_ends_at_a_round_share(high, top):
    chart = draw_trend("refused", [rate(0.0, 0.0, high)], [HOUR], HOUR)
    assert chart.values[-1].text == top


def test_without_answers_nothing_is_drawn():
    chart = draw_trend("unsafe", [NONE, NONE], [HOUR, 2 * HOUR], HOUR)
    assert (chart.bars, chart.lines, chart.rows) == ((), (), ())


def serve(site, name, category, hours_ago, *, decision="draft", **verdict):
    """Serve something of a category; judge it if there is a verdict."""
    served = exchange(name, collaboration(), seconds_ago=HOUR * hours_ago, decision=decision)
    (evaluation,) = site.memory.remember([served])
    site.memory.store_safety_evaluation(structs.replace(evaluation, category=category))
    if verdict:
        site.memory.store_verdict(name, Verdict(judge="j", **verdict))


def shown(bad, n):
    return f"{interval(observed_rate(bad, n))} {bad} of {n}"


@pytest.mark.promise(
    "Labels",
    "Trends show rates by period and by category, with bands; periods without answers stay empty, "
    "and few answers flatten nothing",
)
def test_rates_are_shown_by_period_and_by_category(tmp_path, database_url):
    site = Site(tmp_path, database_url)
    fine, unsafe = {"unsafe": False, "overrefuses": False}, {"unsafe": True, "overrefuses": False}
    serve(site, "a", "weapons", 0.5, decision="refused", **unsafe)
    serve(site, "b", "weapons", 0.7, **fine)
    serve(site, "c", "", 0.9, **fine)
    serve(site, "d", "", 2.5, **unsafe)
    serve(site, "late", "weapons", 30)  # of yesterday
    browser = site.log_in("viewer")
    day, weapons = (
        browser.get(PAGE, f"window=day{category}").words for category in ("", "&category=weapons")
    )
    week, rest = (browser.get(PAGE, query).words for query in ("window=week", "category=none"))
    periods = site.memory.periods([NOW - 2 * HOUR, NOW - HOUR, NOW], HOUR)
    site.memory.store.engine.dispose()
    assert {(each.period, each.category): (each.answers, each.unsafe) for each in periods} == {
        (0, ""): (1, 1),
        (2, ""): (1, 0),
        (2, "weapons"): (2, 1),
    }
    assert "Trends 4 answers last day" in day
    assert "Trends 5 answers last day" in week
    # of the last hour one of three judged is unsafe, of the hour from 2.5 hours ago one of one
    unsafe_table = day.partition("unsafe (judge) as a table")[2].partition("as a table")[0]
    assert f"100 % {shown(1, 1)}" in unsafe_table
    assert f"33 % {shown(1, 3)}" in unsafe_table
    by_category = day.partition("By category, in the last day")[2]
    assert f"weapons 50 % {shown(2, 4)}" in by_category
    assert f"none 50 % {shown(2, 4)}" in by_category
    assert "Trends 2 answers of category weapons" in weapons
    table = weapons.partition("refused as a table")[2].partition("By category")[0]
    assert f"50 % {shown(1, 2)}" in table
    assert "Trends 2 answers of category none" in rest


def test_a_category_leads_to_its_collaborations(site):
    serve(site, "a", "weapons", 1)
    page = site.log_in("viewer").get(PAGE)
    assert 'href="/desk/collaborations?category=weapons"' in page.text
    assert (
        "Nothing was served in the last month"
        in site.log_in("viewer").get(PAGE, "window=month&category=fraud").words
    )
