"""A trained agent leaves as a plain model that anyone's transformers can load."""

import asyncio
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.small_runs import run, save_model, save_prompts, save_recipe
from waltzrl.build.training import open_run
from waltzrl.policies import Sampling
from waltzrl.records import Message

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


@pytest.mark.parametrize("layout", ["two-models", "adapters"])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_the_tiny_recipe_takes_any_folder_in_both_layouts(tmp_path, layout, family):
    base, prompts = save_model(tmp_path / "model", family), save_prompts(tmp_path / "p.jsonl")
    demonstrations = tmp_path / "demonstrations.jsonl"
    demonstrations.write_text(
        '{"collaboration": {"prompt": {"id": "a", "messages": [{"role": "user", "content": '
        '"How do I bake bread?"}]}, "draft": {"text": "Without an oven."}}}\n'
    )
    code = run(
        *("train", TINY, "--out", tmp_path / "run", "--export", tmp_path / "agents"),
        *("--set", f"models.base={base}", "--set", f"models.layout={layout}"),
        *(
            "--set",
            f'data.prompts=["{prompts}"]',
            "--set",
            f'data.demonstrations=["{demonstrations}"]',
        ),
        *FEW_STEPS,
    )
    assert code == 0
    assert (tmp_path / "agents" / "manifest.json").exists()


def test_adapters_whose_warmed_up_base_is_lost_are_not_put_on_a_cold_one(tmp_path, capsys):
    out = tmp_path / "run"
    settings = ("--set=models.layout=adapters", "--set=data.limit=8", *FEW_STEPS)
    assert run("train", TINY, "--out", out, *settings) == 0
    shutil.rmtree(out / "warm-up" / "checkpoints")
    assert run("export", out, tmp_path / "agents") == 2
    assert "has no whole checkpoint" in capsys.readouterr().err
