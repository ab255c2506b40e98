"""Estimators of KL(policy || reference), one number per sampled token.

Source: John Schulman, "Approximating KL Divergence", 2020. With x = log pi - log pi_ref of a token
sampled from pi, the mean of k1 and of k3 is the divergence, and k2 is close to it. Their gradients
differ: k1 belongs into the reward, where the policy gradient makes it exact; as a loss, only k2
has the divergence's gradient (that of k1 is zero in the mean, that of k3 pulls another way).

Any shape; both tensors have the same.
"""

from torch import Tensor


def k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return x: unbiased, noisy, of either sign."""
    return logprobs - reference_logprobs


def k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return x^2 / 2: slightly biased, never negative."""
    return (logprobs - reference_logprobs).square() / 2


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return exp(-x) - 1 + x: unbiased, calm, never negative; the one to report."""
    log_ratio = logprobs - reference_logprobs
    return (-log_ratio).expm1() + log_ratio
