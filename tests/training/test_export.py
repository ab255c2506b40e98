import gc
import json
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

from support.tiny_roles import activate, adapters, full_models, model
from waltzrl.agents import load_wording, pair_wording, wording_name
from waltzrl.agents.exports import verify_export
from waltzrl.errors import CheckpointError, InputError
from waltzrl.policies.weights import base_digest, narrow_parameters
from waltzrl.training.checkpoints import export_roles, weights_digest

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])
WORDING = load_wording("short")
NAMES = {
    "conversation": "waltzrl_conversation_stage2",
    "feedback": "waltzrl_feedback_stage2",
}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "export"


@pytest.mark.parametrize("layout", [full_models, adapters])
def test_each_exported_agent_loads_and_replies_as_the_trained_one(tmp_path, layout):
    roles = layout(seed=0)
    before = weights_digest(roles["feedback"].model)
    export_roles(roles, tmp_path / "export", WORDING)
    for name, role in roles.items():
        folder = tmp_path / "export" / NAMES[name]
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        activate(role, name)
        torch.testing.assert_close(loaded(IDS).logits, role.model(IDS).logits)
        options = {"max_new_tokens": 8, "do_sample": False}
        ours = role.model.generate(input_ids=IDS, **options)
        assert loaded.generate(input_ids=IDS, **options).tolist() == ours.tolist()
        assert loaded.generation_config.eos_token_id == 1
        assert AutoTokenizer.from_pretrained(folder).chat_template
    assert weights_digest(roles["feedback"].model) == before


def test_two_adapters_become_two_different_models(tmp_path):
    roles = adapters(seed=0)
    export_roles(roles, tmp_path / "export", WORDING)
    first, second = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "export" / name) for name in NAMES.values()
    )
    assert weights_digest(first) != weights_digest(second)


@pytest.mark.promise(
    "Training",
    "Exported adapters are PEFT's, with the hash of their base, and training continues from them, "
    "each its own reference; a run that was cut off ends with the same weights",
)
def test_exported_adapters_are_loaded_by_peft_and_are_the_trained_ones(folder):
    roles = adapters(seed=0)
    export_roles(roles, folder, WORDING)
    for name, role in roles.items():
        base = AutoModelForCausalLM.from_pretrained(folder / "base")
        with warnings.catch_warnings():  # PEFT uses a deprecated name of transformers
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            loaded = PeftModel.from_pretrained(base, folder / "adapters" / name)
        activate(role, name)
        assert torch.equal(loaded(IDS).logits, role.model(IDS).logits)
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert {
        "adapters/conversation/adapter_config.json",
        "adapters/feedback/adapter_model.safetensors",
        "base/tokenizer.json",
    } <= set(listed)


@pytest.mark.promise(
    "Training",
    "Exported adapters are PEFT's, with the hash of their base, and training continues from them, "
    "each its own reference; a run that was cut off ends with the same weights",
)
def test_a_base_that_is_elsewhere_is_named_with_its_hash_and_not_copied(folder):
    roles = {
        name: replace(role, base="somewhere/a-base") for name, role in adapters(seed=0).items()
    }
    export_roles(roles, folder, WORDING)
    assert not (folder / "base").exists()
    adapter = folder / "adapters" / "feedback"
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "somewhere/a-base"
    with safe_open(adapter / "adapter_model.safetensors", "pt") as weights:
        assert weights.metadata()["base_sha256"] == base_digest(model(seed=0))


@pytest.mark.promise(
    "Do no harm",
    "A pair is served with the prompts that it was trained with, and a package can bring one",
)
@pytest.mark.parametrize("name", ["plain", "tiny", "short", "labels_first"])
def test_an_export_says_with_which_prompts_its_agents_were_trained(folder, name):
    export_roles(full_models(seed=0), folder, load_wording(name))
    own = pair_wording(folder)
    assert own == str(folder / "wording")
    assert load_wording(own) == load_wording(name)
    assert wording_name(own) == name  # so a calibration with the named set is of the same agents
    assert "wording/review.md" in json.loads((folder / "manifest.json").read_text())["files"]
    shutil.rmtree(own)
    assert pair_wording(folder) == "plain"


def test_two_full_models_have_no_adapters(folder):
    export_roles(full_models(seed=0), folder, WORDING)
    assert not (folder / "adapters").exists()
    assert not (folder / "base").exists()


class Watched(dict):
    """Roles that count the models that are alive each time that one of them was exported."""

    def __init__(self, roles):
        super().__init__(roles)
        self.alive = []

    def items(self):
        for pair in super().items():
            yield pair
            self.alive.append(models())


def models():
    return sum(type(each) is Qwen2ForCausalLM for each in gc.get_objects())


def test_adapters_are_merged_one_after_the_other(folder):
    gc.collect()
    roles = Watched(adapters(seed=0))
    before = models()
    export_roles(roles, folder, WORDING)
    assert set(roles.alive) == {before}


@pytest.mark.promise("Training", "Merging an adapter loses nothing")
def test_a_change_too_small_for_bfloat16_survives_merging(folder):
    roles = adapters(seed=0)
    shared = roles["feedback"].model
    narrow_parameters(shared.get_base_model(), torch.bfloat16)
    layer = shared.get_base_model().model.layers[0].self_attn.q_proj
    (up, down), base = (layer.lora_B["feedback"], layer.lora_A["feedback"]), layer.base_layer.weight
    for half in (up, down):
        half.weight.data = torch.full_like(half.weight, 1e-3, dtype=torch.float32)
    change = layer.scaling["feedback"] * up.weight @ down.weight
    assert (base + change.bfloat16() == base).float().mean() > 0.5  # lost where it is rounded
    export_roles(roles, folder, WORDING)
    merged = AutoModelForCausalLM.from_pretrained(folder / NAMES["feedback"])
    found = merged.model.layers[0].self_attn.q_proj.weight
    assert found.dtype == torch.float32
    torch.testing.assert_close(found - base.float(), change, rtol=1e-3, atol=1e-8)


def test_the_manifest_lists_every_file_and_the_export_verifies(tmp_path):
    roles = full_models(seed=0)
    folder = tmp_path / "export"
    export_roles(roles, folder, WORDING)
    verify_export(folder)
    listed = set(json.loads((folder / "manifest.json").read_text())["files"])
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert files == listed | {"manifest.json"}
    for name in NAMES.values():
        needed = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
        assert {f"{name}/{file}" for file in (*needed, "chat_template.jinja")} <= listed
        assert not [file for file in listed if file.endswith(".pt")]


def test_an_altered_export_is_named(tmp_path):
    roles = full_models(seed=0)
    export_roles(roles, tmp_path / "export", WORDING)
    weights = tmp_path / "export" / NAMES["feedback"] / "model.safetensors"
    shutil.copy(tmp_path / "export" / NAMES["conversation"] / "model.safetensors", weights)
    with pytest.raises(CheckpointError, match=r"waltzrl_feedback_stage2/model\.safetensors was"):
        verify_export(tmp_path / "export")


def test_an_export_replaces_an_export_and_nothing_else(tmp_path):
    roles = full_models(seed=0)
    export_roles(roles, tmp_path / "export", WORDING)
    (tmp_path / "export" / "stray").touch()
    export_roles(roles, tmp_path / "export", WORDING)
    assert not (tmp_path / "export" / "stray").exists()
    with pytest.raises(InputError, match="is not an export"):
        export_roles(roles, tmp_path, WORDING)
