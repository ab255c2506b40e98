"""A trained pair goes on learning, each agent from its own weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.small_runs import run, save_model, save_recipe
from waltzrl.agents.exports import ROLES, export_name
from waltzrl.training.checkpoints import write_manifest
from waltzrl.training.opening import open_run, weights_of

TINY = Path(__file__).parents[2] / "recipes" / "tiny.toml"
KL_AT_START = ("kl/conversation_nats", "kl/feedback_nats")


def journal(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def other_prompts(path):
    path.write_text('{"prompt": "How do I bake a lazy dog?", "label": "unsafe"}\n')
    return path


def train_on(recipe, pair, out, *settings, layout="two-models"):
    models = f'models={{pair="{pair}",layout="{layout}"}}'
    return run("train", recipe, "--out", out, "--set", models, "--set", "seed=9", *settings)


def first_pair(folder, layout="two-models"):
    """Train a pair whose two agents move apart: the feedback agent learns alone first.

    Return the recipe and the export; the run is in `first` beside them.
    """
    recipe, agents = save_recipe(folder), folder / "agents"
    settings = ("--set", "stages.joint.steps=2", "--set", f"models.layout={layout}")
    assert run("train", recipe, "--out", folder / "first", *settings, "--export", agents) == 0
    return recipe, agents


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return first_pair(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    return first_pair(tmp_path_factory.mktemp("adapted"), "adapters")


def adapter_tensors(agents):
    return {
        role: load_file(agents / "adapters" / role / "adapter_model.safetensors") for role in ROLES
    }


def test_both_agents_go_on_from_their_own_weights_which_are_their_references(trained, tmp_path):
    recipe, agents = trained
    out, again = tmp_path / "second", tmp_path / "agents-2"
    before = weights_of(open_run(agents.with_name("first")))
    settings = (
        *("--set", "stages.feedback.steps=0", "--set", "stages.joint.steps=3"),
        *("--set", f'data.prompts=["{other_prompts(tmp_path / "more.jsonl")}"]'),
    )
    assert train_on(recipe, agents, out, *settings, "--export", again) == 0
    first, *_, last = journal(out)
    assert [first[name] for name in KL_AT_START] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert all(last[name] > 1e-7 for name in KL_AT_START)
    after = weights_of(open_run(out))
    assert before["conversation"] != before["feedback"]
    assert all(after[role] != before[role] for role in after)
    assert (again / "manifest.json").read_bytes() != (agents / "manifest.json").read_bytes()


def test_no_step_at_all_leaves_the_pair_as_it_was(trained, tmp_path):
    recipe, agents = trained
    again = tmp_path / "again"
    still = ("--set", "stages.feedback.steps=0", "--set", "stages.joint.steps=0")
    assert train_on(recipe, agents, tmp_path / "second", *still, "--export", again) == 0
    assert (again / "manifest.json").read_bytes() == (agents / "manifest.json").read_bytes()


def test_a_continued_run_that_was_cut_off_ends_with_the_same_weights(trained, tmp_path):
    recipe, agents = trained
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    steps = ("--set", "stages.joint.steps=4")
    assert train_on(recipe, agents, whole, *steps) == 0
    assert train_on(recipe, agents, cut, *steps) == 0
    weights = weights_of(open_run(whole))
    last = max((cut / "checkpoints").iterdir())
    (last / "MANIFEST.json").unlink()
    assert train_on(recipe, agents, cut, *steps) == 0
    assert weights_of(open_run(cut)) == weights


def test_a_folder_that_is_no_export_is_refused(trained, tmp_path, capsys):
    recipe, agents = trained
    assert train_on(recipe, recipe.with_name("model"), tmp_path / "second") == 2
    assert "manifest.json is missing" in capsys.readouterr().err
    agents = shutil.copytree(agents, tmp_path / "agents")
    weights = agents / "waltzrl_feedback_stage2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert train_on(recipe, agents, tmp_path / "third") == 2
    assert "model.safetensors has" in capsys.readouterr().err


@pytest.mark.promise(
    "Training",
    "Exported adapters are PEFT's, with the hash of their base, and training continues from them, "
    "each its own reference; a run that was cut off ends with the same weights",
)
def test_adapters_go_on_from_adapters_which_are_their_references(adapted, tmp_path):
    recipe, agents = adapted
    out, again = tmp_path / "second", tmp_path / "agents-2"
    settings = (
        *("--set", "stages.feedback.steps=0", "--set", "stages.joint.steps=3"),
        *("--set", f'data.prompts=["{other_prompts(tmp_path / "more.jsonl")}"]'),
    )
    assert train_on(recipe, agents, out, *settings, "--export", again, layout="adapters") == 0
    first, *_, last = journal(out)
    assert [first[name] for name in KL_AT_START] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert all(last[name] > 1e-7 for name in KL_AT_START)
    before, after = adapter_tensors(agents), adapter_tensors(again)
    for role in ROLES:
        assert before[role].keys() == after[role].keys()
        assert any(not torch.equal(before[role][name], after[role][name]) for name in before[role])


@pytest.mark.parametrize("layout", ["adapters", "two-models"])
def test_no_step_at_all_leaves_adapters_as_they_were(adapted, tmp_path, layout):
    recipe, agents = adapted
    again = tmp_path / "again"
    still = ("--set", "stages.feedback.steps=0", "--set", "stages.joint.steps=0")
    out = tmp_path / "second"
    assert train_on(recipe, agents, out, *still, "--export", again, layout=layout) == 0
    listed, before = (
        json.loads((folder / "manifest.json").read_bytes())["files"] for folder in (again, agents)
    )
    merged = {name: file for name, file in before.items() if not name.startswith("adapters/")}
    assert listed == (before if layout == "adapters" else merged)


@pytest.mark.promise(
    "Training",
    "Exported adapters are PEFT's, with the hash of their base, and training continues from them, "
    "each its own reference; a run that was cut off ends with the same weights",
)
def test_continued_adapters_that_were_cut_off_end_with_the_same_weights(adapted, tmp_path):
    recipe, agents = adapted
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = ("--set", "stages.joint.steps=4", "--set", "compute.checkpoint_activations=true")
    assert train_on(recipe, agents, whole, *settings, layout="adapters") == 0
    assert train_on(recipe, agents, cut, *settings, layout="adapters") == 0
    last = max((cut / "checkpoints").iterdir())
    (last / "MANIFEST.json").unlink()
    assert train_on(recipe, agents, cut, *settings, layout="adapters") == 0
    assert weights_of(open_run(cut)) == weights_of(open_run(whole))


def test_adapters_of_a_base_that_only_the_run_had_go_on_from_the_export(tmp_path):
    """The base was made from scratch, and warmed up: the export takes it with it."""
    small = ("--set=data.limit=8", "--set=checkpointing.kl_limit=1e6")
    small += ("--set=data.held_out=[]", "--set=data.validation=[]")
    steps = ("--set=stages.warm-up.steps=2", "--set=stages.feedback.steps=1")
    few = (*small, "--set=stages.joint.steps=1", "--set=agents.max_new_tokens=6")
    first, agents, again = tmp_path / "first", tmp_path / "agents", tmp_path / "agents-2"
    made = ("--set=models.layout=adapters", *steps, *few, "--export", agents)
    assert run("train", TINY, "--out", first, *made) == 0
    shutil.rmtree(first)
    recipe = tmp_path / "continue.toml"
    _, *later = TINY.read_text().split("[[stages]]")[1:]
    start = f'seed = 1\n[models]\npair = "{agents}"\nlayout = "adapters"\n'
    data = '[data]\nprompts = ["generator:train"]\n[agents]\nwording = "tiny"\n'
    recipe.write_text("[[stages]]".join([start + data, *later]))
    settings = ("--set=stages.feedback.steps=0", *few)
    assert run("train", recipe, "--out", tmp_path / "second", *settings, "--export", again) == 0
    weights = "base/model.safetensors"
    assert (again / weights).read_bytes() == (agents / weights).read_bytes()


@pytest.mark.promise(
    "Training",
    "Adapters of another base, a truncated adapter and a pair without adapters are refused in one "
    "line",
)
@pytest.mark.promise(
    "Bad input",
    "Adapters of another base, a truncated adapter: the adapter, and both hashes or sizes",
)
def test_adapters_that_cannot_go_on_are_refused_in_one_line(adapted, tmp_path, capsys):
    recipe, agents = adapted[0], shutil.copytree(adapted[1], tmp_path / "agents")
    out, pair = tmp_path / "second", f'pair="{agents}",layout="adapters"'
    other = save_model(tmp_path / "other", seed=1)
    narrower = save_model(tmp_path / "narrower", family="llama")
    for base in (other, narrower):
        models = ("--set", f'models={{{pair},base="{base}"}}')
        assert run("train", recipe, "--out", out, *models) == 2
        said = capsys.readouterr().err.strip()
        assert f"was trained on another base than {base} (SHA-256" in said
        assert "set models.base" in said
        assert "\n" not in said
    weights = agents / "adapters" / "feedback" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8])
    assert train_on(recipe, agents, out, layout="adapters") == 2
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith(f"{weights} has {len(whole) - 8} bytes, need {len(whole)}; use another copy")
    )
    assert not (out / "checkpoints").exists()


@pytest.mark.promise(
    "Training",
    "Adapters of another base, a truncated adapter and a pair without adapters are refused in one "
    "line",
)
def test_a_pair_without_adapters_is_not_continued_as_adapters(trained, tmp_path, capsys):
    recipe, agents = trained
    assert train_on(recipe, agents, tmp_path / "second", layout="adapters") == 2
    assert "has no adapters to continue from" in capsys.readouterr().err


def test_agents_that_are_adapters_go_on_as_a_package_ships_them(adapted, tmp_path):
    recipe, whole = adapted
    agents = shutil.copytree(whole, tmp_path / "shipped")
    for role in ROLES:
        shutil.rmtree(agents / export_name(role))
        shutil.move(agents / "adapters" / role, agents / export_name(role))
    (agents / "adapters").rmdir()
    facts = json.loads((agents / "manifest.json").read_bytes())
    del facts["files"]
    (agents / "manifest.json").unlink()
    write_manifest(agents, "manifest.json", facts)
    out, again = tmp_path / "second", tmp_path / "again"
    still = ("--set", "stages.feedback.steps=0", "--set", "stages.joint.steps=0")
    assert train_on(recipe, agents, out, *still, "--export", again, layout="adapters") == 0
    before, after = adapter_tensors(whole), adapter_tensors(again)
    for role in ROLES:
        assert all(torch.equal(before[role][name], after[role][name]) for name in before[role])
