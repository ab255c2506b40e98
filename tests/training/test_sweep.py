import asyncio

import pytest

from support.small_runs import save_recipe, save_validation
from waltzrl.errors import InputError, RecipeError
from waltzrl.training.sweep import DIVERGED, SweepJob, sweep_points

KL, LABEL = "stages.joint.algorithm.kl_weight", "stages.joint.coefficients.label"


@pytest.fixture
def recipe(tmp_path):
    path = save_recipe(tmp_path)
    validation = save_validation(tmp_path / "validation.jsonl")
    path.write_text(path.read_text().replace("[data]", f'[data]\nvalidation = ["{validation}"]'))
    return path


@pytest.mark.promise(
    "Evaluation",
    "A sweep trains every combination of its values, resumes, trains only what more values add, "
    "and compares the points on the validation set",
)
def test_every_combination_is_a_point_named_after_its_values(recipe):
    points = sweep_points(recipe, ["stages.joint.steps=1"], [f"{KL}=0.02,0.05", "seed=0,1"])
    assert [(point.name, point.setting) for point in points] == [
        ("kl_weight=0.02,seed=0", "kl_weight=0.02"),
        ("kl_weight=0.02,seed=1", "kl_weight=0.02"),
        ("kl_weight=0.05,seed=0", "kl_weight=0.05"),
        ("kl_weight=0.05,seed=1", "kl_weight=0.05"),
    ]
    joint = points[2].recipe.reinforcements[1]
    assert (joint.algorithm.kl_weight, joint.steps, points[2].recipe.seed) == (0.05, 1, 0)
    assert points[2].values == {KL: 0.05, "seed": 0}


def test_the_copies_of_every_point_have_a_place_of_their_own(recipe):
    points = sweep_points(recipe, ["checkpointing.copies=memory://all/"], ["seed=0,1"])
    copies = [point.recipe.checkpointing.copies for point in points]
    assert copies == ["memory://all/seed=0", "memory://all/seed=1"]


def test_words_need_no_quotes_and_lists_are_values(recipe):
    points = sweep_points(
        recipe,
        [],
        ["stages.joint.reward=paper,signed", 'stages.joint.learns=["feedback"],["conversation"]'],
    )
    assert [point.recipe.reinforcements[1].reward for point in points] == [
        *("paper", "paper", "signed", "signed")
    ]
    assert points[1].recipe.reinforcements[1].learns == ("conversation",)
    assert points[1].name == "reward=paper,learns=_conversation_"  # a folder's name


def test_keys_that_end_alike_are_told_apart_in_the_names(recipe):
    (point,) = sweep_points(recipe, [], ["stages.feedback.steps=1", "stages.joint.steps=2"])
    assert point.name == "feedback.steps=1,joint.steps=2"


@pytest.mark.promise(
    "Evaluation",
    "What cannot be swept is one line before anything is trained; a point that diverges does not "
    "end the others",
)
@pytest.mark.promise(
    "Bad input",
    "A sweep over an unknown key, without values, or of a recipe without a validation set: the "
    "key, and the nearest known one, or what to name; nothing is trained",
)
@pytest.mark.parametrize(
    ("over", "line"),
    [
        (["stages.joint.algorithm.kl_wieght=1,2"], "did you mean 'stages.algorithm.kl_weight'?"),
        (["sed=1,2"], "unknown key 'sed'; did you mean 'seed'?"),
        (["seed"], "--over seed: need key=value,value, such as models.rank=8,16"),
        (["seed="], "--over seed=: need key=value,value"),
        (["seed=1,soon"], "seed: got 'soon', need a valid integer"),
        (["seed=1", "seed=2"], "--over: a key is given twice; give all its values to one --over"),
        (["seed=1,1"], "--over: two points are called 'seed=1'; leave one of them out"),
        (["seed=2026-01-01"], "no key is a date or a time; put a text in quotes"),
        (["models.base={hidden=32}"], "tables cannot be swept; sweep their keys"),
        (["data.validation=[]"], "points are compared on data.validation"),
        (["compute.engine=ray"], "a sweep trains in processes of this machine"),
    ],
)
def test_what_cannot_be_swept_is_said_before_anything_is_trained(recipe, over, line):
    with pytest.raises(RecipeError) as refused:
        sweep_points(recipe, [], over)
    assert line in str(refused.value)


def train(point, folder):
    steps = []
    job = SweepJob(name=point.name, recipe=point.recipe, folder=folder)
    asyncio.run(job.run(lambda done, total: steps.append((done, total))))
    return steps


@pytest.mark.promise(
    "Evaluation",
    "What cannot be swept is one line before anything is trained; a point that diverges does not "
    "end the others",
)
def test_a_point_that_diverges_is_marked_and_one_that_cannot_be_trained_is_named(recipe, tmp_path):
    short = ["stages.joint.steps=2", "stages.feedback.steps=2", "agents.max_new_tokens=2"]
    (point,) = sweep_points(recipe, short, ["checkpointing.kl_limit=-1.0"])
    assert train(point, tmp_path / "run") == [(1, 4), (2, 4)]  # the third step above it is too many
    assert "kl/" in (tmp_path / "run" / DIVERGED).read_text()
    (other,) = sweep_points(recipe, short, ["seed=5"])
    with pytest.raises(InputError, match=r"seed=5: .* was begun with another recipe"):
        train(other, tmp_path / "run")
