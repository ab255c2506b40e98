"""The stages of training: imitation of demonstrations, and reinforcement learning.

A stage is a number of steps and the roles that learn in them; the trainer knows no more of it.
"""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from waltzrl.collaboration import Pattern
from waltzrl.judges import Judge
from waltzrl.records import Demonstration, Prompt
from waltzrl.training.learner import Learner, Optimizer, Scorer
from waltzrl.training.pair import Pair, RoleName, Weights
from waltzrl.training.reinforce import ReinforcePlusPlus, UpdateResult, reinforce
from waltzrl.training.rewards import FeedbackReward
from waltzrl.training.rollouts import (
    ReplayedDrafts,
    Rollout,
    RolloutRates,
    conversation_samples,
    feedback_samples,
    roll_out,
)
from waltzrl.training.samples import Sample
from waltzrl.training.warmup import demonstration_sample, imitation

Learners = Mapping[RoleName, Learner]


class Stage(Protocol):
    """A stretch of training."""

    @property
    def name(self) -> str: ...

    @property
    def steps(self) -> int: ...

    @property
    def learns(self) -> tuple[RoleName, ...]: ...

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def steps_per_epoch(self) -> int:
        """Steps until everything there is to learn from was dealt once."""
        ...

    async def step(self, number: int, pair: Pair, learners: Learners) -> dict[str, float]:
        """Take 0-based step `number` of this stage; return what was measured."""
        ...


def shuffled(count: int, size: int, step: int, seed: str) -> list[int]:
    """Return the positions for one step when `count` things are dealt in shuffled epochs.

    A function of its arguments alone, so a resumed run deals as an uninterrupted one.
    """
    places = (divmod(place, count) for place in range(step * size, (step + 1) * size))
    return [_deal(count, f"{seed}/{epoch}")[within] for epoch, within in places]


@lru_cache(maxsize=4)
def _deal(count: int, seed: str) -> list[int]:
    return random.Random(seed).sample(range(count), count)


@dataclass(kw_only=True)
class Imitation:
    """Supervised warm-up of one model in both roles; both agents start from it."""

    name: str
    steps: int
    demonstrations: Sequence[Demonstration]
    optimizer: Optimizer
    batch_size: int = 128
    seed: int = 0
    learns: tuple[RoleName, ...] = ("conversation",)
    _samples: list[Sample] = field(default_factory=list, init=False, repr=False)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.demonstrations) / self.batch_size)

    async def step(self, number: int, pair: Pair, learners: Learners) -> dict[str, float]:
        if not self._samples:
            self._samples = [
                demonstration_sample(demonstration, pair) for demonstration in self.demonstrations
            ]
        places = shuffled(len(self._samples), self.batch_size, number, f"lessons/{self.seed}")
        chosen = [self._samples[place] for place in places]
        count = sum(len(sample.tokens.ids) for sample in chosen)
        measured: dict[str, float] = {}
        for role in self.learns:
            done = learners[role].step(chosen, imitation(count))
            measured[f"loss/{role}"] = done.loss
            measured[f"gradient/{role}_norm"] = done.gradient_norm
            measured["tokens/learned"] = done.tokens
        return measured


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """How many rollouts a step learns from, and what they begin with."""

    prompts_per_step: int = 32
    group_size: int = 1
    """Rollouts per prompt; fewer is noisier, more is slower."""
    replayed_share: float = 0.0
    """Share of the drafts that the starting agent writes; raise it when the feedback agent, late
    in training, no longer knows a bad draft."""


@dataclass(frozen=True, kw_only=True)
class Reinforcement(RolloutPlan):
    """Rollouts, verdicts, rewards, and one REINFORCE++ step of each role that learns."""

    name: str
    steps: int
    learns: tuple[RoleName, ...]
    prompts: Sequence[Prompt]
    judge: Judge
    pattern: Pattern
    feedback_reward: FeedbackReward
    optimizer: Optimizer
    algorithm: ReinforcePlusPlus
    seed: int = 0

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.prompts) / self.prompts_per_step)

    async def step(self, number: int, pair: Pair, learners: Learners) -> dict[str, float]:
        draw = random.Random(f"{self.name}/{self.seed}/{number}")
        pair.seed(draw.getrandbits(40))
        started = time.perf_counter()
        rollouts = await self._roll_out(number, pair, draw)
        rolled = time.perf_counter()
        measured = _measured(RolloutRates.of(rollouts))
        for role in self.learns:
            samples = self._samples(role, rollouts, draw)
            if samples:
                reference = self._scorer(pair.references[role])
                learned = reinforce(learners[role], samples, reference, self.algorithm)
                measured |= _of_role(role, learned)
        measured["time/rollout_seconds"] = rolled - started
        measured["time/update_seconds"] = time.perf_counter() - rolled
        measured["tokens/sampled"] = _sampled_tokens(rollouts)
        return measured

    def _scorer(self, weights: Weights) -> Scorer:
        return Scorer(
            weights.causal_lm,
            weights.adapter,
            self.optimizer.micro_batch_tokens,
            bf16=self.optimizer.bf16,
        )

    async def _roll_out(self, number: int, pair: Pair, draw: random.Random) -> list[Rollout]:
        places = shuffled(len(self.prompts), self.prompts_per_step, number, f"prompts/{self.seed}")
        replaying = ReplayedDrafts(pair.conversation, pair.starting)
        asked = [
            (
                self.prompts[place],
                replaying if draw.random() < self.replayed_share else pair.conversation,
            )
            for place in places
            for _ in range(self.group_size)
        ]
        return await roll_out(asked, pair.feedback, self.pattern, self.judge)

    def _samples(
        self, role: RoleName, rollouts: Sequence[Rollout], draw: random.Random
    ) -> list[Sample]:
        if role == "conversation":
            return conversation_samples(rollouts, draw)
        return feedback_samples(rollouts, self.feedback_reward, draw)


def _measured(shares: RolloutRates) -> dict[str, float]:
    named = {
        "rate/asr": shares.asr,
        "rate/orr": shares.orr,
        "rate/feedback_trigger": shares.feedback_trigger_rate,
        "rate/label_accuracy": shares.label_accuracy,
        "rate/well_formed": shares.well_formed,
        "rate/unscored": shares.unscored,
    }
    return {name: value for name, value in named.items() if value is not None}


def _of_role(role: RoleName, learned: UpdateResult) -> dict[str, float]:
    return {
        f"reward/{role}_mean": learned.score_mean,
        f"kl/{role}_nats": learned.kl,
        f"loss/{role}": learned.loss,
        f"gradient/{role}_norm": learned.gradient_norm,
        f"tokens/{role}": learned.tokens,
    }


def _sampled_tokens(rollouts: Sequence[Rollout]) -> float:
    usages = [rollout.judged.collaboration.usage for rollout in rollouts]
    return float(sum(usage.output_tokens for usage in usages if usage is not None))
