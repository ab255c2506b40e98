import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from support.tiny_models import END_ID, STOP_ID, tiny_model, tiny_tokenizer
from waltzrl.agents.exports import ROLES
from waltzrl.errors import CheckpointError, InputError
from waltzrl.policies.weights import (
    _first_line,
    activate_adapter,
    add_adapters,
    load_causal_lm,
    map_causal_lm,
    narrow_parameters,
    role_parameters,
    save_adapter,
)

IDS = torch.arange(6, 30)[None]


@pytest.fixture
def folder(tmp_path):
    """A saved checkpoint."""
    causal_lm = tiny_model("qwen3")
    causal_lm.model.save_pretrained(tmp_path)
    causal_lm.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def logits(model, adapter=None):
    with activate_adapter(model, adapter) as active, torch.no_grad():
        return active(IDS).logits


def stirred(rank=4):
    """Make a base with two adapters, neither of which is still zero."""
    shared = add_adapters(tiny_model(), ROLES, rank=rank)
    torch.manual_seed(1)
    for name, parameter in shared.model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_()
    return shared.model


def test_a_saved_model_is_loaded_as_it_was(folder, device):
    loaded = load_causal_lm(str(folder), device)
    expected = logits(tiny_model("qwen3").model)
    torch.testing.assert_close(logits(loaded.model.cpu()), expected)
    assert not loaded.model.training
    assert loaded.tokenizer.chat_template


def test_a_model_is_loaded_in_the_dtype_asked_for(folder):
    assert load_causal_lm(str(folder), "cpu", torch.bfloat16).model.dtype == torch.bfloat16


@pytest.mark.promise(
    "Training",
    "Weights in this process are stored transposed on a CPU, saved as they were, and continue "
    "from a checkpoint with another layout",
)
def test_weights_on_a_cpu_are_stored_transposed_and_saved_as_they_were(folder, tmp_path):
    loaded = load_causal_lm(str(folder), "cpu").model
    assert loaded.model.layers[0].mlp.up_proj.weight.stride(0) == 1
    assert loaded.model.embed_tokens.weight.stride(1) == 1
    loaded.save_pretrained(tmp_path / "again")
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_every_end_of_turn_token_counts():
    assert tiny_model().end_ids == {END_ID, STOP_ID}


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_a_mapped_model_has_the_weights_as_stored_and_the_buffers_of_a_whole_one(tmp_path, family):
    stored = tiny_model(family)
    exact = dict(stored.model.named_buffers())
    stored.model.to(torch.bfloat16).save_pretrained(tmp_path)
    stored.tokenizer.save_pretrained(tmp_path)
    mapped, whole = map_causal_lm(str(tmp_path)), load_causal_lm(str(tmp_path), "cpu")
    assert (mapped.model.dtype, mapped.model.config.dtype) == (torch.bfloat16, torch.float32)
    assert [n for n, _ in mapped.model.named_buffers()] == list(exact)
    for name, buffer in whole.model.named_buffers():
        assert torch.equal(dict(mapped.model.named_buffers())[name], buffer)
    narrow_parameters(mapped.model, torch.float32)
    torch.testing.assert_close(logits(mapped.model), logits(whole.model))


@pytest.mark.parametrize("kept", [0, 4, 5000])
def test_truncated_weights_name_the_file(folder, kept):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .* truncated"):
        load_causal_lm(str(folder), "cpu")


def test_missing_weights_name_the_file(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_causal_lm(str(folder), "cpu")


def test_weights_that_lack_a_layer_are_not_made_up(folder):
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"missing weights: .*layers\.0\.mlp"):
        load_causal_lm(str(folder), "cpu")


def test_weights_of_another_config_are_reported(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    with pytest.raises(CheckpointError, match="no causal language model could be loaded"):
        load_causal_lm(str(folder), "cpu")


def test_an_error_without_words_is_told_by_its_kind():
    errors = [NotImplementedError(), ValueError(" \n"), OSError("no weights\nhere")]
    assert [_first_line(error) for error in errors] == [
        "NotImplementedError",
        "ValueError",
        "no weights",
    ]


def test_a_folder_without_a_model_is_reported(tmp_path):
    with pytest.raises(CheckpointError, match="no causal language model"):
        load_causal_lm(str(tmp_path), "cpu")


def test_narrow_weights_keep_the_rotary_frequencies_exact():
    model, exact = tiny_model("llama").model, dict(tiny_model("llama").model.named_buffers())
    narrow_parameters(model, torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert exact
    assert all(torch.equal(buffer, exact[name]) for name, buffer in model.named_buffers())


def test_an_adapters_own_tokenizer_is_taken_with_its_chat_template(folder):
    shared = add_adapters(load_causal_lm(str(folder), "cpu"), ROLES[:1])
    save_adapter(shared.model, ROLES[0], folder)
    adapter = folder / ROLES[0]
    base_template = shared.tokenizer.chat_template
    assert load_causal_lm(str(adapter), "cpu").tokenizer.chat_template == base_template
    tiny_tokenizer("{{ messages[0].content }}").save_pretrained(adapter)
    own = load_causal_lm(str(adapter), "cpu").tokenizer.chat_template
    assert own == "{{ messages[0].content }}"
    (adapter / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="the adapter's tokenizer could not be loaded"):
        load_causal_lm(str(adapter), "cpu")


def test_adapters_differ_and_the_base_stays_exact():
    model = stirred()
    base = logits(tiny_model().model)
    conversation, feedback = logits(model, "conversation"), logits(model, "feedback")
    assert torch.equal(logits(model), base)
    assert not torch.allclose(conversation, base, atol=0.1)
    assert not torch.allclose(conversation, feedback, atol=0.1)


def test_fresh_adapters_change_nothing():
    shared = add_adapters(tiny_model(), ROLES, rank=2).model
    assert torch.equal(logits(shared, "feedback"), logits(tiny_model().model))


def test_a_role_learns_its_own_adapter_and_nothing_else():
    model = stirred()
    with activate_adapter(model, "feedback") as active:
        active(IDS).logits.sum().backward()
    touched = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert touched == {name for name, _ in role_parameters(model, "feedback")}
    assert all(parameter.requires_grad for _, parameter in role_parameters(model, "conversation"))


def test_the_adapter_that_was_active_is_active_again():
    model = stirred()
    for role in ("feedback", None):
        with activate_adapter(model, role):
            pass
        assert model.active_adapter == "conversation"
        assert all(p.requires_grad for _, p in role_parameters(model, "feedback"))


def test_a_full_model_learns_every_weight():
    model = tiny_model().model
    assert role_parameters(model, None) == list(model.named_parameters())


@pytest.mark.parametrize("make", [stirred, lambda: tiny_model().model])
def test_an_unknown_adapter_is_reported(make):
    with pytest.raises(InputError, match="'critic'"), activate_adapter(make(), "critic"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/maps")
def test_a_loaded_model_does_not_keep_its_file_in_memory(folder):
    loaded = load_causal_lm(str(folder), "cpu")
    assert str(folder) not in Path("/proc/self/maps").read_text()
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        mapped = file.get_tensor("model.embed_tokens.weight")
        assert str(folder) in Path("/proc/self/maps").read_text()  # as without a copy
        assert torch.equal(loaded.model.get_input_embeddings().weight, mapped)
