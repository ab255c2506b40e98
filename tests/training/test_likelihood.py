import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.training.algorithms.tokens import token_logprobs

sizes = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(2, 9))


def draw(size, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(size, generator=generator)
    return logits, torch.randint(size[-1], size[:-1], generator=generator)


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.token_logprobs`")
def test_log_probabilities_by_hand(device):
    logits = torch.tensor([[[0.0, math.log(3.0)], [7.0, 7.0]]], device=device)
    ids = torch.tensor([[1, 0]], device=device)
    # three of four parts, and one of two
    expected = torch.tensor([[math.log(0.75), math.log(0.5)]], device=device)
    torch.testing.assert_close(token_logprobs(logits, ids), expected)


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.token_logprobs`")
@given(sizes, st.integers(0, 2**31))
def test_values_and_gradients_are_those_of_log_softmax(size, seed):
    logits, ids = draw(size, seed)
    logits.requires_grad_()
    ours = token_logprobs(logits, ids)
    log_softmax = logits.log_softmax(-1)
    theirs = log_softmax.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(value.sum(), logits)[0] for value in (ours, theirs)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_the_graph_keeps_one_tensor_of_the_size_of_the_logits(device):
    logits, ids = (tensor.to(device) for tensor in draw((2, 3, 50), seed=0))
    logits.requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        token_logprobs(logits, ids)
    large = {tensor.data_ptr() for tensor in kept if tensor.numel() >= logits.numel()}
    assert len(large) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_give_fp32_log_probabilities(device, dtype):
    logits, ids = (tensor.to(device) for tensor in draw((2, 3, 11), seed=0))
    half = logits.to(dtype)
    logprobs = token_logprobs(half, ids)
    assert logprobs.dtype is torch.float32
    torch.testing.assert_close(logprobs, token_logprobs(half.float(), ids))
