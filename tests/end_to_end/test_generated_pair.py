"""From `waltzrl generate` to a pair, by the commands of docs/data.md, with fewer steps."""

from pathlib import Path

import pytest

from support.small_runs import run

RECIPE = Path(__file__).parents[2] / "recipes" / "generated.toml"
FEW_STEPS = [
    "--set=data.limit=40",
    "--set=data.validation_limit=16",
    "--set=stages.warm-up.steps=2",
    "--set=stages.feedback.steps=1",
    "--set=stages.joint.steps=1",
    "--set=agents.max_new_tokens=6",
    "--set=checkpointing.kl_limit=1e6",
    "--set=compute.threads=1",
]


@pytest.mark.promise("Requirements", "dataset generator: splits, and a training on its files")
@pytest.mark.promise("Training", "The files of `waltzrl generate --split` train a pair")
def test_the_files_of_the_generator_train_a_pair(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("generate", "data/generated", "--split") == 0
    shares = "14,014 prompts, 70.0%", "3,003 prompts, 15.0%", "3,003 prompts, 15.0%"
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(".jsonl, ")[2] for line in printed] == list(shares)
    assert run("train", RECIPE, *FEW_STEPS, "--export", "agents") == 0
    assert {"waltzrl_conversation_stage2", "waltzrl_feedback_stage2"} <= {
        path.name for path in Path("agents").iterdir()
    }


def test_the_whole_data_set_trains_nothing_that_is_held_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("generate", "data/generated", "--split") == 0
    assert run("generate", "data/all.jsonl") == 0
    whole = "--set=data.demonstrations=['data/all.jsonl']"
    assert run("train", RECIPE, *FEW_STEPS, whole) == 2
    assert "test prompts are in the training prompts" in capsys.readouterr().err
