"""Targets of a run: a loss of the warm-up, a gain of reward; a run that misses one exports none."""

import math

import pytest

from support.small_runs import run, save_recipe
from waltzrl.errors import RecipeError
from waltzrl.foundation.journal import Journal, read_metrics
from waltzrl.training.costs import make_pilot
from waltzrl.training.recipe import load_recipe
from waltzrl.training.targets import TargetSettings, missed_gain, missed_loss

ROLES = ("conversation", "feedback")


def losses(*values):
    return [{"step": step, "loss/conversation": value} for step, value in enumerate(values)]


def rewards(conversation, feedback):
    return [
        {"reward/conversation_mean": one, "reward/feedback_mean": other}
        for one, other in zip(conversation, feedback, strict=True)
    ]


def test_the_loss_is_the_mean_of_the_last_ten_steps():
    # Ten steps of 0.4 and 0.5 in turn have a mean of 0.45; the 9.0 before them does not count.
    lines = losses(9.0, *[0.4, 0.5] * 5)
    assert missed_loss(lines, 0.5) == ""
    assert missed_loss(lines, 0.45).startswith("the warm-up ended with a loss of 0.45")


def test_each_role_that_learns_must_gain():
    # In a stage of four steps the means are of two: 0.5 to 0.6 is +20 %, 1.0 to 1.1 is +10 %.
    lines = rewards([0.4, 0.6, 0.5, 0.7], [1.0, 1.0, 1.1, 1.1])
    assert missed_gain(lines, ("conversation",), 0.19) == ""
    assert missed_gain(lines, ROLES, 0.19) == (
        "reward/feedback_mean went from 1 to 1.1 in the means of 2 steps, "
        "targets.reward_gain is 0.19"
    )


def test_a_negative_reward_gains_by_a_share_of_its_size_and_none_gains_by_standing_still():
    # -1.0 to -0.75 is a quarter of 1.0.
    rising, still = [-1.0, -0.75], [0.0, 0.0]
    lines = rewards(rising, still)
    assert missed_gain(lines, ("conversation",), 0.25) == ""
    assert missed_gain(lines, ("conversation",), 0.3) != ""
    assert "from 0 to 0" in missed_gain(lines, ("feedback",), 0.0)
    assert "measured in no step" in missed_gain([{"step": 0}], ("feedback",), 0.0)
    assert missed_gain(rewards(still, [0.0, 1e-9]), ("feedback",), 0.2) == ""


def test_steps_whose_value_was_not_finite_are_left_out(tmp_path):
    loss, reward = "loss/conversation", "reward/conversation_mean"
    measured = [(0.4, 1.0), (math.nan, math.nan), (0.6, 2.0), (math.inf, -math.inf)]
    some, none = tmp_path / "some", tmp_path / "none"
    some.mkdir()
    none.mkdir()
    with Journal(some, -1) as journal:
        for step, (one, other) in enumerate(measured):
            journal.write(step, {loss: one, reward: other})
    lines = read_metrics(some)
    assert missed_loss(lines, 0.51) == ""
    assert missed_loss(lines, 0.5).startswith("the warm-up ended with a loss of 0.5")
    assert missed_gain(lines, ("conversation",), 1.0) == ""
    with Journal(none, -1) as journal:
        journal.write(0, {loss: math.nan, reward: math.nan})
    lines = read_metrics(none)
    assert missed_loss(lines, 0.5) == (
        "loss/conversation was measured in no step, targets.warm_up_loss is 0.5"
    )
    assert "measured in no step" in missed_gain(lines, ("conversation",), 0.2)


def test_targets_need_steps_to_be_measured_by(tmp_path):
    recipe = save_recipe(tmp_path)
    with pytest.raises(RecipeError, match="warm_up_loss needs a stage of imitation"):
        load_recipe(recipe, ["targets.warm_up_loss=0.5"])
    with pytest.raises(RecipeError, match="reward_gain needs a stage of reinforcement"):
        load_recipe(
            recipe,
            ["targets.reward_gain=0.2", "stages.feedback.steps=0", "stages.joint.steps=0"],
        )


def test_a_pilot_has_no_targets(tmp_path):
    recipe = load_recipe(save_recipe(tmp_path), ["targets.reward_gain=0.2"])
    assert make_pilot(recipe, 1).targets == TargetSettings()


def test_a_pilot_is_shown_and_copied_nowhere(tmp_path):
    settings = ["wandb_project=mine", "checkpointing.copies=memory://run"]
    pilot = make_pilot(load_recipe(save_recipe(tmp_path), settings), 1)
    assert (pilot.wandb_project, pilot.checkpointing.copies) == (None, None)


LONG = 1024
"""A context that holds the generated demonstrations."""

WARM_UP = """
[[stages]]
name = "warm-up"
kind = "imitation"
steps = 2
batch_size = 2
optimizer = { learning_rate = 1e-3, warmup_steps = 0 }
"""


@pytest.mark.slow
@pytest.mark.promise("Requirements", "SFT loss < 0.5, RL reward +20 %")
@pytest.mark.promise(
    "Training", "A run that misses a target ends with 4, says by how much, and exports nothing"
)
def test_a_run_that_misses_a_target_exports_nothing(tmp_path, capsys):
    recipe, out, agents = save_recipe(tmp_path, LONG), tmp_path / "run", tmp_path / "agents"
    before, stages, after = recipe.read_text().partition("[[stages]]")
    recipe.write_text(before + WARM_UP + stages + after)
    with_targets = (
        *("--set", 'data.demonstrations=["generator:train"]', "--set", "data.limit=4"),
        *("--set", "stages.feedback.steps=1", "--set", "stages.joint.steps=2"),
        *("--out", out, "--export", agents),
    )
    train = ("train", recipe, *with_targets)
    assert run(*train, "--set", "targets.warm_up_loss=0.5") == 4
    assert "error: the warm-up ended with a loss of" in capsys.readouterr().err
    assert not (out / "checkpoints").exists()
    # The same run goes on with other targets; no reward doubles a hundred times in two steps.
    assert run(*train, "--set", "targets.reward_gain=100") == 4
    assert "targets.reward_gain is 100: nothing was exported" in capsys.readouterr().err
    assert not agents.exists()
    assert run(*train, "--set", "targets.warm_up_loss=100") == 0
    assert agents.exists()
