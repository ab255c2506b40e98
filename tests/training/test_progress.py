"""Progress where stderr is no terminal: lines, often enough to see that a run goes on."""

import pytest

from support.small_runs import run, save_recipe
from support.timing import FakeClock
from waltzrl.foundation.progress import progress_bar
from waltzrl.training.progress import showing_steps
from waltzrl.training.trainer import Progress


@pytest.fixture
def clock():
    return FakeClock()


def said(capsys):
    return capsys.readouterr().err.splitlines()


@pytest.mark.promise(
    "Command line",
    "Without a terminal, a long command prints its first and last step and one line in 30 "
    "seconds, and none with `--json`",
)
def test_a_task_says_its_first_and_last_step_and_one_in_thirty_seconds(capsys, clock):
    with progress_bar(quiet=False, clock=clock) as bar:
        task = bar.add_task("evaluating", total=None, note="")
        for done in range(1, 13):
            clock.now += 10
            bar.update(task, completed=done, total=12)
    assert said(capsys) == [
        "evaluating 1 of 12",
        "evaluating 4 of 12  0:01:20 left",
        "evaluating 7 of 12  0:00:50 left",
        "evaluating 10 of 12  0:00:20 left",
        "evaluating 12 of 12",
    ]


def test_each_task_has_its_own_lines_and_what_does_not_advance_has_none(capsys, clock):
    with progress_bar(quiet=False, clock=clock) as bar:
        tasks = [bar.add_task(name, total=3, note="") for name in ("a", "b")]
        for task in tasks:
            bar.update(task, completed=0)
            bar.update(task, completed=1)
            clock.now += 60
            bar.update(task, completed=1)
    assert said(capsys) == ["a 1 of 3", "b 1 of 3"]


def test_steps_of_a_quarter_of_an_hour_tell_the_time_left(capsys, clock):
    with showing_steps(quiet=False, clock=clock) as show:
        for step in range(40, 43):  # resumed: what was done before is no measure of the speed
            clock.now += 900
            metrics = {"reward/conversation_mean": 0.5}
            show(Progress(stage="joint", step=step, total=60, metrics=metrics))
    assert said(capsys) == [
        "joint: step 41 of 60  reward 0.50",
        "joint: step 42 of 60  reward 0.50  4:30:00 left",
        "joint: step 43 of 60  reward 0.50  4:15:00 left",
    ]


def test_a_training_after_another_of_as_many_steps_counts_from_its_own_first(capsys, clock):
    with showing_steps(quiet=False, clock=clock) as show:
        for stage in ("warm-up", "joint"):
            for step in range(2):
                clock.now += 10
                show(Progress(stage=stage, step=step, total=2, metrics={}))
    assert said(capsys) == [
        "warm-up: step 1 of 2",
        "warm-up: step 2 of 2",
        "joint: step 1 of 2",
        "joint: step 2 of 2",
    ]


def test_quiet_nothing_is_said(capsys, clock):
    with progress_bar(quiet=True, clock=clock) as bar:
        bar.update(bar.add_task("evaluating", total=1, note=""), completed=1)
    assert said(capsys) == []


@pytest.mark.promise(
    "Command line",
    "Without a terminal, a long command prints its first and last step and one line in 30 "
    "seconds, and none with `--json`",
)
@pytest.mark.slow
def test_a_training_without_a_terminal_says_where_it_is(tmp_path, capsys):
    recipe = save_recipe(tmp_path)
    assert run("train", recipe, "--out", tmp_path / "run", "--set", "stages.joint.steps=2") == 0
    lines = said(capsys)
    assert lines[0].startswith("feedback: step 1 of 4  feedback reward ")
    assert lines[-1].startswith("joint: step 4 of 4  reward ")
