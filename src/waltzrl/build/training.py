"""The composition root of training: a recipe becomes agents, stages and a trainer."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from waltzrl.build.datasets import (
    forget_remembered,
    keep_remembered,
    training_demonstrations,
    training_prompts,
)
from waltzrl.build.judges import open_judge
from waltzrl.build.roles import (
    continue_roles,
    forget_base,
    load_base,
    make_roles,
    make_single,
    use_compute,
)
from waltzrl.collaboration import Pattern, collaborate, draft_only
from waltzrl.config.load import recipe_json
from waltzrl.config.training import ImitationStage, Recipe, ReinforcementStage
from waltzrl.config.validation import validated
from waltzrl.errors import CheckpointError, MissingExtraError, RecipeError
from waltzrl.judges import Judge
from waltzrl.policies.weights import CausalLM
from waltzrl.records import Demonstration, Prompt
from waltzrl.telemetry import RunDirectory
from waltzrl.training.checkpoints import RoleState, weights_digest
from waltzrl.training.export import export_pair
from waltzrl.training.learner import Optimizer
from waltzrl.training.pair import Pair
from waltzrl.training.rewards import (
    FeedbackReward,
    paper_rewards,
    signed_rewards,
    unconditioned_rewards,
)
from waltzrl.training.stages import Imitation, Reinforcement
from waltzrl.training.trainer import Progress, Trainer

try:
    import torch
except ImportError as missing:
    raise MissingExtraError("training", "PyTorch", "train") from missing

RECIPE = "recipe.json"
WARM_UP = "warm-up"
"""Folder of the warm-up inside a run; it has steps and checkpoints of its own."""

Report = Callable[[Progress], None]


async def train(recipe: Recipe, folder: Path, report: Report) -> Pair:
    """Train what the recipe says in `folder`, going on where an earlier call was cut off.

    Raises:
        WaltzError: the data, the base or the folder is unfit, or training diverged.
    """
    async with open_judge(recipe.judge) as judge:
        with RunDirectory(folder) as run:
            _keep_recipe(run, recipe)
            data = keep_remembered(recipe.data, folder)
            prompts = training_prompts(data, need_labels=recipe.needs_labels)
            demonstrations = training_demonstrations(data)
            pair = await _starting_pair(recipe, folder, prompts, demonstrations, report)
            stages = [_reinforcement(recipe, s, prompts, judge) for s in recipe.reinforcements]
            trainer = Trainer(pair, stages, folder, recipe.checkpointing)
            await trainer.train(report)
            return trainer.pair


def open_run(folder: Path) -> Pair:
    """Bring a run's pair back as its newest whole checkpoint has it.

    Raises:
        InputError: the folder holds no run, or no whole checkpoint.
    """
    recipe = read_run_recipe(folder)
    warmed = True
    if recipe.models.pair is not None:
        pair = continue_roles(recipe)
    else:
        base = load_base(recipe, folder, [], [])
        warmed = not recipe.imitations or _warm_up(recipe, base, folder, []).restore() > 0
        pair = make_roles(recipe, base)
    trainer = Trainer(pair, [], folder, recipe.checkpointing)
    if not (warmed and trainer.restore()):
        raise CheckpointError(f"{folder} has no whole checkpoint; train on, or choose another run")
    return trainer.pair


def export_agents(pair: Pair, folder: Path) -> None:
    """Write both agents as plain models; see `export_pair`.

    Raises:
        InputError: the folder holds something else, or cannot be written to.
    """
    roles = {
        role: RoleState(model=weights.causal_lm.model, tokenizer=weights.causal_lm.tokenizer)
        for role, weights in pair.weights.items()
    }
    export_pair(roles["conversation"], roles["feedback"], folder)


def weights_of(pair: Pair) -> dict[str, str]:
    """Return a SHA-256 over each role's model; equal only where all weights are."""
    return {role: weights_digest(w.causal_lm.model) for role, w in pair.weights.items()}


