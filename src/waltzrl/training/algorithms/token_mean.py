"""The one way in which losses per token become a loss: every token counts the same.

Shapes: B replies, T tokens.
"""

import torch
from torch import Tensor


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
