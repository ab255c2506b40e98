"""The three estimators, and which of them may be differentiated.

A policy over five actions is small enough to write every expectation as a sum over the actions.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.training.algorithms.tokens import k1, k2, k3

LOGITS = torch.tensor([0.3, -1.0, 0.8, 0.0, 1.5], dtype=torch.float64)
REFERENCE = torch.tensor([1.0, 0.2, -0.5, 0.4, 0.1], dtype=torch.float64).log_softmax(-1)

logprobs = st.floats(-20, 0)


def divergence(logits):
    """Write out KL(policy || reference) = sum p * (log p - log q)."""
    log_policy = logits.log_softmax(-1)
    return (log_policy.exp() * (log_policy - REFERENCE)).sum()


def finite_difference(step=1e-6):
    """Differentiate `divergence` at LOGITS without autograd."""
    units = step * torch.eye(5, dtype=torch.float64)
    rows = [divergence(LOGITS + u) - divergence(LOGITS - u) for u in units]
    return torch.stack(rows) / (2 * step)


def gradient_as_a_loss(estimator):
    """Return the mean gradient of the estimator over tokens sampled from the policy."""
    logits = LOGITS.clone().requires_grad_()
    log_policy = logits.log_softmax(-1)
    loss = (log_policy.detach().exp() * estimator(log_policy, REFERENCE)).sum()
    return torch.autograd.grad(loss, logits)[0]


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.k1`")
@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.k2`")
def test_the_estimators_by_hand(device):
    now, reference = torch.tensor([-1.0], device=device), torch.tensor([-2.0], device=device)
    assert k1(now, reference).item() == 1.0
    assert k2(now, reference).item() == 0.5
    torch.testing.assert_close(k3(now, reference).item(), math.exp(-1), atol=1e-6, rtol=0)


@given(logprobs, logprobs)
def test_k2_and_k3_are_never_negative(now, reference):
    pair = torch.tensor([now], dtype=torch.float64), torch.tensor([reference], dtype=torch.float64)
    assert k2(*pair).item() >= 0
    assert k3(*pair).item() >= 0


@given(logprobs)
def test_a_policy_does_not_diverge_from_itself(now):
    same = torch.tensor([now])
    assert k1(same, same).item() == k2(same, same).item() == k3(same, same).item() == 0


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.k3`")
def test_k1_and_k3_have_the_divergence_as_their_mean():
    log_policy = LOGITS.log_softmax(-1)
    for estimator in (k1, k3):
        mean = (log_policy.exp() * estimator(log_policy, REFERENCE)).sum()
        torch.testing.assert_close(mean, divergence(LOGITS))


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.k1`")
def test_k1_in_the_reward_has_the_gradient_of_the_divergence():
    logits = LOGITS.clone().requires_grad_()
    log_policy = logits.log_softmax(-1)
    cost = k1(log_policy, REFERENCE).detach()
    surrogate = (log_policy.detach().exp() * cost * log_policy).sum()
    gradient = torch.autograd.grad(surrogate, logits)[0]
    torch.testing.assert_close(gradient, finite_difference(), atol=1e-8, rtol=0)


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.k2`")
def test_k2_as_a_loss_has_the_gradient_of_the_divergence():
    torch.testing.assert_close(gradient_as_a_loss(k2), finite_difference(), atol=1e-8, rtol=0)


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.k1`")
def test_k1_as_a_loss_teaches_nothing():
    torch.testing.assert_close(gradient_as_a_loss(k1), torch.zeros_like(LOGITS))


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.k3`")
def test_k3_as_a_loss_pulls_another_way():
    assert (gradient_as_a_loss(k3) - finite_difference()).abs().max() > 0.05
