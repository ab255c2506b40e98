"""One REINFORCE++ step of one role: scored samples in, updated weights out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from waltzrl.training.algorithms.reinforce_pp import (
    centre_by_group,
    dual_clip,
    policy_losses,
    returns,
    token_rewards,
    whiten,
)
from waltzrl.training.algorithms.tokens import k3, token_mean
from waltzrl.training.learner import Learner, Scorer
from waltzrl.training.samples import Batch, Sample
from waltzrl.training.settings import ReinforceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What an update did, for the journal."""

    score_mean: float
    kl: float
    """Mean k3 per token against the reference, in nats; 0 without a reference."""
    loss: float
    gradient_norm: float
    tokens: int


class Algorithm(Protocol):
    """An update of one role; bind its settings with `functools.partial`."""

    def __call__(
        self, learner: Learner, samples: Sequence[Sample], reference: Scorer | None
    ) -> UpdateResult:
        """Learn from one batch of rollouts."""
        ...


def reinforce(
    learner: Learner,
    samples: Sequence[Sample],
    reference: Scorer | None,
    settings: ReinforceSettings,
) -> UpdateResult:
    """Learn from one batch of rollouts by REINFORCE++.

    Advantages are computed once, over the whole batch of this role, before any step.
    """
    references = reference.score(samples) if reference is not None and settings.kl_weight else None
    advantages, kl = _advantages(samples, references, settings)
    count = sum(len(sample.tokens.ids) for sample in samples)

    def loss_of(logprobs_BT: Tensor, batch: Batch, positions: list[int]) -> Tensor:
        length = batch.mask_BT.shape[1]
        advantages_BT = advantages[positions, :length].to(logprobs_BT.device)
        losses = policy_losses(
            logprobs_BT,
            batch.old_logprobs_BT,
            advantages_BT,
            settings.clip_low,
            settings.clip_high,
        )
        if settings.dual_clip is not None:
            losses = dual_clip(losses, advantages_BT, settings.dual_clip)
        return token_mean(losses, batch.mask_BT, count)

    steps = [learner.step(samples, loss_of) for _ in range(settings.passes)]
    return UpdateResult(
        score_mean=sum(sample.score for sample in samples) / len(samples),
        kl=kl,
        loss=steps[-1].loss,
        gradient_norm=max(step.gradient_norm for step in steps),
        tokens=count,
    )


def _advantages(
    samples: Sequence[Sample], references: list[list[float]] | None, settings: ReinforceSettings
) -> tuple[Tensor, float]:
    """Return [B, T] whitened advantages on the CPU, and the mean divergence per token."""
    length = max(len(sample.tokens.ids) for sample in samples)

    def padded(rows: Sequence[Sequence[float]]) -> Tensor:
        return torch.tensor([[*row, *[0.0] * (length - len(row))] for row in rows])

    old = padded([sample.tokens.logprobs for sample in samples])
    mask = padded([[1.0] * len(sample.tokens.ids) for sample in samples]).bool()
    reference = old if references is None else padded(references)
    scores = torch.tensor([sample.score for sample in samples])
    if settings.centre_groups:
        scores = centre_by_group(scores, torch.tensor([sample.group for sample in samples]))
    rewards = token_rewards(scores, old, reference, mask, settings.kl_weight)
    divergence = k3(old, reference)[mask].mean().item()
    return whiten(returns(rewards, mask), mask, settings.sigma_floor), divergence
