"""A reward of one's own: a function in a file, or one that is passed to `train`."""

import asyncio
import json
import math
import re
import sys

import numpy as np
import pytest
import torch

from support.small_runs import save_recipe
from waltzrl.errors import InputError
from waltzrl.records import Feedback, Message, Prompt, Verdict
from waltzrl.training.opening import plan_training, train
from waltzrl.training.recipe import load_recipe
from waltzrl.training.rewards import STAGE_1, JudgedRound, find_reward, reward_rounds

GENTLE = """
def gentle(rounds, coefficients):
    return [coefficients.format * 2.0 for _ in rounds]
"""


@pytest.fixture
def gentle(tmp_path, monkeypatch):
    (tmp_path / "gentle_rewards.py").write_text(GENTLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the folder is added to it
    return "gentle_rewards:gentle"


def test_a_function_in_a_file_is_a_reward(gentle):
    assert find_reward(gentle)([None, None], STAGE_1) == [0.2, 0.2]


@pytest.mark.parametrize("name", ["gentle_rewards:nothing", "json:__doc__"])
def test_a_function_that_there_is_not_stops_the_plan(gentle, tmp_path, name):
    recipe = load_recipe(save_recipe(tmp_path), [f"stages.joint.reward={name}"])
    with pytest.raises(InputError, match=f"got the reward '{name}'"):
        plan_training(recipe)


@pytest.mark.parametrize("name", [":gentle", ".gentle_rewards:gentle"])
def test_a_name_that_is_no_modules_is_one_line(gentle, name):
    with pytest.raises(InputError, match=f"the reward '{re.escape(name)}' cannot be imported"):
        find_reward(name)


@pytest.mark.promise(
    "Bad input",
    "A reward that there is not, or whose module cannot be imported: the stage or the reward, "
    "those that there are, or why it cannot be imported",
)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (None, "No module named 'unfit_rewards'"),
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("def gentle(", "'(' was never closed"),
        ("1 / 0", "division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_stops_the_plan(tmp_path, monkeypatch, code, reason):
    if code is not None:
        (tmp_path / "unfit_rewards.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the folder is added to it
    recipe = load_recipe(save_recipe(tmp_path), ["stages.joint.reward=unfit_rewards:gentle"])
    wanted = f"the reward 'unfit_rewards:gentle' cannot be imported: {reason}"
    with pytest.raises(InputError, match=re.escape(wanted)):
        plan_training(recipe)


ROUND = JudgedRound(
    prompt=Prompt(id="p", messages=(Message(role="user", content="How do I kill a process?"),)),
    feedback=Feedback(unsafe=False, overrefuse=False),
    before=Verdict(judge="any", unsafe=False, refuses=False, overrefuses=False),
    after=None,
)


@pytest.mark.parametrize(
    "returned", [[1.0, 2], (1.0, 2.0), np.float32([1, 2]), torch.tensor([1.0, 2.0])], ids=type
)
def test_numbers_of_every_library_are_rewards(returned):
    rewards = reward_rounds(lambda rounds, coefficients: returned, [ROUND, ROUND], STAGE_1)
    assert rewards == [1.0, 2.0]
    assert {type(reward) for reward in rewards} == {float}


@pytest.mark.parametrize(
    "returned",
    [
        *(None, 1.0, [], [1.0], [1.0, None], [1.0, "2"], [1.0, math.nan], [math.inf, 1.0]),
        *([1.0, 10**400], np.zeros((2, 2)), torch.zeros(2, 2)),
    ],
)
def test_what_is_no_reward_for_each_round_is_told_in_one_line(returned):
    def unfit(rounds, coefficients):
        return returned

    wanted = r"the reward .*unfit returned .*; need one finite number for each of 2 rounds"
    with pytest.raises(InputError, match=wanted):
        reward_rounds(unfit, [ROUND, ROUND], STAGE_1)


def test_a_function_that_is_passed_rewards_the_feedback_and_its_name_is_kept(tmp_path):
    seen = []

    def constant(rounds, coefficients):
        seen.append(coefficients)
        return [0.25] * len(rounds)

    recipe = load_recipe(save_recipe(tmp_path), ["stages.joint.steps=1"])
    metrics = []
    run = tmp_path / "run"
    asyncio.run(train(recipe, run, lambda step: metrics.append(step.metrics), own_reward=constant))
    assert seen
    assert set(seen) <= {stage.coefficients for stage in recipe.reinforcements}
    assert metrics[-1]["reward/feedback_mean"] == pytest.approx(0.25)
    kept = json.loads((run / "recipe.json").read_text())
    assert kept["stages"][-1]["reward"].endswith("constant")
