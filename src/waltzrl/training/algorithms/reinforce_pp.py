"""REINFORCE++: policy gradient without a critic; the batch is the baseline.

Sources: Hu et al., "REINFORCE++", 2025, arXiv 2501.03262; the clipped surrogate of Schulman et al.,
"Proximal Policy Optimization", 2017, arXiv 1707.06347; the dual clip of Ye et al., "Mastering
Complex Control in MOBA Games", 2019, arXiv 1912.09729; truncated importance sampling of Ionides,
Journal of Computational and Graphical Statistics 17(2), 2008.

    (1)  r_t   = -beta * k1_t + 1[t = last] * R             reward: KL per token, score at the end
    (2)  G_t   = sum of r_u over the policy's own tokens u >= t                        (gamma = 1)
    (3)  A_t   = (G_t - mu) / max(sigma, floor)             mu, sigma of the batch, by weight w_t
    (4)  rho_t = pi(a_t) / pi_old(a_t)
    (5)  l_t   = -min(rho_t * A_t, clip(rho_t, 1 - e_low, 1 + e_high) * A_t)
    (6)  l_t   = min(l_t, -c * A_t)  where A_t < 0                                     (dual clip)
    (7)  L     = sum of w_t * l_t      w_t: tokens.sequence_weights (the paper's) or token_weights
    (8)  l_t   = l_t * min(pi_old(a_t) / pi_sampler(a_t), c_s)       truncated importance sampling

(8) is for a sampler that computes in another precision than the learner: then pi_old in (1) and (4)
is the learner's own probability before the step, and the difference stands in this factor alone.

Each policy has its own batch: one pool for both agents would mix two scales of reward.
Shapes: B replies, T tokens. The mask is True on the tokens that the policy wrote itself, its
end-of-turn token included, and False on prompts, padding and another agent's words.
"""

import torch
from torch import Tensor

from waltzrl.training.algorithms.tokens import k1

LIMIT = 10.0
"""Scores and k1 beyond this size are cut, so that one odd token cannot dominate the batch."""
LOG_RATIO_LIMIT = 20.0
"""The log-ratio at which exp() is cut off to stay finite; far outside any clip range."""
SAMPLER_RATIO_LIMIT = 2.0
"""c_s: what a token may weigh more because the sampler was less sure of it than the learner."""


def centre_by_group(scores_B: Tensor, groups_B: Tensor) -> Tensor:
    """Subtract the mean of each group: R' = R - mean_group(R), the optional baseline.

    Args:
        scores_B: [B] one score per reply.
        groups_B: [B] int64, equal for replies to the same prompt; a group of one becomes 0.

    Returns:
        [B] scores that sum to zero in every group.
    """
    together_BB = groups_B.unsqueeze(1) == groups_B
    return scores_B - (together_BB * scores_B).sum(1) / together_BB.sum(1)


def token_rewards(
    scores_B: Tensor,
    old_logprobs_BT: Tensor,
    reference_logprobs_BT: Tensor,
    mask_BT: Tensor,
    kl_weight: float,
) -> Tensor:
    """Return [B, T] the reward of each token, Eq. 1; 0 outside the mask.

    Args:
        scores_B: [B] R, one score per reply.
        old_logprobs_BT: [B, T] under the policy before the step, in the reference's precision.
        reference_logprobs_BT: [B, T] under the frozen reference.
        mask_BT: [B, T] bool.
        kl_weight: beta; 0.01 is usual.
    """
    k1_BT = k1(old_logprobs_BT, reference_logprobs_BT).clamp(-LIMIT, LIMIT)
    tokens_left_BT = mask_BT.flip(1).cumsum(1).flip(1)  # this one included
    last_BT = mask_BT & (tokens_left_BT == 1)
    scores_B1 = scores_B.clamp(-LIMIT, LIMIT).unsqueeze(1)
    return torch.where(mask_BT, -kl_weight * k1_BT, 0.0) + last_BT * scores_B1  # Eq. 1


