"""One REINFORCE++ step of one policy: scored samples in, moved weights out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from waltzrl.training.algorithms.divergence import k3
from waltzrl.training.algorithms.reinforce_pp import (
    centre_by_group,
    dual_clip,
    policy_losses,
    returns,
    token_rewards,
    whiten,
)
from waltzrl.training.algorithms.token_mean import token_mean
from waltzrl.training.learner import Learner, Scorer
from waltzrl.training.samples import Batch, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlus:
    """The knobs of the algorithm; the equations stand in `algorithms/reinforce_pp.py`."""

    kl_weight: float = 0.01
    """beta: raise it when general capability falls, 0 switches the reference off."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    """Ceiling on the loss of bad tokens; 3 is usual, None is off."""
    sigma_floor: float = 0.1
    """Keeps a batch of nearly equal scores from being blown up into a demonstration."""
    centre_groups: bool = False
    """Subtract each prompt's mean score; needs more than one rollout per prompt."""
    passes: int = 1
    """Optimiser steps per batch of rollouts; more than 1 makes the clip matter."""

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise ValueError(f"algorithm.passes must be 1 or more, got {self.passes}")
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"algorithm.dual_clip must be more than 1 + clip_high = {1 + self.clip_high}, got"
                f" {self.dual_clip}; below, it would cut what the clip leaves alone"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What a step did, for the journal."""

    score_mean: float
    kl: float
    """Mean k3 per token against the reference, in nats; 0 without a reference."""
    loss: float
    gradient_norm: float
    tokens: int


def reinforce(
    learner: Learner, samples: Sequence[Sample], reference: Scorer | None, how: ReinforcePlusPlus
) -> UpdateResult:
    """Learn from one batch of rollouts.

    Advantages are computed once, over the whole batch of this policy, before any step.
    """
    references = reference.score(samples) if reference is not None and how.kl_weight else None
    advantages, kl = _advantages(samples, references, how)
    count = sum(len(sample.tokens.ids) for sample in samples)

    def loss_of(logprobs_BT: Tensor, batch: Batch, positions: list[int]) -> Tensor:
        length = batch.mask_BT.shape[1]
        advantages_BT = advantages[positions, :length].to(logprobs_BT.device)
        old_BT = batch.old_logprobs_BT
        losses = policy_losses(logprobs_BT, old_BT, advantages_BT, how.clip_low, how.clip_high)
        if how.dual_clip is not None:
            losses = dual_clip(losses, advantages_BT, how.dual_clip)
        return token_mean(losses, batch.mask_BT, count)

    steps = [learner.step(samples, loss_of) for _ in range(how.passes)]
    return UpdateResult(
        score_mean=sum(sample.score for sample in samples) / len(samples),
        kl=kl,
        loss=steps[-1].loss,
        gradient_norm=max(step.gradient_norm for step in steps),
        tokens=count,
    )


def _advantages(
    samples: Sequence[Sample], references: list[list[float]] | None, how: ReinforcePlusPlus
) -> tuple[Tensor, float]:
    """Return [B, T] whitened advantages on the CPU, and the mean divergence per token."""
    length = max(len(sample.tokens.ids) for sample in samples)
    old = _padded([sample.tokens.logprobs for sample in samples], length)
    mask = _padded([[1.0] * len(sample.tokens.ids) for sample in samples], length).bool()
    reference = old if references is None else _padded(references, length)
    scores = torch.tensor([sample.score for sample in samples])
    if how.centre_groups:
        scores = centre_by_group(scores, torch.tensor([sample.group for sample in samples]))
    rewards = token_rewards(scores, old, reference, mask, how.kl_weight)
    divergence = k3(old, reference)[mask].mean().item()
    return whiten(returns(rewards, mask), mask, how.sigma_floor), divergence


def _padded(rows: Sequence[Sequence[float]], length: int) -> Tensor:
    return torch.tensor([[*row, *[0.0] * (length - len(row))] for row in rows])
