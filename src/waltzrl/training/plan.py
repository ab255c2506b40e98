"""The plan of a run, worked out without loading a weight: models, memory, steps, tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from waltzrl.policies.compute import Compute
from waltzrl.training.settings import (
    CONVERSATION,
    AgentSettings,
    ImitationStage,
    KnownSize,
    ModelSettings,
    StageSettings,
)

LEARNING_BYTES = 16
"""Per parameter that learns: float32 weight, gradient and the two moments of AdamW."""
MOMENTS_BYTES = 8
"""Per parameter of a model that learns in a second role, whose AdamW is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The memory that one part of the models occupies during the whole run."""

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
    """What a run will do and need."""

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


def plan_run(
    models: ModelSettings,
    agents: AgentSettings,
    stages: Sequence[StageSettings],
    compute: Compute,
    *,
    prompts: int,
    demonstrations: int,
) -> RunPlan:
    """Work out what a run with so many prompts and demonstrations will do."""
    size = _base_size(models)
    if models.pair is not None:
        base = f"{models.pair}, of each agent its own"
    else:
        base = models.base if isinstance(models.base, str) else "made from scratch"
    return RunPlan(
        base=base,
        layout=models.layout,
        device=compute.device.type,
        dtype=str(compute.dtype).removeprefix("torch."),
        memory=() if size is None else tuple(_memory(models, size, compute.dtype)),
        prompts=prompts,
        demonstrations=demonstrations,
        stages=tuple(_stage_plan(stage, agents, prompts) for stage in stages),
    )


def _memory(models: ModelSettings, size: KnownSize, dtype: torch.dtype) -> list[MemoryEstimate]:
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
    learning = (
        MemoryEstimate(
            what="one model that learns",
            parameters=size.parameters,
            bytes_each=LEARNING_BYTES + MOMENTS_BYTES,
        )
        if models.layout == "one-model"
        else MemoryEstimate(
            what="two models that learn", parameters=both, bytes_each=LEARNING_BYTES
        )
    )
    estimates = [
        learning,
        MemoryEstimate(
            what="reference, frozen" if shared else "two references, frozen",
            parameters=size.parameters if shared else both,
            bytes_each=width,
        ),
    ]
    if dtype != torch.float32:  # every policy decodes with a copy of its weights
        copies = MemoryEstimate(what="copies that decode", parameters=both, bytes_each=width)
        estimates.append(copies)
    return estimates


def _stage_plan(stage: StageSettings, agents: AgentSettings, prompts: int) -> StagePlan:
    steps = stage.total_steps(prompts)
    if isinstance(stage, ImitationStage):
        turns, tokens = steps * stage.batch_size, None
        learns: tuple[str, ...] = ("base",)
    else:
        turns, learns = steps * stage.prompts_per_step * stage.group_size, stage.learns
        rounds = agents.max_rounds if stage.pattern == "collaborate" else 0
        # A draft, then a feedback and a revision in every round, each as long as it may be.
        tokens = turns * (1 + 2 * rounds) * agents.max_new_tokens
    return StagePlan(
        name=stage.name,
        kind=stage.kind,
        steps=steps,
        learns=learns,
        turns=turns,
        most_tokens=tokens,
    )


def _base_size(models: ModelSettings) -> KnownSize | None:
    """Count the base's parameters from its config, or else return the size that the recipe says."""
    base = models.base if models.pair is None else str(Path(models.pair) / CONVERSATION)
    if not isinstance(base, str):
        return None
    try:
        config = AutoConfig.from_pretrained(base, local_files_only=True)
        return _count_parameters(config)
    except (OSError, ValueError):
        return models.known_size


def _count_parameters(config: PretrainedConfig) -> KnownSize:
    with torch.device("meta"):  # shapes without memory
        model: nn.Module = AutoModelForCausalLM.from_config(config)
    linear = [
        module.in_features + module.out_features
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith("lm_head")
    ]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return KnownSize(parameters=parameters, parameters_per_rank=sum(linear))
