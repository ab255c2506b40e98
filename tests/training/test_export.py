import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.tiny_roles import activate, adapters, full_models
from waltzrl.errors import CheckpointError, InputError
from waltzrl.training.checkpoints import export_roles, verify_export, weights_digest

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])
NAMES = {
    "conversation": "waltzrl_conversation_stage2",
    "feedback": "waltzrl_feedback_stage2",
}


@pytest.mark.parametrize("layout", [full_models, adapters])
def test_each_exported_agent_loads_and_replies_as_the_trained_one(tmp_path, layout):
    roles = layout(seed=0)
    before = weights_digest(roles["feedback"].model)
    export_roles(roles, tmp_path / "export")
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
    export_roles(roles, tmp_path / "export")
    first, second = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "export" / name) for name in NAMES.values()
    )
    assert weights_digest(first) != weights_digest(second)


def test_the_manifest_lists_every_file_and_the_export_verifies(tmp_path):
    roles = full_models(seed=0)
    folder = tmp_path / "export"
    export_roles(roles, folder)
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
    export_roles(roles, tmp_path / "export")
    weights = tmp_path / "export" / NAMES["feedback"] / "model.safetensors"
    shutil.copy(tmp_path / "export" / NAMES["conversation"] / "model.safetensors", weights)
    with pytest.raises(CheckpointError, match=r"waltzrl_feedback_stage2/model\.safetensors was"):
        verify_export(tmp_path / "export")


def test_an_export_replaces_an_export_and_nothing_else(tmp_path):
    roles = full_models(seed=0)
    export_roles(roles, tmp_path / "export")
    (tmp_path / "export" / "stray").touch()
    export_roles(roles, tmp_path / "export")
    assert not (tmp_path / "export" / "stray").exists()
    with pytest.raises(InputError, match="is not an export"):
        export_roles(roles, tmp_path)
