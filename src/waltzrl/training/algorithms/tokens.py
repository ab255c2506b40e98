"""Numbers per token: how likely it is, how far it is from the reference, and what it weighs.

The estimators of KL(policy || reference) are those of John Schulman, "Approximating KL Divergence",
2020. With x = log pi - log pi_ref of a token sampled from pi, the mean of k1 and of k3 is the
divergence, and k2 is close to it. Their gradients differ: k1 belongs in the reward, where the
policy gradient makes it exact; as a loss, only k2 has the divergence's gradient (that of k1 is zero
in the mean, that of k3 points elsewhere).

Shapes: B replies, T tokens, V words of the vocabulary; k1, k2 and k3 take any shape.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def token_logprobs(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Return log pi(id) in nats for each token, in fp32 whatever the dtype of the logits.

    The tokens were sampled at a temperature of 1.

    Args:
        logits_BTV: [B, T, V] the scores from which token t was, or would be, drawn; the caller has
            already shifted them, so that `logits_BTV[:, t]` predicts `ids_BT[:, t]`.
        ids_BT: [B, T] int64.
    """
    flat = logits_BTV.float().flatten(0, -2)
    return -F.cross_entropy(flat, ids_BT.flatten(), reduction="none").view(ids_BT.shape)


def k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return x: unbiased, noisy, of either sign."""
    return logprobs - reference_logprobs


def k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return x^2 / 2: slightly biased, never negative."""
    return (logprobs - reference_logprobs).square() / 2


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return exp(-x) - 1 + x: unbiased, of low variance, never negative; the one to report."""
    log_ratio = logprobs - reference_logprobs
    # expm1 keeps the digits that exp(-x) - 1 loses where x is small.
    return (-log_ratio).expm1() + log_ratio


def sequence_weights(mask_BT: Tensor) -> Tensor:
    """Return [B, T] what each token weighs when every reply weighs the same: m / |y| / B.

    This makes the mean over a reply's own tokens, then over the replies.

    Args:
        mask_BT: [B, T] bool of the whole batch, at least one token in every row.
    """
    return mask_BT / mask_BT.sum(1, keepdim=True) / len(mask_BT)


def token_weights(mask_BT: Tensor) -> Tensor:
    """Return [B, T] what each token weighs when all weigh the same: m / sum of m.

    A reply then weighs by its length.

    Args:
        mask_BT: [B, T] bool of the whole batch, at least one token.
    """
    return mask_BT / mask_BT.sum()


def token_mean(losses_BT: Tensor, mask_BT: Tensor, token_count: int) -> Tensor:
    """Sum the losses of the masked tokens, divided by the tokens of the whole batch.

    A mean over each micro-batch would weigh tokens by their neighbours; with the global count the
    gradients of the micro-batches add up to the gradient of one big batch.

    Args:
        losses_BT: [B, T] one loss per token.
        mask_BT: [B, T] bool, True on the tokens that the policy wrote itself.
        token_count: how many such tokens all micro-batches (on all ranks) have together.

    Returns:
        [] this micro-batch's share of the batch's mean loss.
    """
    return torch.where(mask_BT, losses_BT, 0.0).sum() / token_count


def sequence_mean(losses_BT: Tensor, mask_BT: Tensor, reply_count: int) -> Tensor:
    """Return the mean over each reply's own tokens, summed and divided by the batch's replies.

    Args:
        losses_BT: [B, T] one loss per token.
        mask_BT: [B, T] bool, True on the tokens that the policy wrote itself; one in every row.
        reply_count: how many replies all micro-batches (on all ranks) have together.

    Returns:
        [] this micro-batch's share of the batch's mean loss.
    """
    means_B = torch.where(mask_BT, losses_BT, 0.0).sum(1) / mask_BT.sum(1)
    return means_B.sum() / reply_count