def returns(rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B, T] the return of each token, Eq. 2; 0 outside the mask."""
    own_BT = torch.where(mask_BT, rewards_BT, 0.0)
    return own_BT.flip(1).cumsum(1).flip(1) * mask_BT  # Eq. 2


def moments(values_BT: Tensor, weights_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return [] mean and [] standard deviation of weighted values; the weights add up to 1."""
    mean = _add_up_weighted(values_BT, weights_BT)
    return mean, _add_up_weighted((values_BT - mean).square(), weights_BT).sqrt()


def whiten(returns_BT: Tensor, weights_BT: Tensor, sigma_floor: float) -> Tensor:
    """Return [B, T] the advantages, Eq. 3; 0 where the weight is 0.

    Weighted like the loss: its advantages then add up to zero. Unlike the paper, sigma has a
    floor, because in a batch whose scores are all equal the returns differ by KL alone, and
    whitening would scale that noise up to the size of a signal.

    Args:
        returns_BT: [B, T] of the policy's whole batch, not of a micro-batch.
        weights_BT: [B, T] what each token weighs, 0 outside the mask; they add up to 1.
        sigma_floor: in units of the score. 0.1 is the sigma of scores in {0, 1} of which one in a
            hundred differs from the rest.
    """
    mean, sigma = moments(returns_BT, weights_BT)
    centred_BT = torch.where(weights_BT > 0, returns_BT - mean, 0.0)
    return centred_BT / sigma.clamp(min=sigma_floor)  # Eq. 3


def policy_losses(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """Return [B, T] the clipped surrogate of each token, Eq. 5.

    Args:
        logprobs_BT: [B, T] under the policy now; the only input with a gradient.
        old_logprobs_BT: [B, T] under the policy before the step.
        advantages_BT: [B, T].
        clip_low: the objective gains nothing from a ratio below 1 - clip_low; 0.2 is usual.
        clip_high: nor from one above 1 + clip_high.
    """
    ratio_BT = ratios(logprobs_BT, old_logprobs_BT)  # Eq. 4
    bounded_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio_BT * advantages_BT, bounded_BT * advantages_BT)  # Eq. 5


def dual_clip(losses_BT: Tensor, advantages_BT: Tensor, limit: float) -> Tensor:
    """Return [B, T] the losses with a ceiling where the advantage is negative, Eq. 6.

    Eq. 5 leaves the loss of a bad token unbounded when the policy has made it likelier.

    Args:
        losses_BT: [B, T] from `policy_losses`.
        advantages_BT: [B, T].
        limit: c, more than 1 + clip_high; 3 is usual.
    """
    ceiling_BT = -limit * advantages_BT
    return torch.where(advantages_BT < 0, torch.minimum(losses_BT, ceiling_BT), losses_BT)  # Eq. 6


def weighted_loss(losses_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """Return [] this micro-batch's share of the loss, Eq. 7.

    The weights are those of the whole batch, so the gradients of its micro-batches add up to the
    gradient of one big batch, however it is split.
    """
    return _add_up_weighted(losses_BT, weights_BT)  # Eq. 7


def ratios(logprobs_BT: Tensor, others_BT: Tensor) -> Tensor:
    """Return [B, T] how many times likelier each token is under one policy than another, Eq. 4."""
    return (logprobs_BT - others_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def clipped(ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Return [B, T] bool: the tokens whose gradient the clip of Eq. 5 takes away."""
    above_BT = (advantages_BT > 0) & (ratio_BT > 1 + clip_high)
    return above_BT | ((advantages_BT < 0) & (ratio_BT < 1 - clip_low))


def _add_up_weighted(values_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """Add up the values; what stands where the weight is 0 may be anything, even not a number."""
    return torch.where(weights_BT > 0, values_BT * weights_BT, 0.0).sum()
