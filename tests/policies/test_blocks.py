import copy

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from support.tiny_models import FAMILIES, tiny_model
from waltzrl.policies.blocks import fuse

IDS = torch.arange(6, 30).view(2, 12)


def fused(family="llama"):
    model = tiny_model(family).model
    fuse(model)
    return model


def parts_of(model):
    """Return the class names of the modules whose forward was replaced."""
    return {type(module).__name__ for module in model.modules() if "forward" in vars(module)}


def gradients(model):
    """Return the gradients of a loss that weighs every logit differently."""
    logits = model(IDS).logits
    weights = torch.linspace(-1.0, 1.0, logits[0].numel()).view(logits[0].shape)
    return torch.autograd.grad((logits.log_softmax(-1) * weights).mean(), list(model.parameters()))


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_parts_compute_what_the_model_computes(family):
    plain, ours = tiny_model(family).model, fused(family)
    expected = plain(IDS).logits
    torch.testing.assert_close(ours(IDS).logits, expected, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS).logits, expected, atol=1e-4, rtol=1e-4)
    for found, gradient in zip(gradients(ours), gradients(plain), strict=True):
        torch.testing.assert_close(found, gradient, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_norms_activations_and_rotary_embeddings_are_replaced(family):
    name = family.capitalize()
    assert parts_of(fused(family)) == {f"{name}RMSNorm", f"{name}MLP", f"{name}Attention"}


def test_a_module_that_computes_something_else_keeps_its_own_code():
    assert parts_of(fused("gemma")) == {"GemmaAttention"}  # its norm adds one, its MLP has no SiLU


def test_another_constant_is_other_code():
    class Cubed(LlamaRMSNorm):
        def forward(self, hidden_states):
            input_dtype = hidden_states.dtype
            hidden_states = hidden_states.to(torch.float32)
            variance = hidden_states.pow(3).mean(-1, keepdim=True)
            hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
            return self.weight * hidden_states.to(input_dtype)

    model = tiny_model("llama").model
    model.model.norm = Cubed(32)
    fuse(model)
    assert "forward" not in vars(model.model.norm)


def test_the_parts_of_a_copy_use_the_weights_of_the_copy():
    model = fused()
    expected = model(IDS).logits
    copied = copy.deepcopy(model)
    copied.model.norm.weight.data.zero_()
    assert not copied(IDS).logits.any()
    assert torch.equal(model(IDS).logits, expected)


def test_in_bfloat16_the_parts_round_as_the_model_does():
    plain, ours = (model.to(torch.bfloat16) for model in (tiny_model("llama").model, fused()))
    hidden = torch.randn(3, 5, 32, dtype=torch.bfloat16)
    for name in ("mlp", "input_layernorm"):
        one, two = (getattr(model.model.layers[0], name)(hidden) for model in (plain, ours))
        assert torch.equal(one, two)
