import re
from itertools import pairwise

import pytest
from msgspec import structs

from support.small_console import PLAN
from waltzrl.operations.desk.curve import (
    BOTTOM,
    DRAWN_TESTS,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    draw_curve,
)
from waltzrl.operations.desk.overview import TEST_NAMES, find_stage
from waltzrl.operations.release.state import Release
from waltzrl.operations.release.view import ALL, CurvePoint, ReleaseView, Transition

RELEASE = Release(id="r", candidate="new", serving="old", plan=PLAN, state="canary", since=0.0)


def moved(at, after, before="off"):
    return Transition(
        release="r", time=at, action="advance", by="ada", why="", before=before, after=after,
        percentage=5.0, decision=None,
    )  # fmt: skip


BEGUN = (moved(0.0, "canary"),)


def view(points, release=RELEASE, moves=BEGUN):
    return ReleaseView(
        release=release, evidence={}, decision=None, history=moves, curve=tuple(points)
    )


def series(name, *e_values, start=0.0):
    return [CurvePoint(start + 100.0 * n, name, value) for n, value in enumerate(e_values)]


def places(line):
    return [tuple(map(float, place.split(","))) for place in line.points.split()]


def test_one_point_is_no_curve():
    assert draw_curve(view(series(ALL, 1.0)), 20.0) is None


def test_e_values_stand_on_a_logarithmic_scale():
    curve = draw_curve(view(series(ALL, 1.0, 10.0, 100.0)), 20.0)
    (line,) = curve.lines
    (left, one), (_, ten), (right, hundred) = places(line)
    assert (left, right) == (LEFT, WIDTH - RIGHT)
    assert one - ten == pytest.approx(ten - hundred, abs=0.2)
    assert [mark.text for mark in curve.values] == ["0.1", "1", "10", "100", "1,000"]
    assert curve.values[2] == (ten, "10")


def test_the_line_that_rolls_back_is_drawn_where_it_is_needed():
    curve = draw_curve(view(series(ALL, 1.0, 100.0)), 100.0)
    assert curve.limit.at == places(curve.lines[-1])[-1][1]
    assert curve.limit.text == "rolls back at 100"


@pytest.mark.parametrize("huge", [1e300, float("inf"), 0.0])
def test_no_e_value_leaves_the_drawing(huge):
    curve = draw_curve(view(series(ALL, 1.0, huge)), 20.0)
    for line in curve.lines:
        for x, y in places(line):
            assert LEFT <= x <= WIDTH - RIGHT
            assert TOP <= y <= HEIGHT - BOTTOM


def test_the_tests_that_add_most_are_drawn_below_all_together_with_labels_apart():
    # by weight: unsafe .5, overrefusal .1, error .1, slow .05
    e_values = {"unsafe": 1.0, "overrefusal": 8.0, "error": 6.0, "slow": 9.0}
    points = [p for name, value in e_values.items() for p in series(name, 1.0, value)]
    curve = draw_curve(view([*points, *series(ALL, 1.0, 2.4)]), 20.0)
    assert [line.name for line in curve.lines] == ["unsafe", "error", "overrefusal", ALL]
    assert [line.last for line in curve.lines] == pytest.approx([0.5, 0.6, 0.8, 2.4])
    assert len(curve.lines) == DRAWN_TESTS + 1
    ys = sorted(line.label_y for line in curve.lines)
    assert all(low - high >= 16 for high, low in pairwise(ys))


@pytest.mark.promise(
    "Labels",
    "The evidence curve draws what decides, and a count leads to the answers that it counts",
)
def test_no_test_is_drawn_above_the_line_that_rolls_back_while_nothing_is_rolled_back():
    # failed revisions have a weight of 5 %: 680 add 34, and 100 rolls back
    points = [*series("revision_failed", 1.0, 680.0), *series(ALL, 1.0, 34.5)]
    curve = draw_curve(view(points), 100.0)
    failed, everything = curve.lines
    assert (failed.name, failed.last) == ("revision_failed", pytest.approx(34.0))
    for line in curve.lines:
        assert min(y for _, y in places(line)) > curve.limit.at
    assert places(failed)[-1][1] >= places(everything)[-1][1]


def test_the_name_of_every_test_and_its_e_value_fit_beside_the_curve():
    bold_character, gap = 6.6, 8  # units, measured in Chromium
    longest = max(len(f"{name} 0.00151") for name in TEST_NAMES.values())
    assert longest * bold_character + gap <= RIGHT


def test_moves_too_near_to_each_other_share_a_label():
    told = ((0.0, "shadow"), (1.0, "shadow"), (150.0, "canary"), (200.0, "rolled_back"))
    moves = tuple(moved(at, state) for at, state in told)
    curve = draw_curve(view(series(ALL, 1.0, 1.0, 1.0), moves=moves), 20.0)
    assert [mark.text for mark in curve.moves] == ["shadow", "", "canary 5 %", "rolled back"]


def test_the_axis_of_time_says_dates_only_when_it_is_long():
    short = draw_curve(view(series(ALL, 1.0, 1.0)), 20.0).times
    assert re.fullmatch(r"00:01:40", short[-1].text)
    long = draw_curve(view([CurvePoint(0.0, ALL, 1.0), CurvePoint(2e5, ALL, 1.0)]), 20.0).times
    assert long[-1].text == "Jan 03 07:33"


@pytest.mark.parametrize(
    ("state", "step", "before", "here"),
    [
        ("canary", 0, "off", "5 %"),
        ("canary", 1, "canary", "50 %"),
        ("full", 1, "canary", "full"),
        ("rolled_back", 1, "canary", "50 %"),
        ("rolled_back", 1, "full", "full"),
    ],
)
def test_the_card_shows_where_the_release_is_or_ended(state, step, before, here):
    release = structs.replace(RELEASE, state=state, step=step)
    stages, place = find_stage(view([], release, (moved(0.0, state, before),)))
    assert stages[place] == here
