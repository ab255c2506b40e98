import copy

import pytest
import torch
from peft.tuners import lora
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from support.tiny_models import FAMILIES, tiny_architecture, tiny_model
from waltzrl.policies.blocks import fuse_blocks
from waltzrl.policies.weights import activate_adapter, add_adapters, narrow_parameters

IDS = torch.arange(6, 30).view(2, 12)


def fused(family="llama"):
    model = tiny_model(family).model
    fuse_blocks(model)
    return model


def parts_of(model):
    """Return the class names of the modules whose forward was replaced."""
    return {type(module).__name__ for module in model.modules() if "forward" in vars(module)}


def gradients(model):
    """Return the gradients of a loss that weighs every logit differently."""
    logits = model(IDS).logits
    weights = torch.linspace(-1.0, 1.0, logits[0].numel()).view(logits[0].shape)
    return torch.autograd.grad((logits.log_softmax(-1) * weights).mean(), list(model.parameters()))


@pytest.mark.promise(
    "Training",
    "Fused parts of a model compute what its own code computes, up to rounding; code that differs "
    "is left alone",
)
@pytest.mark.parametrize("family", FAMILIES)
def test_fused_parts_compute_what_the_model_computes(family):
    plain, ours = tiny_model(family).model, fused(family)
    expected = plain(IDS).logits
    torch.testing.assert_close(ours(IDS).logits, expected, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS).logits, expected, atol=1e-4, rtol=1e-4)
    for found, gradient in zip(gradients(ours), gradients(plain), strict=True):
        torch.testing.assert_close(found, gradient, atol=1e-5, rtol=1e-3)


def test_a_rotary_embedding_that_rotates_the_other_way_is_left_alone():
    model = tiny_architecture("nanochat")
    expected = model(IDS).logits
    fuse_blocks(model)
    torch.testing.assert_close(model(IDS).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_norms_activations_and_rotary_embeddings_are_replaced(family):
    name = family.capitalize()
    assert parts_of(fused(family)) == {f"{name}RMSNorm", f"{name}MLP", f"{name}Attention"}


@pytest.mark.promise(
    "Training",
    "Fused parts of a model compute what its own code computes, up to rounding; code that differs "
    "is left alone",
)
def test_a_module_that_computes_something_else_keeps_its_own_code():
    assert parts_of(fused("gemma")) == {"GemmaAttention"}  # its norm adds one, its MLP has no SiLU


@pytest.mark.promise(
    "Training",
    "Fused parts of a model compute what its own code computes, up to rounding; code that differs "
    "is left alone",
)
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
    fuse_blocks(model)
    assert "forward" not in vars(model.model.norm)


@pytest.mark.promise(
    "Training",
    "Fused parts of a model compute what its own code computes, up to rounding; code that differs "
    "is left alone",
)
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


def with_adapters(family="llama"):
    """Return a model with two adapters that are both away from zero."""
    model = add_adapters(tiny_model(family), ["one", "two"], rank=3).model
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.3)
    return model


def adapted(model, *, ours, dtype=torch.float32):
    """Return the logits of the adapter `two`, and its gradients, by our code or PEFT's."""
    model = copy.deepcopy(model)
    if not ours:
        for module in model.modules():
            if isinstance(module, lora.Linear):
                del module.forward
    with activate_adapter(model, "two") as active:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = active(IDS).logits.float()
        weights = torch.linspace(-1.0, 1.0, logits[0].numel()).view(logits[0].shape)
        (logits.log_softmax(-1) * weights).mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), gradients


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma"])
def test_an_adapter_computes_what_peft_does(family):
    model = with_adapters(family)
    (logits, found), (expected, gradients) = (adapted(model, ours=ours) for ours in (True, False))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert found.keys() == gradients.keys()
    assert all(".two." in name for name in found)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3)


def test_under_autocast_an_adapter_is_as_near_to_float32_as_that_of_peft():
    exact = with_adapters()
    narrow_parameters(exact.get_base_model(), torch.bfloat16)
    exact.float()
    half = copy.deepcopy(exact)
    for name, parameter in half.named_parameters():
        if "lora_" not in name:
            parameter.data = parameter.data.bfloat16()
    (logits, gradients), (our_logits, ours), (peft_logits, peft) = (
        adapted(exact, ours=False),
        adapted(half, ours=True, dtype=torch.bfloat16),
        adapted(half, ours=False, dtype=torch.bfloat16),
    )
    assert 0 < (our_logits - logits).norm() < 1.5 * (peft_logits - logits).norm()

    def error(found):
        assert {gradient.dtype for gradient in found.values()} == {torch.float32}
        return sum((found[name] - gradients[name]).norm() ** 2 for name in gradients) ** 0.5

    assert 0 < error(ours) < 1.5 * error(peft)


@pytest.mark.parametrize("state", ["off", "merged", "both", "dropout", "learning base"])
def test_what_is_not_one_plain_adapter_on_a_frozen_layer_is_left_to_peft(state):
    model = with_adapters()
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    match state:
        case "off":
            layer.enable_adapters(enabled=False)
        case "merged":
            layer.merge(adapter_names=["one"])
        case "both":
            layer.set_adapter(["one", "two"])
        case "dropout":
            layer.lora_dropout["one"] = torch.nn.Dropout(0.5).eval()
        case "learning base":
            layer.base_layer.weight.requires_grad_(True)
    hidden = torch.randn(2, 5, 32)
    assert torch.equal(layer(hidden), lora.Linear.forward(layer, hidden))
