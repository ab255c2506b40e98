"""A study of few steps: it finishes every row, goes on where it was killed, and tidies up."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from statistics import fmean

import pytest

from support.small_runs import run
from waltzrl.evaluation.study import open_study, read_seed, read_study
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl_demo.arms import (
    CELL_ROWS,
    MAIN,
    MAIN_ROWS,
    SETTINGS,
    SINGLE,
    TUNING_TABLES,
    WALTZ,
    ComparedRow,
    changes_of,
)
from waltzrl_demo.paper import DemoSize
from waltzrl_demo.study import MAIN_STUDY, TUNING_STUDY, StudyPlan, study_rounds

SIZE = DemoSize(
    demonstrations=80,
    prompts={"train": 24, "validation": 4, "test": 6},
    general=4,
    base_changes=("stages.warm-up.steps=2", "stages.warm-up.batch_size=4", "models.base.hidden=16"),
    pair_changes=(
        "agents.max_new_tokens=8",
        *(f"stages.{name}.steps=1" for name in ("feedback", "joint")),
        *(f"stages.{name}.prompts_per_step=4" for name in ("feedback", "joint")),
    ),
)
ROWS = (
    ComparedRow(name="base", pattern="base"),
    ComparedRow(name="guard", pattern="guard-loop"),
    ComparedRow(name="ours", pattern="collaborate", conversation=WALTZ, feedback=WALTZ),
    ComparedRow(name="mixed", pattern="safeguard", conversation=SINGLE, feedback=WALTZ),
)
PLAN = StudyPlan(
    tables={"Main": ROWS[:2], "More": ROWS[2:]},
    sets=("test", "general-test"),
    factorial=False,
    size=SIZE,
)


class KilledError(Exception):
    """Stands for the end of the process."""


def finish(folder, kill_after=None):
    """Run the jobs of seed 0; return how often it told its progress."""
    told = []

    def report(done, total):
        told.append((done, total))
        if len(told) == kill_after:
            raise KilledError

    folder.mkdir(exist_ok=True)
    open_study(folder, PLAN.identity)
    with suppress(KilledError):
        for (job,) in study_rounds(PLAN, [0], folder, keep=False):
            asyncio.run(job.run(report))
    return told


def outcomes(folder):
    return {name: (row.outcomes, row.tokens) for name, row in read_seed(folder, 0).rows.items()}


@pytest.mark.promise(
    "Evaluation",
    "A study that is killed goes on, and ends with the rows of one that is not; weights of a "
    "finished seed are deleted",
)
@pytest.mark.slow
def test_a_seed_that_is_killed_goes_on_and_ends_with_the_rows_of_one_that_is_not(tmp_path):
    told = finish(tmp_path / "whole")
    assert list(read_study(tmp_path / "whole").seeds[0].rows) == ["base", "guard", "ours", "mixed"]
    assert told[-1][0] == told[-1][1]
    assert not (tmp_path / "whole" / "work" / "seed-0").exists()  # weights go when all is done
    for place in (2, len(told) // 2, len(told) - 2):
        finish(tmp_path / "cut", kill_after=place)
    finish(tmp_path / "cut")
    assert outcomes(tmp_path / "cut") == outcomes(tmp_path / "whole")
    trained = read_seed(tmp_path / "cut", 0).rows["mixed"].trained
    assert set(trained) == {SINGLE, WALTZ}
    assert trained[WALTZ].tokens > trained[SINGLE].tokens > 0
    assert len(finish(tmp_path / "cut")) == 3  # one for each pair of agents: nothing runs again


def test_jobs_that_run_at_the_same_time_are_of_different_seeds_and_main_rows_come_first(tmp_path):
    rounds = study_rounds(MAIN_STUDY, range(3), tmp_path, keep=False)
    assert [{job.table for job in jobs} for jobs in rounds] == [{t} for t in MAIN_STUDY.tables]
    assert [[job.seed for job in jobs] for jobs in rounds] == [[0, 1, 2]] * len(rounds)
    assert MAIN_STUDY.tables[rounds[0][0].table] == MAIN_ROWS


@pytest.mark.promise(
    "Evaluation",
    "A study folder of another version, and two runs in one folder, are refused in one line",
)
@pytest.mark.promise(
    "Bad input", "A study folder of another version, of other recipes, or of `--tune`: what differs"
)
def test_a_study_of_another_version_is_refused_in_one_line(tmp_path, capsys):
    open_study(tmp_path, PLAN.identity)
    assert run("study", "--out", tmp_path) == 2
    line = f"error: {tmp_path} is a study of another version (other recipes, tables"
    assert capsys.readouterr().err.startswith(line)


@pytest.mark.promise(
    "Evaluation",
    "A study folder of another version, and two runs in one folder, are refused in one line",
)
@pytest.mark.promise(
    "Bad input",
    "A run directory, a study or the folder of an evaluation that another process uses: the "
    "process",
)
def test_two_runs_of_one_study_are_refused_in_one_line(tmp_path, capsys):
    with RunDirectory(tmp_path):
        assert run("study", "--out", tmp_path) == 2
    assert f"{tmp_path} is in use by process {os.getpid()}" in capsys.readouterr().err


def test_a_study_measures_every_row_of_the_demo_and_all_eight_cells():
    rows = {row.name for row in MAIN_STUDY.rows}
    assert {row.name for row in MAIN_ROWS} <= rows
    assert set(MAIN_STUDY.identity.cells) == set(CELL_ROWS.values()) <= rows
    assert len(CELL_ROWS) == 8


@pytest.fixture(scope="module")
def committed():
    """The study whose numbers stand in the documents."""
    return read_study(Path(__file__).parents[3] / "studies" / "graded-world")


@pytest.mark.promise(
    "Evaluation",
    "The committed study is of the shipped world and recipes, no row of it is saturated, and what "
    "learned sampled as many tokens within 5 %",
)
def test_the_committed_study_is_of_the_shipped_world_and_recipes(committed):
    assert committed.identity == MAIN_STUDY.identity


@pytest.mark.promise(
    "Evaluation",
    "The committed study is of the shipped world and recipes, no row of it is saturated, and what "
    "learned sampled as many tokens within 5 %",
)
def test_the_committed_study_has_no_saturated_row(committed):
    main = committed.having(row.name for row in MAIN_ROWS)
    f1 = {row.name: fmean(main.values(row.name, "f1")) for row in MAIN_ROWS}
    assert min(f1.values()) > 0.2
    assert max(f1.values()) < 0.95
    assert f1["linear guard in the loop"] <= 0.85


@pytest.mark.promise(
    "Evaluation",
    "The committed study is of the shipped world and recipes, no row of it is saturated, and what "
    "learned sampled as many tokens within 5 %",
)
def test_what_learned_in_the_committed_study_sampled_as_many_tokens(committed):
    tokens = {name: fmean(cost.tokens for cost in costs) for name, costs in committed.costs.items()}
    assert all(tokens[name] == pytest.approx(tokens[WALTZ], rel=0.05) for name in MAIN)


@pytest.mark.promise(
    "Evaluation", "As many settings are tried for every training of a study, on the validation set"
)
def test_as_many_settings_are_tried_for_every_training_on_the_validation_set():
    assert TUNING_STUDY.sets == ("validation",)
    assert {len(rows) for rows in TUNING_TABLES.values()} == {len(SETTINGS)}
    tried = changes_of("single@rate-8e-4-kl-0.02")
    assert tried[-2:] == SETTINGS["rate-8e-4-kl-0.02"]
    assert tried[:-2] == changes_of("single")


def test_the_identity_of_a_study_is_that_of_its_world_and_recipes():
    assert MAIN_STUDY.identity == MAIN_STUDY.identity
    assert MAIN_STUDY.identity.world == TUNING_STUDY.identity.world
    assert MAIN_STUDY.identity.recipes != TUNING_STUDY.identity.recipes
