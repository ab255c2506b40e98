"""How likely a policy finds given tokens.

Shapes: B replies, T tokens, V words of the vocabulary.
"""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def token_logprobs(logits_BTV: Tensor, ids_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log pi(id) in nats for each token, in fp32 whatever the dtype of the logits.

    Args:
        logits_BTV: [B, T, V] the scores from which token t was, or would be, drawn; the caller has
            already shifted them, so that `logits_BTV[:, t]` predicts `ids_BT[:, t]`.
        ids_BT: [B, T] int64.
        temperature: the one that the tokens were sampled with; more than 0.
    """
    if temperature != 1.0:  # dividing copies the largest tensor of all; training samples at 1
        logits_BTV = logits_BTV / temperature
    flat = logits_BTV.float().flatten(0, -2)
    return -F.cross_entropy(flat, ids_BT.flatten(), reduction="none").view(ids_BT.shape)
