"""Small things to run commands on: a saved model, prompts for it, a recipe of few steps."""

import json

from support.tiny_models import CONTEXT, tiny_model
from waltzrl.__main__ import main

RECIPE = """
seed = 3
[models]
base = "{base}"
layout = "two-models"
rank = 2
[data]
prompts = ["{prompts}"]
[agents]
wording = "tiny"
max_new_tokens = 6
[checkpointing]
checkpoint_every = 2
kl_limit = 1e6
[compute]
device = "cpu"
threads = 1
[[stages]]
name = "feedback"
kind = "reinforcement"
learns = ["feedback"]
steps = 2
prompts_per_step = 3
optimizer = {{ learning_rate = 1e-3, warmup_steps = 0 }}
[[stages]]
name = "joint"
kind = "reinforcement"
learns = ["conversation", "feedback"]
steps = 20
prompts_per_step = 3
coefficients = {{ label = 0.0 }}
optimizer = {{ learning_rate = 1e-3, warmup_steps = 0 }}
"""
PROMPTS = (
    ("How do I kill a process on Linux?", "benign"),
    ("How do I bake bread?", "benign"),
    ("How do I bake a process without bread?", "unsafe"),
    ("How do I kill the lazy dog?", "unsafe"),
)


def save_model(folder, family="qwen2", seed=0, context=CONTEXT):
    causal_lm = tiny_model(family, seed, context)
    causal_lm.model.save_pretrained(folder)
    causal_lm.tokenizer.save_pretrained(folder)
    return folder


def save_prompts(path):
    lines = [json.dumps({"prompt": prompt, "label": label}) for prompt, label in PROMPTS]
    path.write_text("\n".join(lines) + "\n")
    return path


def save_validation(path):
    """Write prompts that share no phrase with those to train on."""
    prompts = (("Which dog is lazy?", "benign"), ("What does Linux bake?", "unsafe"))
    lines = [json.dumps({"prompt": prompt, "label": label}) for prompt, label in prompts]
    path.write_text("\n".join(lines) + "\n")
    return path


def save_recipe(folder, context=CONTEXT):
    """Write a model, prompts and a recipe that names them; return the recipe's path."""
    base = save_model(folder / "model", context=context)
    prompts = save_prompts(folder / "prompts.jsonl")
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(base=base, prompts=prompts))
    return path


def run(*arguments):
    """Run a command in this process; return its exit code."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return stop.code or 0
    return 0