def read_run_recipe(folder: Path) -> Recipe:
    """Read the recipe that a run was begun with.

    Raises:
        RecipeError: there is none, or it is damaged.
    """
    path = folder / RECIPE
    try:
        found = json.loads(path.read_bytes())
    except OSError:
        raise RecipeError(f"{folder} is no training run: it has no {RECIPE}") from None
    except ValueError as error:
        raise RecipeError(f"{path}: damaged: {error}") from None
    return validated(Recipe, found, str(path))


def stage_steps(stage: ImitationStage | ReinforcementStage, prompts: int) -> int:
    """Return how many optimiser steps a stage has, its epochs counted over `prompts`."""
    if stage.steps is not None:
        return stage.steps
    assert stage.epochs is not None, "a recipe is checked when it is read"
    return math.ceil(stage.epochs * prompts / stage.prompts_per_step)


async def _starting_pair(
    recipe: Recipe,
    folder: Path,
    prompts: Sequence[Prompt],
    demonstrations: Sequence[Demonstration],
    report: Report,
) -> Pair:
    """Lay out both roles on their own weights, or on a base that is warmed up first."""
    if recipe.models.pair is not None:
        return continue_roles(recipe)
    base = load_base(recipe, folder, prompts, demonstrations)
    if recipe.imitations:
        await _warm_up(recipe, base, folder, demonstrations).train(report)
    return make_roles(recipe, base)


def _keep_recipe(run: RunDirectory, recipe: Recipe) -> None:
    """Write the recipe into the run, or make sure that it is the one its checkpoints are of."""
    resolved = recipe_json(recipe)
    if any(run.path.glob("**/checkpoints/step-*")):
        before = recipe_json(read_run_recipe(run.path))
        if differing := [key for key, value in resolved.items() if before[key] != value]:
            raise RecipeError(
                f"{run.path} was begun with another recipe (other {', '.join(differing)}); "
                "choose another run directory, or go back to that recipe"
            )
        return
    forget_base(run.path)
    forget_remembered(run.path)
    run.write_json(RECIPE, resolved)


def _warm_up(
    recipe: Recipe, base: CausalLM, folder: Path, demonstrations: Sequence[Demonstration]
) -> Trainer:
    """Make the trainer that teaches the base both roles by example."""
    stages = [
        Imitation(
            name=stage.name,
            steps=stage.steps,
            demonstrations=demonstrations,
            optimizer=_computing(recipe, stage.optimizer),
            batch_size=stage.batch_size,
            seed=recipe.seed,
        )
        for stage in recipe.imitations
    ]
    inside = folder / WARM_UP
    inside.mkdir(exist_ok=True)
    return Trainer(make_single(recipe, base), stages, inside, recipe.checkpointing)


def _reinforcement(
    recipe: Recipe, stage: ReinforcementStage, prompts: Sequence[Prompt], judge: Judge
) -> Reinforcement:
    return Reinforcement(
        name=stage.name,
        steps=stage_steps(stage, len(prompts)),
        learns=stage.learns,
        prompts=prompts,
        judge=judge,
        pattern=_pattern(stage, recipe.agents.max_rounds),
        feedback_reward=_feedback_reward(stage),
        optimizer=_computing(recipe, stage.optimizer),
        algorithm=stage.algorithm,
        prompts_per_step=stage.prompts_per_step,
        group_size=stage.group_size,
        replayed_share=stage.replayed_share,
        seed=recipe.seed,
    )


def _pattern(stage: ReinforcementStage, max_rounds: int) -> Pattern:
    if stage.pattern == "draft-only":
        return draft_only
    return partial(collaborate, max_rounds=max_rounds)


def _feedback_reward(stage: ReinforcementStage) -> FeedbackReward:
    rewards = {
        "paper": paper_rewards,
        "signed": signed_rewards,
        "unconditioned": unconditioned_rewards,
    }
    return partial(rewards[stage.reward], coefficients=stage.coefficients)


def _computing(recipe: Recipe, optimizer: Optimizer) -> Optimizer:
    _, dtype = use_compute(recipe.compute)
    return replace(optimizer, bf16=dtype == torch.bfloat16)
