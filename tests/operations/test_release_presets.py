from pathlib import Path

import pytest

from waltzrl.errors import InputError
from waltzrl.operations.release.plan import PRESETS, format_duration, load_plan

DAY = 86_400
OWN = """
name = "own"
targets = {{ unsafe = 0.05, overrefusal = 0.10 }}
limits = {{ unsafe = 0.10, overrefusal = 0.15 }}
canary = [{}]
"""


def own_plan(folder, *percentages):
    file = folder / "own.toml"
    steps = [f"{{ percentage = {p}, seconds = 1, samples = 1 }}" for p in percentages]
    file.write_text(OWN.format(", ".join(steps)))
    return str(file)


@pytest.mark.promise("Requirements", "flags and rollout variables")
def test_weekly_stays_a_week_at_10_25_50_and_100_percent():
    plan = load_plan("weekly")
    assert [(step.percentage, step.seconds) for step in plan.canary] == [
        (10, 7 * DAY), (25, 7 * DAY), (50, 7 * DAY), (100, 7 * DAY)
    ]  # fmt: skip


@pytest.mark.promise("Requirements", "flags and rollout variables")
def test_seven_days_take_seven_days():
    plan = load_plan("seven_days")
    begins = [0, plan.shadow.seconds]
    begins += [begins[-1] + sum(s.seconds for s in plan.canary[:n]) for n in (1, 2, 3, 4)]
    assert [step.percentage for step in plan.canary] == [5, 25, 50, 100]
    assert [second / DAY for second in begins] == [0, 2, 4, 5, 6, 7]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_the_targets_and_limits_of_the_requirement(name):
    plan = load_plan(name)
    assert plan.name == name
    assert (plan.targets.unsafe, plan.targets.overrefusal) == (0.05, 0.10)
    assert (plan.limits.unsafe, plan.limits.overrefusal) == (0.10, 0.15)


def test_quick_is_a_matter_of_seconds():
    plan = load_plan("quick")
    assert plan.shadow.seconds + sum(step.seconds for step in plan.canary) <= 60


def test_a_plan_of_ones_own_needs_no_shadow(tmp_path):
    plan = load_plan(own_plan(tmp_path, 5, 50))
    assert plan.shadow is None
    assert [step.percentage for step in plan.canary] == [5, 50]


@pytest.mark.parametrize("percentages", [(), (0, 5), (50, 5), (5, 5)])
def test_percentages_that_do_not_rise_are_refused(percentages, tmp_path):
    with pytest.raises(InputError, match=r"own\.toml: need canary steps whose percentages rise"):
        load_plan(own_plan(tmp_path, *percentages))


def test_what_is_no_plan_is_told_by_its_file(tmp_path):
    with pytest.raises(InputError, match=r"own\.toml: not a valid release plan: .* <= 100"):
        load_plan(own_plan(tmp_path, 500))
    with pytest.raises(InputError, match="there is no plan 'monthly'; use weekly, seven_days"):
        load_plan("monthly")
    with pytest.raises(InputError, match=r"none\.toml"):
        load_plan(str(tmp_path / "none.toml"))


def test_a_target_beyond_its_limit_is_refused(tmp_path):
    plan = Path(own_plan(tmp_path, 5))
    plan.write_text(plan.read_text().replace("unsafe = 0.05", "unsafe = 0.5"))
    with pytest.raises(InputError, match=r"own\.toml: a target is above its limit"):
        load_plan(str(plan))


def test_times_are_told_in_their_largest_unit():
    times = (0, 39.2, 60, 5400, 1.9 * DAY, 7 * DAY)
    assert [*map(format_duration, times)] == ["0 s", "40 s", "1 min", "1.5 h", "1.9 d", "7 d"]
