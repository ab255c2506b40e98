"""A recipe: everything that a training run is told, as nested frozen dataclasses."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from waltzrl.config.data import Data
from waltzrl.training.learner import Optimizer
from waltzrl.training.pair import RoleName
from waltzrl.training.reinforce import ReinforcePlusPlus
from waltzrl.training.rewards import STAGE_1, Coefficients
from waltzrl.training.scratch import ModelSize
from waltzrl.training.stages import RolloutPlan
from waltzrl.training.trainer import CheckpointSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSize:
    """The size of a base that is not on this machine, so that a plan can be made without it."""

    parameters: int
    parameters_per_rank: int
    """Of one LoRA adapter over all linear layers: sum of their inputs and outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What both agents start from, and what they learn with."""

    base: str | ModelSize | None = None
    """A folder in Hugging Face format, a name on the hub, or the size of a model to make anew."""
    pair: str | None = None
    """Instead of a base: a folder that `waltzrl export` wrote. Each agent goes on from its own
    weights, which are also the reference of its KL penalty."""
    layout: Literal["two-models", "adapters"]
    """Two full models and a frozen third, or two LoRA adapters on one frozen base."""
    rank: Annotated[int, Field(ge=1)] = 16
    """Of each adapter; raise it when an adapter learns too little."""
    known_size: KnownSize | None = None

    def __post_init__(self) -> None:
        if (self.base is None) == (self.pair is None):
            raise ValueError(
                "models needs either base or pair: what both agents start from, or each"
            )
        if self.pair is not None and self.layout == "adapters":
            raise ValueError(
                "models.pair needs models.layout two-models: an exported pair has no common base"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """How the two agents are spoken to, and for how long."""

    max_new_tokens: Annotated[int, Field(ge=1)]
    """Longest turn of either agent, in tokens."""
    wording: str = "plain"
    """`plain` for instruction-tuned models, `tiny` for small ones made from scratch."""
    max_rounds: Annotated[int, Field(ge=0)] = 1
    """Feedback rounds in a collaboration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Where the numbers are crunched; the only place that says so."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of forward, backward and decoding; what learns is kept in float32. `auto` is bfloat16 on a
    GPU and float32 on a CPU."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads; the same number gives the same weights bit for bit. None is torch's choice."""


@dataclass(frozen=True, kw_only=True)
class ImitationStage:
    """Supervised warm-up of the base, before it becomes two agents."""

    kind: Literal["imitation"]
    name: str
    steps: Annotated[int, Field(ge=0)]
    batch_size: Annotated[int, Field(ge=1)]
    optimizer: Optimizer


@dataclass(frozen=True, kw_only=True)
class ReinforcementStage(RolloutPlan):
    """Both agents at work, and the ones that learn from it."""

    kind: Literal["reinforcement"]
    name: str
    learns: tuple[RoleName, ...]
    optimizer: Optimizer
    steps: Annotated[int, Field(ge=0)] | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the prompts; give either this or `steps`."""
    pattern: Literal["collaborate", "draft-only"] = "collaborate"
    """`draft-only` trains the conversation agent alone: single-model RL."""
    reward: Literal["paper", "signed", "unconditioned"] = "paper"
    """Of the feedback agent. The paper's designs: A is `paper`, B is `paper` with
    coefficients.label 0, C is `unconditioned`; `signed` is ours."""
    coefficients: Coefficients = STAGE_1
    algorithm: ReinforcePlusPlus = field(default_factory=ReinforcePlusPlus)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"stage {self.name!r} needs either steps or epochs")
        if not self.learns:
            raise ValueError(f"in stage {self.name!r} nobody learns; name a role")
        if self.pattern == "draft-only" and "feedback" in self.learns:
            raise ValueError(f"stage {self.name!r} has no feedback to learn from: draft-only")
        if self.prompts_per_step < 1 or self.group_size < 1:
            raise ValueError(
                f"stage {self.name!r} needs prompts_per_step and group_size, 1 or more"
            )
        if not 0 <= self.replayed_share <= 1:
            raise ValueError(f"stage {self.name!r}: replayed_share is a share, from 0 to 1")
        if self.algorithm.centre_groups and self.group_size < 2:
            raise ValueError(f"stage {self.name!r}: centre_groups needs a group_size of 2 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole training run."""

    models: Models
    data: Data
    agents: Agents
    stages: tuple[Annotated[ImitationStage | ReinforcementStage, Field(discriminator="kind")], ...]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """Of everything that is left to chance."""
    judge: str = "refusal"
    """Who pays: `refusal`, the prompts' labels and a refusal detector, or `llm:MODEL@URL`."""
    checkpointing: CheckpointSettings = field(default_factory=CheckpointSettings)
    compute: Compute = field(default_factory=Compute)

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"stages need names, each its own, got {names}")
        kinds = [stage.kind for stage in self.stages]
        if kinds != sorted(kinds):
            raise ValueError("stages of imitation come first: they make the base of both agents")
        if "imitation" in kinds and not self.data.demonstrations:
            raise ValueError("a stage of imitation needs data.demonstrations")
        if "imitation" in kinds and self.models.pair is not None:
            raise ValueError("a stage of imitation teaches a base, and models.pair has none")
        if any(stage.optimizer.bf16 for stage in self.stages):
            raise ValueError("optimizer.bf16 is set by compute.dtype, which holds for all stages")

    @property
    def needs_labels(self) -> bool:
        """Whether the judge can only score replies to prompts that have a label."""
        return self.judge == "refusal"

    @property
    def imitations(self) -> list[ImitationStage]:
        return [stage for stage in self.stages if isinstance(stage, ImitationStage)]

    @property
    def reinforcements(self) -> list[ReinforcementStage]:
        return [stage for stage in self.stages if isinstance(stage, ReinforcementStage)]
