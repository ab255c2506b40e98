"""A context that is too small is told once, before the first step."""

import json
import logging

import pytest

from support.small_runs import run, save_recipe

ASKED = [{"role": "user", "content": "How do I kill a process on Linux?"}]


@pytest.fixture
def recipe(tmp_path):
    return save_recipe(tmp_path)


def trained(recipe, tmp_path, *settings):
    """Train for a step; return the exit code."""
    settings = ("stages.feedback.steps=1", "stages.joint.steps=0", *settings)
    changes = [part for setting in settings for part in ("--set", setting)]
    return run("train", recipe, "--out", tmp_path / "run", *changes)


def test_a_context_that_fits_is_not_mentioned(recipe, tmp_path, caplog):
    assert trained(recipe, tmp_path) == 0
    assert "context" not in caplog.text


@pytest.mark.promise(
    "Command line", "A context that is too small is told once, before the first step"
)
def test_what_may_not_fit_is_told_once_before_the_start(recipe, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    settings = ("agents.max_new_tokens=30", "checkpointing.least_scored_share=0.01")
    assert trained(recipe, tmp_path, *settings) == 0
    first, *later = [record.getMessage() for record in caplog.records]
    # a draft, a feedback and a revision of 30 tokens each, and the turns that ask for them
    assert "the context of the conversation agent has 128" in first
    assert "the longest prompt and what is written about it may take 1" in first
    assert "lower agents.max_new_tokens" in first
    assert not any("the longest prompt" in message for message in later)


@pytest.mark.promise(
    "Command line", "A context that is too small is told once, before the first step"
)
def test_a_context_that_no_prompt_fits_is_an_error(recipe, tmp_path, capsys):
    assert trained(recipe, tmp_path, "agents.max_new_tokens=100") == 2
    error = capsys.readouterr().err
    assert "error: no prompt fits: the shortest one and what is written about it may take" in error
    assert not list(tmp_path.glob("run/**/step-*"))


@pytest.mark.promise(
    "Command line", "A context that is too small is told once, before the first step"
)
def test_what_may_not_fit_is_told_before_the_warm_up_with_its_file_and_line(
    tmp_path, caplog, capsys
):
    recipe, examples = save_recipe(tmp_path), tmp_path / "examples.jsonl"
    words = ["Use kill.", "Use kill " + "with the number of the process " * 40]
    lines = [
        {"collaboration": {"prompt": {"id": str(i), "messages": ASKED}, "draft": {"text": text}}}
        for i, text in enumerate(words)
    ]
    examples.write_text("\n\n".join(map(json.dumps, lines)))
    stage = '[[stages]]\nname = "warm-up"\nkind = "imitation"\nsteps = 1\nbatch_size = 1\n'
    stage += "optimizer = { learning_rate = 1e-3 }\n"
    recipe.write_text(recipe.read_text().replace("[[stages]]", f"{stage}[[stages]]", 1))
    settings = (f"data.demonstrations=['{examples}']", "agents.max_new_tokens=30")
    assert trained(recipe, tmp_path, *settings, "checkpointing.least_scored_share=0.01") == 0
    prompt, example, *later = [record.getMessage() for record in caplog.records]
    assert f"({tmp_path / 'prompts.jsonl'}:3), but the context of the" in prompt
    assert "1 of 2 examples do not fit the context of 128 tokens, and are left out" in example
    assert f"({examples}:3). Shorten them" in example
    assert not any("the longest" in message for message in later)
    examples.write_text(json.dumps(lines[1]))
    assert trained(recipe, tmp_path / "other", *settings) == 2
    assert "warm-up': 1 of 1 examples do not fit" in capsys.readouterr().err
