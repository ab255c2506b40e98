"""One REINFORCE++ step of one role: scored samples in, updated weights out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from waltzrl.training import ranks
from waltzrl.training.algorithms.reinforce_pp import (
    SAMPLER_RATIO_LIMIT,
    centre_by_group,
    clipped,
    dual_clip,
    moments,
    policy_losses,
    ratios,
    returns,
    token_rewards,
    weighted_loss,
    whiten,
)
from waltzrl.training.algorithms.tokens import k3, sequence_weights, token_weights
from waltzrl.training.learner import Learner, Scorer, remove_padding
from waltzrl.training.samples import Batch, Sample
from waltzrl.training.settings import ReinforceSettings

WEIGHTS = {"sequence": sequence_weights, "token": token_weights}
"""Functions that weigh each token, by the names of `algorithm.aggregation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What an update did, for the journal."""

    score_mean: float
    kl: float | None
    """Mean k3 per token against the reference, in nats; None without a reference."""
    entropy: float
    """Entropy of the sampler, in nats per token: the mean of -log pi over the tokens that it
    sampled, which is an estimate without bias and needs no distribution."""
    advantage_sigma: float
    """Standard deviation of the returns, before whitening; below `sigma_floor` a step teaches
    less."""
    ratio: "RatioMetrics"
    loss: float
    gradient_norm: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioMetrics:
    """How far the policy that learns is from the one that sampled, over all passes."""

    mean: float
    """Mean of pi / pi_old."""
    maximum: float
    clipped: float
    """Share of the tokens whose gradient was clipped."""
    sampler_mean: float
    """Mean of the learner's probability before the step, divided by the sampler's; 1 where both
    compute in the same precision with the same weights."""
    sampler_maximum: float


def reinforce(
    learner: Learner,
    samples: Sequence[Sample],
    reference: Scorer | None,
    settings: ReinforceSettings,
) -> UpdateResult:
    """Learn from one batch of rollouts by REINFORCE++.

    Advantages are computed once, over the whole batch of this role, before any step. The KL is
    measured whatever its weight. A sampler of float32 in this process has computed what the learner
    would. Autocast and a server round elsewhere than the learner does, and older weights sampled
    what is stale, so it then scores the samples too: in its first step, where they are one
    micro-batch, or in a pass before it.
    """
    references = None if reference is None else reference.score(samples)
    objective = _Objective(samples, references, settings)
    # Tokens have a version only where a server sampled them.
    sampled_here = not any(sample.stale or sample.tokens.version for sample in samples)
    if sampled_here and learner.scorer.dtype == torch.float32:
        objective.measure(None)
    elif not learner.scorer.needs_one_pass(samples):
        objective.measure(learner.scorer.score(samples))
    steps = [learner.step(samples, objective) for _ in range(settings.passes)]
    return UpdateResult(
        score_mean=sum(sample.score for sample in samples) / len(samples),
        kl=objective.batch.kl,
        entropy=objective.batch.entropy,
        advantage_sigma=objective.batch.advantage_sigma,
        ratio=objective.ratio_metrics(),
        loss=steps[-1].loss,
        gradient_norm=max(step.gradient_norm for step in steps),
        tokens=steps[-1].tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RolloutBatch:
    """What is computed once of all samples, on the CPU."""

    old_logprobs_BT: Tensor
    """The log-probabilities before the step, in the learner's precision, which is the reference's
    too."""
    advantages_BT: Tensor
    weights_BT: Tensor
    """The weight of each token in the loss; all add up to 1."""
    advantage_sigma: float
    entropy: float
    kl: float | None

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        own: list[list[float]] | None,
        references: list[list[float]] | None,
        settings: ReinforceSettings,
    ) -> "_RolloutBatch":
        """Whiten the samples' advantages, and measure the policy before the step.

        Args:
            samples: of the update.
            own: [samples][tokens] log-probabilities by the learner; None where the sampler's are
                of the same precision.
            references: as `own`, by the reference.
            settings: of the algorithm.
        """
        length = max(len(sample.tokens.ids) for sample in samples)

        def padded(rows: Sequence[Sequence[float]]) -> Tensor:
            return torch.tensor([[*row, *[0.0] * (length - len(row))] for row in rows])

        sampler = padded([sample.tokens.logprobs for sample in samples])
        old = sampler if own is None else padded(own)
        mask = padded([[1.0] * len(sample.tokens.ids) for sample in samples]).bool()
        # Compared with itself, the policy has a KL of 0.
        reference = old if references is None else padded(references)
        scores = torch.tensor([sample.score for sample in samples])
        if settings.centre_groups:
            scores = centre_by_group(scores, torch.tensor([sample.group for sample in samples]))
        weights = WEIGHTS[settings.aggregation](mask)
        earned = returns(token_rewards(scores, old, reference, mask, settings.kl_weight), mask)
        return cls(
            old_logprobs_BT=old,
            advantages_BT=whiten(earned, weights, settings.sigma_floor),
            weights_BT=weights,
            advantage_sigma=moments(earned, weights)[1].item(),
            entropy=-sampler[mask].mean().item(),
            kl=None if references is None else k3(old, reference)[mask].mean().item(),
        )


class _Objective:
    """The loss of an update, micro-batch by micro-batch; remembers the ratios that it saw."""

    def __init__(
        self,
        samples: Sequence[Sample],
        references: list[list[float]] | None,
        settings: ReinforceSettings,
    ) -> None:
        self._samples, self._references, self._settings = samples, references, settings
        self._batch: _RolloutBatch | None = None
        self._sums: list[Tensor] = []
        self._maxima: list[Tensor] = []
        self._tokens = 0

    def __call__(self, logprobs_BT: Tensor, batch: Batch, positions: list[int]) -> Tensor:
        """Return this micro-batch's share of the loss; is a `LossOfMicroBatch`."""
        if self._batch is None:  # before the first step, in whose only forward pass we are
            own = dict(zip(positions, remove_padding(logprobs_BT, batch), strict=True))
            self.measure([own[position] for position in range(len(own))])
        settings, length = self._settings, batch.mask_BT.shape[1]
        whole = self.batch
        # A micro-batch is only as wide as its own longest reply.
        old_BT, advantages_BT, weights_BT = (
            values_BT[positions, :length].to(logprobs_BT.device)
            for values_BT in (whole.old_logprobs_BT, whole.advantages_BT, whole.weights_BT)
        )
        losses_BT = policy_losses(
            logprobs_BT, old_BT, advantages_BT, settings.clip_low, settings.clip_high
        )
        if settings.dual_clip is not None:
            losses_BT = dual_clip(losses_BT, advantages_BT, settings.dual_clip)
        sampler_ratio_BT = ratios(old_BT, batch.old_logprobs_BT)  # 1 if not stale, in one precision
        losses_BT = losses_BT * sampler_ratio_BT.clamp(max=SAMPLER_RATIO_LIMIT)  # Eq. 8
        ratio_BT = ratios(logprobs_BT.detach(), old_BT)
        clipped_BT = clipped(ratio_BT, advantages_BT, settings.clip_low, settings.clip_high)
        seen = torch.stack([ratio_BT, clipped_BT, sampler_ratio_BT]).where(batch.mask_BT, 0.0)
        self._sums.append(seen.sum((1, 2)))
        self._maxima.append(seen.amax((1, 2)))
        self._tokens += len(batch.reply_ids_M)
        return weighted_loss(losses_BT, weights_BT)

    def measure(self, own: list[list[float]] | None) -> None:
        """Measure the policy before the step; see `_RolloutBatch.of`."""
        self._batch = _RolloutBatch.of(self._samples, own, self._references, self._settings)

    @property
    def batch(self) -> _RolloutBatch:
        """What was measured."""
        assert self._batch is not None, "it is measured in the first forward pass at the latest"
        return self._batch

    def ratio_metrics(self) -> RatioMetrics:
        """Return the ratios of all micro-batches of all ranks; read from the device once."""
        # A rank with few samples may have seen none.
        sums = torch.stack(self._sums).sum(0).cpu() if self._sums else torch.zeros(3)
        maxima = torch.stack(self._maxima).amax(0).cpu() if self._maxima else torch.zeros(3)
        means = ranks.add_up(sums) / ranks.add_up(torch.tensor(self._tokens))
        ratio, clipped_share, sampler_ratio = means.tolist()
        maximum, _, sampler_maximum = ranks.find_largest(maxima).tolist()
        return RatioMetrics(
            mean=ratio,
            maximum=maximum,
            clipped=clipped_share,
            sampler_mean=sampler_ratio,
            sampler_maximum=sampler_maximum,
        )
