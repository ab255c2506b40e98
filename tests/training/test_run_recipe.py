"""A run directory goes on with its own recipe only; what it may go on with another of is free."""

import pytest

from waltzrl.errors import RecipeError
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.training.recipe import find_wandb_project, load_recipe
from waltzrl.training.run_recipe import write_recipe

RECIPE = """
seed = 3
[models]
base = "models/tiny"
layout = "adapters"
[data]
prompts = ["prompts.jsonl"]
[agents]
max_new_tokens = 6
[[stages]]
name = "joint"
kind = "reinforcement"
learns = ["conversation", "feedback"]
steps = 20
optimizer = { learning_rate = 1e-3 }
"""
SERVERS = "compute.rollouts='vllm:http://a:8000'"
WORKERS = ("compute.engine='ray'", "compute.ray.workers=1")


@pytest.fixture
def go_on(tmp_path):
    """Return what begins a run at its first call, and goes on at the next."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)

    def written(*settings):
        with RunDirectory(tmp_path / "run") as run:
            write_recipe(run, load_recipe(recipe, settings))
        (tmp_path / "run" / "checkpoints" / "step-000001").mkdir(parents=True, exist_ok=True)

    return written


@pytest.mark.parametrize("sampling", [(SERVERS,), WORKERS])
def test_a_run_that_sampled_ahead_does_not_go_on_without(go_on, sampling):
    go_on(*sampling, "compute.staleness=1")
    with pytest.raises(RecipeError, match=r"another recipe \(other compute\.staleness\); choose"):
        go_on()


def test_a_run_on_servers_does_not_go_on_in_another_layout(go_on):
    go_on(SERVERS)
    with pytest.raises(RecipeError, match=r"another recipe \(other models\.layout\); choose"):
        go_on("models.layout='two-models'")


def test_a_run_goes_on_with_other_samplers_prices_and_caps(go_on):
    go_on(SERVERS, "compute.staleness=1")
    go_on(*WORKERS, "compute.staleness=1", "budget.max_usd=5", "prices.m={input=1,output=2}")


def test_a_run_goes_on_where_it_is_shown_and_copied_elsewhere_too(go_on):
    go_on("wandb_project=mine", "checkpointing.copies=memory://one")
    go_on("checkpointing.copies=memory://two")
    with pytest.raises(RecipeError, match=r"\(other checkpointing\.keep_last\); choose"):
        go_on("checkpointing.keep_last=3")


def test_what_is_shown_on_wandb_has_no_passwords(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    settings = (
        "wandb_project=mine",
        "checkpointing.copies=sftp://ada:secret@store/run",
        "judge=llm:m@http://ada:secret@judge/v1",
        'data.prompts=["memory:postgresql://ada:secret@db/memory"]',
    )
    config = find_wandb_project(load_recipe(recipe, settings)).config
    assert config["checkpointing"]["copies"] == "sftp://ada:***@store/run"
    assert config["judge"] == "llm:m@http://ada:***@judge/v1"
    assert config["data"]["prompts"] == ["memory:postgresql://ada:***@db/memory"]


@pytest.mark.parametrize("name", ["base/model.safetensors", "explanations.jsonl", "metrics.jsonl"])
def test_what_is_of_no_run_is_neither_deleted_nor_taken_for_its_own(go_on, tmp_path, name):
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(RecipeError, match=rf"has a {name.partition('/')[0]} that a run would"):
        go_on()
    assert file.read_text() == "mine"


def test_a_folder_of_other_runs_is_no_run(go_on, tmp_path):
    (tmp_path / "run" / "other" / "checkpoints" / "step-000001").mkdir(parents=True)
    with pytest.raises(RecipeError, match=r"run is no training run: it has no recipe.json; choose"):
        go_on()
