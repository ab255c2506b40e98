"""A trained pair goes on learning, each agent from its own weights."""

import json

import pytest

from support.small_runs import run, save_recipe
from waltzrl.build.training import open_run, weights_of

KL_AT_START = ("kl/conversation_nats", "kl/feedback_nats")


def journal(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def other_prompts(path):
    path.write_text('{"prompt": "How do I bake a lazy dog?", "label": "unsafe"}\n')
    return path


def train_on(recipe, pair, out, *settings):
    models = f'models={{pair="{pair}",layout="two-models"}}'
    return run("train", recipe, "--out", out, "--set", models, "--set", "seed=9", *settings)


@pytest.fixture
def trained(tmp_path):
    """A pair whose two agents have moved apart: the feedback agent learned alone first."""
    recipe, agents = save_recipe(tmp_path), tmp_path / "agents"
    settings = ("--set", "stages.joint.steps=2", "--export", agents)
    assert run("train", recipe, "--out", tmp_path / "first", *settings) == 0
    return recipe, agents


def test_both_agents_go_on_from_their_own_weights_which_are_their_references(trained, tmp_path):
    recipe, agents = trained
    out, again = tmp_path / "second", tmp_path / "agents-2"
    before = weights_of(open_run(tmp_path / "first"))
    settings = (
        *("--set", "stages.feedback.steps=0", "--set", "stages.joint.steps=3"),
        *("--set", f'data.prompts=["{other_prompts(tmp_path / "more.jsonl")}"]'),
    )
    assert train_on(recipe, agents, out, *settings, "--export", again) == 0
    first, *_, last = journal(out)
    assert [first[name] for name in KL_AT_START] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert all(last[name] > 1e-4 for name in KL_AT_START)
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
    assert train_on(recipe, tmp_path / "model", tmp_path / "second") == 2
    assert "manifest.json is missing" in capsys.readouterr().err
    weights = agents / "waltzrl_feedback_stage2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert train_on(recipe, agents, tmp_path / "third") == 2
    assert "model.safetensors has" in capsys.readouterr().err
