"""What a training run can be told, as the dataclasses that a recipe nests.

They stand apart from the code that they configure, so that a recipe is read and checked without
PyTorch.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from waltzrl.agents.attacker import ELICIT, PROVOKE, AttackWording
from waltzrl.agents.exports import ATTACKER, ROLES
from waltzrl.errors import InputError
from waltzrl.training.rewards import STAGE_1, Coefficients, ExplanationCoefficients, find_reward


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The size of a model made from scratch."""

    hidden: int = 128
    """Width of the hidden states: a multiple of twice the heads."""
    layers: int = 4
    """Number of transformer layers."""
    heads: int = 4
    """Attention heads of a layer: 1, or an even number."""
    context: int = 512
    """Longest sequence in tokens."""

    def __post_init__(self) -> None:
        if min(self.hidden, self.layers, self.heads, self.context) < 1:
            raise ValueError("hidden, layers, heads and context of a model must be 1 or more")
        if self.hidden % (2 * self.heads) or (self.heads > 1 and self.heads % 2):
            raise ValueError(
                f"hidden must be a multiple of twice the heads, and heads even or 1, got hidden "
                f"{self.hidden} and heads {self.heads}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What the roles start from, and which weights they learn."""

    base: str | ModelSize | None = None
    """A folder in Hugging Face format, a GGUF file, `package:NAME` of a package that holds one, a
    name on the hub, or the size of a model to create. Beside a pair of adapters, where their base
    is now."""
    pair: str | None = None
    """A folder written by `waltzrl export`, instead of a base. Each role continues from its own
    weights, which are also the reference of its KL penalty."""
    layout: Literal["two-models", "adapters", "one-model"]
    """Two full models and a frozen third, or two LoRA adapters on one frozen base, or one full
    model in both roles and a frozen second. A pair of adapters can go on as either: as adapters, or
    merged as two models."""
    rank: Annotated[int, Field(ge=1)] = 16
    """The rank of each new adapter; raise it when an adapter learns too little."""

    def __post_init__(self) -> None:
        adapters = self.layout == "adapters" and isinstance(self.base, str)
        if (self.base is None) == (self.pair is None) and not (self.pair and adapters):
            raise ValueError(
                "models needs either base or pair: what both agents start from, or each; both only"
                " with layout adapters, where base says where that of the pair's adapters is"
            )
        if self.pair is not None and self.layout == "one-model":
            raise ValueError(
                "models.pair needs models.layout two-models or adapters: a pair is not one model"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How the agents are prompted, and how long they may go on."""

    max_new_tokens: Annotated[int, Field(ge=1)]
    """Longest turn of an agent, in tokens."""
    feedback_max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest feedback; None is `max_new_tokens`. A review needs fewer tokens than an answer, and a
    step waits for its longest turn."""
    wording: str = "plain"
    """`plain` for instruction-tuned models, `short` for those of a few hundred million parameters,
    `tiny` for small ones made from scratch, or a folder of prompts; see `load_wording`."""
    max_rounds: Annotated[int, Field(ge=0)] = 1
    """Feedback rounds in a collaboration."""

    @property
    def limits(self) -> dict[str, int]:
        """Tokens of the longest turn of each role."""
        feedback = self.feedback_max_new_tokens or self.max_new_tokens
        return {"conversation": self.max_new_tokens, "feedback": feedback}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackerSettings:
    """An attacker, the third role: it rewrites prompts, and the pair collaborates on these.

    It earns 1 where the pair's last reply to what it wrote is unsafe, or refuses a harmless
    request, if what it wrote still asks for the prompt's goal.
    """

    base: str
    """The model that it starts from, which is also its reference: a folder in Hugging Face format,
    a GGUF file, `package:NAME` or a name on the hub. It is a full model of its own in every
    `models.layout`; a run of imitation may have taught it to rewrite."""
    max_new_tokens: Annotated[int, Field(ge=1)]
    """Longest rewriting, in tokens; one that is cut off is not sent to the pair."""
    check: str = "words"
    """Tells whether a rewriting still asks for its goal. `words`: half of the goal's keywords are
    in it, read through common disguises, and it is no refusal. Yours: `MODULE:FUNCTION`, which
    takes the prompt and the text and returns True, False or, where it cannot tell, None."""
    elicit: str = ELICIT
    """What it is told of a prompt with a harmful part."""
    provoke: str = PROVOKE
    """What it is told of a harmless prompt."""

    def __post_init__(self) -> None:
        if ":" not in self.check and self.check != "words":
            raise ValueError(
                f"attacker.check is words, or MODULE:FUNCTION of yours, got {self.check!r}"
            )

    @property
    def wording(self) -> AttackWording:
        return AttackWording(elicit=self.elicit, provoke=self.provoke)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """How a role's weights move: AdamW with a warm-up and a cosine."""

    learning_rate: Annotated[float, Field(gt=0)]
    """The peak; about 5e-7 for a full 8B model, 1e-5 with LoRA, 1e-3 for the demo's small ones."""
    warmup_steps: Annotated[int, Field(ge=0)] = 10
    """Steps of linear increase from 0."""
    final_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the peak left at the last step of a cosine decay; 1 keeps it constant."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Each step shrinks the weights by this times the learning rate, as AdamW does."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """How long AdamW remembers the size of gradients; 0.95 learns faster from scratch."""
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest gradient norm."""
    micro_batch_tokens: Annotated[int, Field(ge=1)] = 8192
    """Tokens in one forward pass; lower it when memory runs out, results stay the same."""

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate of 0-based `step` out of `total`."""
        if step < self.warmup_steps:
            # One step ahead, because a step at a rate of 0 would learn nothing.
            return self.learning_rate * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, total - self.warmup_steps)
        cosine = (1 + math.cos(math.pi * min(1.0, progress))) / 2
        return self.learning_rate * (self.final_share + (1 - self.final_share) * cosine)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceSettings:
    """The knobs of REINFORCE++; `algorithms/reinforce_pp.py` has the equations."""

    aggregation: Literal["sequence", "token"] = "sequence"
    """What weighs the same in the loss: every reply, as in the paper, or every token, as in most
    implementations of REINFORCE++. By token, an over-refusal of 10 tokens weighs a tenth of an
    answer of 100."""
    kl_weight: Annotated[float, Field(ge=0)] = 0.01
    """beta: raise it when general capability falls. At 0 the KL is no part of the reward, but still
    measured, by a pass of the reference."""
    clip_low: Annotated[float, Field(ge=0)] = 0.2
    """The ratio of new to old probability is clipped below 1 - clip_low."""
    clip_high: Annotated[float, Field(ge=0)] = 0.2
    """The ratio of new to old probability is clipped above 1 + clip_high."""
    dual_clip: float | None = None
    """Ceiling on the loss of bad tokens; 3 is usual, None is off."""
    sigma_floor: Annotated[float, Field(gt=0)] = 0.1
    """Keeps the noise of a batch with nearly equal scores from being scaled up to a signal."""
    centre_groups: bool = False
    """Subtract each prompt's mean score; needs more than one rollout per prompt."""
    passes: Annotated[int, Field(ge=1)] = 1
    """Optimiser steps per batch of rollouts; more than 1 makes the clip matter."""

    def __post_init__(self) -> None:
        if self.dual_clip is not None and not self.dual_clip > 1 + self.clip_high:
            raise ValueError(
                f"algorithm.dual_clip must be more than 1 + clip_high = {1 + self.clip_high}, got"
                f" {self.dual_clip}; below, it would cut what the clip leaves alone"
            )


@dataclass(frozen=True, kw_only=True)
class ImitationStage:
    """Supervised training of the base on examples in every role."""

    kind: Literal["imitation"]
    """The kind of the stage."""
    name: str
    """The name of the stage in files, and in `--set stages.NAME.KEY=VALUE`; each has its own."""
    steps: Annotated[int, Field(ge=0)]
    """Optimiser steps of the stage."""
    batch_size: Annotated[int, Field(ge=1)]
    """Examples per step."""
    optimizer: OptimizerSettings
    imitates: Literal["demonstrations", "traces", "explanations", "solutions"] = "demonstrations"
    """Of the examples that a teacher explains, the student's reply: with the `traces` that the data
    has (and the teacher's own turn, which writes them), with the `explanations` that a teacher
    wrote in this run, or the bare `solutions`; and all other demonstrations."""

    def total_steps(self, prompts: int) -> int:
        """Return how many optimiser steps the stage has; it uses no prompts."""
        return self.steps


@dataclass(frozen=True, kw_only=True)
class TeacherStage:
    """A copy of the base learns, as a teacher, to explain solutions to the base, its student.

    After it a stage of imitation teaches the base what the teacher wrote.
    """

    kind: Literal["teacher"]
    """The kind of the stage."""
    name: str
    """The name of the stage, as of the other kinds."""
    steps: Annotated[int, Field(ge=0)]
    """Steps of the stage; with 0 the explanations are those of an untrained teacher."""
    optimizer: OptimizerSettings
    prompts_per_step: Annotated[int, Field(ge=1)] = 32
    """Questions of a step, with their solutions."""
    group_size: Annotated[int, Field(ge=1)] = 8
    """Explanations of each question; fewer is noisier, more is slower."""
    coefficients: ExplanationCoefficients = field(default_factory=ExplanationCoefficients)
    algorithm: ReinforceSettings = field(default_factory=ReinforceSettings)

    def __post_init__(self) -> None:
        if self.algorithm.centre_groups and self.group_size < 2:
            raise ValueError(f"stage {self.name!r}: centre_groups needs a group_size of 2 or more")

    def total_steps(self, prompts: int) -> int:
        """Return how many optimiser steps the stage has; it uses no prompts."""
        return self.steps


def _require_reward(name: str, stage: str) -> None:
    if ":" in name:  # a function, which is imported only when it is used
        return
    try:
        find_reward(name)
    except InputError as error:
        raise ValueError(f"stage {stage!r}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class ReinforcementStage:
    """Rollouts of the agents, and a step of every role that learns from them."""

    kind: Literal["reinforcement"]
    """The kind of the stage."""
    name: str
    """The name of the stage, as of the other kinds."""
    learns: tuple[str, ...]
    """The roles that learn; the others stay as they are."""
    optimizer: OptimizerSettings
    steps: Annotated[int, Field(ge=0)] | None = None
    """Optimiser steps of the stage."""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the prompts; give either this or `steps`."""
    prompts_per_step: Annotated[int, Field(ge=1)] = 32
    """Prompts of a step, each with `group_size` rollouts."""
    group_size: Annotated[int, Field(ge=1)] = 1
    """Rollouts per prompt; fewer is noisier, more is slower."""
    replayed_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the drafts written by the initial conversation agent; raise it when the feedback
    agent, late in training, no longer recognises a bad draft."""
    attacked_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the prompts with a label that the attacker rewrites, whether it learns or not. What
    leaves its goal is not sent: the pair then gets the prompt as it is."""
    pattern: Literal["collaborate", "draft-only"] = "collaborate"
    """`draft-only` trains the conversation agent alone: single-model RL."""
    reward: str = "paper"
    """The reward of the feedback agent. The paper's designs: A is `paper`, B is `paper` with
    coefficients.label 0, C is `unconditioned`; `signed` is ours. Yours: `MODULE:FUNCTION`, or the
    name of one that an installed package provides; it takes the rounds, each with its prompt, and
    the coefficients."""
    coefficients: Coefficients = STAGE_1
    round_cost: Annotated[float, Field(ge=0)] = 0.0
    """What the feedback agent pays for each revision after the first, with `agents.max_rounds` of 2
    or more; below `coefficients.improvement`, a further round pays if it often enough improves the
    reply."""
    reviewer: Literal["feedback", "judge"] = "feedback"
    """Who reviews the drafts: the feedback agent, or the judge, whose labels are right, with the
    advice of `data.demonstrations`. With the judge the conversation agent learns to revise whatever
    the feedback agent knows by then."""
    objective: Literal["reinforce", "expert-iteration"] = "reinforce"
    """What a step does with its rollouts. `expert-iteration` is ours: the conversation agent
    imitates those of its own revisions that the judge accepts after a draft that it rejects, and
    for each an accepted draft of a prompt of the other kind, harmful or harmless (rejection
    sampling); the feedback agent imitates reviews with the judge's labels of all drafts, and the
    advice of `data.demonstrations`. Every reply weighs the same."""
    algorithm: ReinforceSettings = field(default_factory=ReinforceSettings)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"stage {self.name!r} needs either steps or epochs")
        if not self.learns:
            raise ValueError(f"in stage {self.name!r} no role learns; name at least one")
        if twice := [role for role in self.learns if self.learns.count(role) > 1]:
            raise ValueError(f"stage {self.name!r}: learns names {twice[0]} twice; name it once")
        known = (*ROLES, ATTACKER)
        if unknown := [role for role in self.learns if role not in known]:
            raise ValueError(
                f"stage {self.name!r}: unknown role {unknown[0]!r}; known are {', '.join(known)}"
            )
        self._check_roles()
        _require_reward(self.reward, self.name)
        if self.algorithm.centre_groups and self.group_size < 2:
            raise ValueError(f"stage {self.name!r}: centre_groups needs a group_size of 2 or more")

    def _check_roles(self) -> None:
        """Check that there is something to learn from, for every role that learns."""
        if self.pattern == "draft-only" and "feedback" in self.learns:
            raise ValueError(f"stage {self.name!r} has no feedback to learn from: draft-only")
        imitates = self.objective == "expert-iteration"
        if ATTACKER in self.learns and not self.attacked_share:
            raise ValueError(
                f"stage {self.name!r}: the attacker learns from what it rewrites; set"
                " attacked_share above 0"
            )
        if ATTACKER in self.learns and imitates:
            raise ValueError(
                f"stage {self.name!r}: an attacker has nothing to imitate; let it learn in a stage"
                " with objective = 'reinforce'"
            )
        if self.reviewer == "judge" and "feedback" in self.learns and not imitates:
            raise ValueError(
                f"stage {self.name!r} has no feedback to learn from: the judge reviews; let it"
                " learn conversation alone, or set reviewer = 'feedback'; with objective ="
                " 'expert-iteration' it may imitate the judge"
            )
        if imitates and self.pattern == "draft-only":
            raise ValueError(
                f"stage {self.name!r}: expert-iteration imitates revisions; it needs pattern ="
                " 'collaborate'"
            )

    def limit_rounds(self, most: int) -> int:
        """Return the most rounds of feedback on a prompt, if a collaboration may have `most`."""
        return 0 if self.pattern == "draft-only" else most

    def total_steps(self, prompts: int) -> int:
        """Return how many optimiser steps the stage has, its epochs counted over `prompts`."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None, "checked above"
        return math.ceil(self.epochs * prompts / self.prompts_per_step)


StageSettings = ImitationStage | TeacherStage | ReinforcementStage


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """How often a run is saved, which checkpoints are kept, and when training stops."""

    checkpoint_every: Annotated[int, Field(ge=1)] = 50
    """Steps between checkpoints; the last step of every epoch and stage is saved as well."""
    keep_last: Annotated[int, Field(ge=1)] = 2
    """How many of the newest are kept; those at the end of an epoch or stage all are."""
    validate_every: Annotated[int, Field(ge=1)] = 50
    """Steps between validations on `data.validation`, if it names a set; the start and the end are
    validated as well. The checkpoint with the highest F1 is kept, and exported."""
    kl_limit: float = 1.0
    """Nats per token against the reference. Training stops as diverged after three steps in a row
    above it; a single step may be, because one odd token can outweigh all others."""
    least_scored_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The least share of a step's collaborations whose replies were all judged. With fewer,
    training stops before it learns from them, and resumes at this step: a judge that is down must
    not pass as a finished run."""
    copies: str | None = None
    """URL of a copy of the run, such as `s3://bucket/run`: each checkpoint is copied there, with
    what else a run needs to go on. A run whose folder is empty goes on from there. Any file system
    of fsspec; each needs its package, such as s3fs or gcsfs. A run may be resumed with another."""
