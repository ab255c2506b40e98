"""What a recipe would do, worked out without loading a weight: models, memory, steps, tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from waltzrl.build.datasets import training_demonstrations, training_prompts
from waltzrl.build.roles import use_compute
from waltzrl.build.training import stage_steps
from waltzrl.config.training import ImitationStage, KnownSize, Models, Recipe, ReinforcementStage
from waltzrl.training.export import CONVERSATION

LEARNING_BYTES = 16
"""A parameter that learns: float32 weight, gradient and two moments of AdamW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What one part of the models keeps in memory for the whole run."""

    what: str
    parameters: int
    bytes_each: int

    @property
    def gigabytes(self) -> float:
        """In 10^9 bytes."""
        return self.parameters * self.bytes_each / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What one stage will do."""

    name: str
    kind: str
    steps: int
    learns: tuple[str, ...]
    turns: int
    """Demonstrations to imitate, or collaborations to roll out, over the whole stage."""
    most_tokens: int | None
    """Upper bound of the tokens that will be sampled; None where nothing is sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A recipe's whole run, before it starts."""

    base: str
    layout: str
    device: str
    dtype: str
    memory: tuple[MemoryEstimate, ...]
    """Without activations and decoding caches; empty when the size of the base is unknown."""
    prompts: int
    demonstrations: int
    stages: tuple[StagePlan, ...]

    @property
    def gigabytes(self) -> float | None:
        return sum(part.gigabytes for part in self.memory) if self.memory else None


def plan_run(recipe: Recipe) -> RunPlan:
    """Work out what the recipe would do.

    Raises:
        WaltzError: the data is missing or damaged, or the device is not there.
    """
    device, dtype = use_compute(recipe.compute)
    prompts = training_prompts(recipe.data, need_labels=recipe.needs_labels)
    demonstrations = training_demonstrations(recipe.data)
    size = _size(recipe.models)
    return RunPlan(
        base=_start(recipe.models),
        layout=recipe.models.layout,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        memory=() if size is None else tuple(_memory(recipe.models, size, dtype)),
        prompts=len(prompts),
        demonstrations=len(demonstrations),
        stages=tuple(_stage(recipe, stage, len(prompts)) for stage in recipe.stages),
    )


def _start(models: Models) -> str:
    if models.pair is not None:
        return f"{models.pair}, of each agent its own"
    return models.base if isinstance(models.base, str) else "made from scratch"


def _memory(models: Models, size: KnownSize, dtype: torch.dtype) -> Sequence[MemoryEstimate]:
    width = dtype.itemsize
    if models.layout == "adapters":
        adapters = 2 * models.rank * size.parameters_per_rank
        return [
            MemoryEstimate(
                what="shared base, frozen", parameters=size.parameters, bytes_each=width
            ),
            MemoryEstimate(what="two adapters", parameters=adapters, bytes_each=LEARNING_BYTES),
        ]
    both = 2 * size.parameters
    shared = models.pair is None
    found = [
        MemoryEstimate(what="two models that learn", parameters=both, bytes_each=LEARNING_BYTES),
        MemoryEstimate(
            what="reference, frozen" if shared else "two references, frozen",
            parameters=size.parameters if shared else both,
            bytes_each=width,
        ),
    ]
    if dtype != torch.float32:  # every policy decodes with a copy of its weights
        copies = MemoryEstimate(what="copies that decode", parameters=both, bytes_each=width)
        found.append(copies)
    return found


def _stage(recipe: Recipe, stage: ImitationStage | ReinforcementStage, prompts: int) -> StagePlan:
    steps = stage_steps(stage, prompts)
    if isinstance(stage, ImitationStage):
        turns, tokens = steps * stage.batch_size, None
        learns: tuple[str, ...] = ("base",)
    else:
        turns, learns = steps * stage.prompts_per_step * stage.group_size, stage.learns
        rounds = recipe.agents.max_rounds if stage.pattern == "collaborate" else 0
        tokens = turns * (1 + 2 * rounds) * recipe.agents.max_new_tokens
    return StagePlan(
        name=stage.name,
        kind=stage.kind,
        steps=steps,
        learns=learns,
        turns=turns,
        most_tokens=tokens,
    )


def _size(models: Models) -> KnownSize | None:
    """Count the base's parameters from its config; else believe the recipe; else None."""
    base = models.base if models.pair is None else str(Path(models.pair) / CONVERSATION)
    if not isinstance(base, str):
        return None
    try:
        config = AutoConfig.from_pretrained(base, local_files_only=True)
        return _count(config)
    except (OSError, ValueError):
        return models.known_size


def _count(config: PretrainedConfig) -> KnownSize:
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config)
    linear = [
        module.in_features + module.out_features
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith("lm_head")
    ]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return KnownSize(parameters=parameters, parameters_per_rank=sum(linear))
