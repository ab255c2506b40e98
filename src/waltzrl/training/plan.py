"""The plan of a run, worked out without loading a weight: models, memory, steps, tokens."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from waltzrl.agents.exports import CONVERSATION, ROLES
from waltzrl.policies.compute import Compute
from waltzrl.policies.gguf import find_gguf
from waltzrl.policies.weights import load_config
from waltzrl.training.memory import Turns, Update, rollout_bytes, update_bytes
from waltzrl.training.settings import (
    AgentSettings,
    AttackerSettings,
    ImitationStage,
    ModelSettings,
    ReinforcementStage,
    StageSettings,
    TeacherStage,
)

SHAPES = Path(__file__).with_name("shapes.toml")
LEARNING_BYTES = 16
"""Bytes per parameter that learns: float32 weight, gradient and the two moments of AdamW."""
TOGETHER_BYTES = 8
"""Bytes per parameter that all ranks have put together: float32 weight and gradient."""
MOMENTS_BYTES = 8
"""Bytes per parameter of a model that learns in a second role, whose AdamW is its own."""
LIBRARIES_BYTES = 460_000_000
"""Python, torch and transformers, as measured on a CPU by `benchmarks/train_memory.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """How much a run learns from."""

    prompt_tokens: tuple[int, ...]
    """Tokens of each prompt."""
    instruction_tokens: int
    """Tokens of the agents' instructions, which come before the prompt."""
    demonstrations: int
    solutions: int = 0


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory that one part of the models occupies during the whole run."""

    what: str
    parameters: int
    bytes_each: int

    @property
    def gigabytes(self) -> float:
        """In 10^9 bytes."""
        return self.parameters * self.bytes_each / 1e9


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What one stage will do."""

    name: str
    kind: str
    steps: int
    learns: tuple[str, ...]
    turns: int
    """Examples to imitate, explanations to sample or collaborations to roll out, in all steps."""
    most_tokens: int | None
    """Upper bound of the tokens that will be sampled; None where nothing is sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What a run will do and need."""

    base: str
    layout: str
    device: str
    dtype: str
    ranks: int
    """Processes that train together; the memory is that of each."""
    parameters: int | None
    """Of the base; None when it is neither here nor in `SHAPES`."""
    memory: tuple[MemoryEstimate, ...]
    """Memory of the models; empty when the base is unknown."""
    update_gigabytes: float
    """Activations and logits of the largest micro-batch of a usual update, in 10^9 bytes."""
    rollout_gigabytes: float
    """Keys, values and logits of the largest batch that is decoded, in 10^9 bytes."""
    libraries_gigabytes: float
    """Python and what it has loaded, in 10^9 bytes; 0 where the models are not in their memory."""
    context_tokens: int
    """Tokens of the longest turn."""
    prompts: int
    demonstrations: int
    solutions: int
    stages: tuple[StagePlan, ...]

    @property
    def gigabytes(self) -> float | None:
        """The peak: updates and rollouts take turns. Without what CUDA needs."""
        if not self.memory:
            return None
        models = sum(part.gigabytes for part in self.memory)
        taking_turns = max(self.update_gigabytes, self.rollout_gigabytes)
        return self.libraries_gigabytes + models + taking_turns


def plan_run(
    models: ModelSettings,
    agents: AgentSettings,
    stages: Sequence[StageSettings],
    compute: Compute,
    data: DataSize,
    ranks: int = 1,
) -> RunPlan:
    """Work out what a run on so much data will do, in so many processes."""
    config = _base_config(models)
    size = None if config is None else _count_parameters(config)
    # The last revision's: the prompt, and a reply and a feedback of every round.
    beside = data.instruction_tokens + agents.max_rounds * sum(agents.limits.values())
    longest = max(data.prompt_tokens, default=0)
    reinforcements = [stage for stage in stages if isinstance(stage, ReinforcementStage)]
    replays = any(stage.replayed_share for stage in reinforcements)
    update = rollout = 0
    if config is not None and reinforcements:
        count = max(s.prompts_per_step * s.group_size for s in reinforcements)
        # Of the rank with most: servers sample for any number of ranks, also for more than prompts.
        prompts = space_out(data.prompt_tokens or (0,), -(-count // ranks))
        turns = Turns(
            context_tokens=tuple(beside + prompt for prompt in prompts),
            shared_tokens=data.instruction_tokens,
            reply_tokens=max(agents.limits.values()),
        )
        largest = max(stage.optimizer.micro_batch_tokens for stage in reinforcements)
        learning = Update(
            adapter_rank=models.rank if models.layout == "adapters" else None,
            dtype=compute.dtype,
            micro_batch_tokens=largest,
            checkpoint_activations=compute.checkpoint_activations,
        )
        update = update_bytes(config, learning, turns)
        rollout = rollout_bytes(config, compute.dtype, turns)
    return RunPlan(
        base=_base_name(models),
        layout=models.layout,
        device=compute.device.type,
        dtype=str(compute.dtype).removeprefix("torch."),
        ranks=ranks,
        parameters=None if size is None else size.parameters,
        memory=()
        if size is None
        else tuple(_estimate_memory(models, size, compute.dtype, ranks, replays=replays)),
        update_gigabytes=update / 1e9,
        rollout_gigabytes=rollout / 1e9,
        libraries_gigabytes=0.0 if compute.device.type == "cuda" else LIBRARIES_BYTES / 1e9,
        context_tokens=beside + longest,
        prompts=len(data.prompt_tokens),
        demonstrations=data.demonstrations,
        solutions=data.solutions,
        stages=tuple(_stage_plan(stage, agents, len(data.prompt_tokens)) for stage in stages),
    )


def plan_attacker(
    plan: RunPlan,
    attacker: AttackerSettings,
    stages: Sequence[StageSettings],
    dtype: torch.dtype,
) -> RunPlan:
    """Add an attacker to the plan of a pair: its models, and what it writes."""
    attacked = {
        stage.name
        for stage in stages
        if isinstance(stage, ReinforcementStage) and stage.attacked_share
    }
    config = _find_config(attacker.base)
    memory: list[MemoryEstimate] = []
    if config is not None:
        size, width = _count_parameters(config), dtype.itemsize
        memory = [
            MemoryEstimate("attacker that learns", size.parameters // plan.ranks, LEARNING_BYTES),
            MemoryEstimate("attacker's reference, frozen", size.parameters, width),
        ]
        if _decodes_from_copies(dtype, plan.ranks):
            memory.append(MemoryEstimate("attacker's copy that decodes", size.parameters, width))
        # Passes take turns: full models of the pair put as much together, and have it in the plan.
        if plan.ranks > 1 and plan.layout == "adapters":
            memory.append(_together_estimate(size))
    return replace(
        plan,
        memory=(*plan.memory, *memory) if plan.memory else (),
        stages=tuple(
            replace(stage, most_tokens=stage.most_tokens + stage.turns * attacker.max_new_tokens)
            if stage.name in attacked and stage.most_tokens is not None
            else stage
            for stage in plan.stages
        ),
    )


def space_out(lengths: Sequence[int], count: int) -> list[int]:
    """Return `count` of the lengths, at equal distances in their order, the longest included."""
    ordered = sorted(lengths)
    return [ordered[-(-len(ordered) * place // count) - 1] for place in range(1, count + 1)]


def _base_name(models: ModelSettings) -> str:
    if models.pair is not None:
        return f"{models.pair}, of each agent its own"
    if not isinstance(models.base, str):
        return "made from scratch"
    file = find_gguf(models.base)
    return models.base if file is None else f"{models.base}: {file.title}"


def _estimate_memory(
    models: ModelSettings,
    size: "_Size",
    dtype: torch.dtype,
    ranks: int,
    *,
    replays: bool,
) -> list[MemoryEstimate]:
    width, whole = dtype.itemsize, size.parameters
    if models.layout == "adapters":
        adapters = 2 * models.rank * size.per_rank
        estimates = [
            MemoryEstimate("shared base, frozen", whole, width),
            MemoryEstimate("copy that decodes", whole, width),
            MemoryEstimate("two adapters", adapters, LEARNING_BYTES),
        ]
        if models.pair is not None:  # adapters stay float32
            estimates.append(MemoryEstimate("two references, frozen", adapters, 4))
        return estimates
    if models.layout == "one-model":
        learn = whole
        what, bytes_each = "one model that learns", LEARNING_BYTES + MOMENTS_BYTES
    else:
        learn = 2 * whole
        what, bytes_each = "two models that learn", LEARNING_BYTES
    # Ranks split a reference, unless it drafts: then each needs it whole.
    parts = 1 if replays else ranks
    estimates = [
        MemoryEstimate(what, learn // ranks, bytes_each),
        MemoryEstimate("reference, frozen", whole // parts, width)
        if models.pair is None
        else MemoryEstimate("two references, frozen", 2 * whole // parts, width),
    ]
    if _decodes_from_copies(dtype, ranks):
        estimates.append(MemoryEstimate("copies that decode", learn, width))
    if ranks > 1:
        estimates.append(_together_estimate(size))
    return estimates


def _decodes_from_copies(dtype: torch.dtype, ranks: int) -> bool:
    """Return whether every full model that learns has a copy that decodes."""
    return dtype != torch.float32 or ranks > 1


def _together_estimate(size: "_Size") -> MemoryEstimate:
    return MemoryEstimate("put together for a pass", size.together, TOGETHER_BYTES)


def _stage_plan(stage: StageSettings, agents: AgentSettings, prompts: int) -> StagePlan:
    steps = stage.total_steps(prompts)
    if isinstance(stage, ImitationStage):
        turns, tokens = steps * stage.batch_size, None
        learns: tuple[str, ...] = ("base",)
    elif isinstance(stage, TeacherStage):
        turns, learns = steps * stage.prompts_per_step * stage.group_size, ("teacher",)
        tokens = turns * agents.max_new_tokens
    else:
        turns, learns = steps * stage.prompts_per_step * stage.group_size, stage.learns
        rounds = stage.limit_rounds(agents.max_rounds)
        # A draft, then a feedback and a revision in every round, each as long as it may be.
        reply, feedback = (agents.limits[role] for role in ROLES)
        tokens = turns * (reply + rounds * (feedback + reply))
    return StagePlan(stage.name, stage.kind, steps, learns, turns, tokens)


def _base_config(models: ModelSettings) -> PretrainedConfig | None:
    """Return the config of the base, which need not be here if `SHAPES` has it; None if unknown."""
    base = models.base if models.pair is None else str(Path(models.pair) / CONVERSATION)
    return _find_config(base) if isinstance(base, str) else None


def _find_config(base: str) -> PretrainedConfig | None:
    """Return the config of a model by its name or folder; None if it is unknown."""
    try:
        return load_config(base)
    except (OSError, ValueError):
        shape = tomllib.loads(SHAPES.read_text("utf-8")).get(base)
    return None if shape is None else AutoConfig.for_model(**shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    parameters: int
    per_rank: int
    """Parameters of one adapter of rank 1 over all linear layers: the sum of their inputs and
    outputs."""
    together: int
    """Parameters that sharded learners hold whole at a time: all but the layers, and two of
    these."""


def _count_parameters(config: PretrainedConfig) -> _Size:
    with torch.device("meta"):  # shapes without memory
        model: nn.Module = AutoModelForCausalLM.from_config(config)
    # What PEFT's `all-linear` adapts: all linear layers but the head.
    linear = [
        module.in_features + module.out_features
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith("lm_head")
    ]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    layers = [
        sum(parameter.numel() for parameter in module.parameters())
        for module in model.modules()
        if isinstance(module, GradientCheckpointingLayer)
    ]
    return _Size(
        parameters=parameters,
        per_rank=sum(linear),
        together=parameters - sum(layers) + 2 * max(layers, default=0),
    )
