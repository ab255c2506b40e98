"""REINFORCE++: policy gradient without a critic; the batch is the baseline.

Sources: Hu et al., "REINFORCE++", 2025, arXiv 2501.03262; the clipped surrogate of Schulman et al.,
"Proximal Policy Optimization", 2017, arXiv 1707.06347; the dual clip of Ye et al., "Mastering
Complex Control in MOBA Games", 2019, arXiv 1912.09729.

    (1)  r_t   = -beta * k1_t + 1[t = last] * R             reward: KL per token, score at the end
    (2)  G_t   = sum of r_u over the policy's own tokens u >= t                        (gamma = 1)
    (3)  A_t   = (G_t - mu) / max(sigma, floor)             mu, sigma over all tokens of the batch
    (4)  rho_t = pi(a_t) / pi_old(a_t)
    (5)  l_t   = -min(rho_t * A_t, clip(rho_t, 1 - e_low, 1 + e_high) * A_t)
    (6)  l_t   = min(l_t, -c * A_t)  where A_t < 0                                     (dual clip)
    (7)  L     = sum of l_t / tokens of the batch                                     (token_mean)

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
"""Keeps exp() finite; far outside any clip range."""


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
        old_logprobs_BT: [B, T] under the policy that sampled the tokens.
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


def whiten(returns_BT: Tensor, mask_BT: Tensor, sigma_floor: float) -> Tensor:
    """Return [B, T] the advantages, Eq. 3; 0 outside the mask.

    Unlike the paper, sigma has a floor, because in a batch whose scores are all equal the returns
    differ by KL alone, and whitening would scale that noise up to the size of a signal.

    Args:
        returns_BT: [B, T] of the policy's whole batch, not of a micro-batch.
        mask_BT: [B, T] bool; at least one token.
        sigma_floor: in units of the score. 0.1 is the sigma of scores in {0, 1} of which one in a
            hundred differs from the rest.
    """
    token_count = mask_BT.sum()
    mean = torch.where(mask_BT, returns_BT, 0.0).sum() / token_count
    centred_BT = torch.where(mask_BT, returns_BT - mean, 0.0)
    sigma = (centred_BT.square().sum() / token_count).sqrt()
    return centred_BT / sigma.clamp(min=sigma_floor)  # Eq. 3


def policy_losses(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """Return [B, T] the clipped surrogate of each token, Eq. 5; `token_mean` makes it the loss.

    Args:
        logprobs_BT: [B, T] under the policy now; the only input with a gradient.
        old_logprobs_BT: [B, T] under the policy that sampled the tokens.
        advantages_BT: [B, T].
        clip_low: the objective gains nothing from a ratio below 1 - clip_low; 0.2 is usual.
        clip_high: nor from one above 1 + clip_high.
    """
    log_ratio_BT = (logprobs_BT - old_logprobs_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_BT = log_ratio_BT.exp()  # Eq. 4
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
