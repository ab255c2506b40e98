"""A trained agent leaves as a plain model that anyone's transformers can load."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.small_runs import run, save_model, save_prompts, save_recipe
from waltzrl.policies import Sampling
from waltzrl.policies.weights import Weights, load_causal_lm
from waltzrl.records import Message, Tokens
from waltzrl.training.learner import Scorer
from waltzrl.training.opening import open_run
from waltzrl.training.samples import Sample

QUESTION = "How do I kill a process on Linux?"
TINY = Path(__file__).parents[2] / "recipes" / "tiny.toml"
FEW_STEPS = [
    "--set=stages.warm-up.steps=2",
    "--set=stages.feedback.steps=1",
    "--set=stages.joint.steps=2",
    "--set=agents.max_new_tokens=6",
    "--set=data.held_out=[]",
    "--set=data.validation=[]",
    "--set=checkpointing.kl_limit=1e6",
]


def our_reply(agent):
    messages = [Message(role="user", content=QUESTION)]
    return asyncio.run(agent.policy.reply(messages, Sampling(max_new_tokens=12)))


def their_reply(folder):
    model, tokenizer = (
        kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt"
    )
    with torch.inference_mode():
        ids = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    return ids[0, prompt["input_ids"].shape[1] :].tolist()


@pytest.mark.promise("Requirements", "Stage2Trainer: config, train(), checkpoints, --export-models")
@pytest.mark.parametrize("layout", ["two-models", "adapters"])
def test_an_exported_agent_says_what_ours_says(tmp_path, layout):
    recipe, out, agents = save_recipe(tmp_path), tmp_path / "run", tmp_path / "agents"
    settings = ("--set", f"models.layout={layout}", "--set", "stages.joint.steps=4")
    assert run("train", recipe, "--out", out, "--export", agents, *settings) == 0
    pair = open_run(out)
    for agent, name in (
        (pair.conversation, "waltzrl_conversation_stage2"),
        (pair.feedback, "waltzrl_feedback_stage2"),
    ):
        reply = our_reply(agent)
        assert reply.usage.output_tokens > 0
        assert their_reply(agents / name) == list(reply.tokens.ids)


def test_exporting_a_run_later_gives_the_same_files(tmp_path):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    at_once, later = tmp_path / "at-once", tmp_path / "later"
    assert run("train", recipe, "--out", out, "--export", at_once) == 0
    assert run("export", out, later) == 0
    assert (later / "manifest.json").read_bytes() == (at_once / "manifest.json").read_bytes()


def train_tiny(folder, layout, base, *settings):
    """Run the tiny recipe on a base, in few steps."""
    demonstrations = folder / "demonstrations.jsonl"
    demonstrations.write_text(
        '{"collaboration": {"prompt": {"id": "a", "messages": [{"role": "user", "content": '
        '"How do I bake bread?"}]}, "draft": {"text": "Without an oven."}}}\n'
    )
    changes = (
        f"models.base={base}",
        f"models.layout={layout}",
        f'data.prompts=["{save_prompts(folder / "p.jsonl")}"]',
        f'data.demonstrations=["{demonstrations}"]',
    )
    return run(
        *("train", TINY, "--out", folder / "run", "--export", folder / "agents"),
        *(f"--set={change}" for change in changes),
        *FEW_STEPS,
        *settings,
    )


@pytest.mark.promise("Requirements", "verify script: one command that checks the installation")
@pytest.mark.parametrize("layout", ["two-models", "adapters"])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_the_tiny_recipe_takes_any_folder_in_both_layouts(tmp_path, layout, family):
    assert train_tiny(tmp_path, layout, save_model(tmp_path / "model", family)) == 0
    assert (tmp_path / "agents" / "manifest.json").exists()


def test_a_warm_up_of_adapters_leaves_the_base_as_it_is_and_is_the_reference(tmp_path):
    base = save_model(tmp_path / "model", "llama")
    assert train_tiny(tmp_path, "adapters", base, "--set=stages.joint.steps=0") == 0
    role = open_run(tmp_path / "run").roles["conversation"]  # in one step the other has learnt
    tokens = Tokens(prompt_ids=(5, 6), ids=(7, 8), logprobs=(-1.0, -1.0))
    sample = Sample(tokens=tokens, score=0.0, group=0)
    warmed, reference, cold = (
        Scorer(weights, 64).score([sample])
        for weights in (role.weights, role.reference, replace(role.weights, adapter=None))
    )
    assert warmed == reference != cold
    untouched = load_causal_lm(str(base), "cpu")
    assert cold == Scorer(Weights(causal_lm=untouched), 64).score([sample])
    assert not (tmp_path / "agents" / "base").exists()  # its adapters stand on the base itself


def test_adapters_whose_warmed_up_base_is_lost_are_not_put_on_a_cold_one(tmp_path, capsys):
    out = tmp_path / "run"
    settings = ("--set=models.layout=adapters", "--set=data.limit=8", *FEW_STEPS)
    assert run("train", TINY, "--out", out, *settings) == 0
    shutil.rmtree(out / "warm-up" / "checkpoints")
    assert run("export", out, tmp_path / "agents") == 2
    assert "has no whole checkpoint" in capsys.readouterr().err
