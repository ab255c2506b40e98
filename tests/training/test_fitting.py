"""A context that is too small is told once, before the first step."""

import logging

import pytest

from support.small_runs import run, save_recipe


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
