"""A model in one GGUF file as base: trained as a pair, exported, measured, continued and served."""

import asyncio
import json
import warnings
from shutil import copytree
from types import SimpleNamespace

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from support.small_gateway import chat
from support.small_runs import run, save_prompts, save_recipe
from support.tiny_gguf import save_gguf
from waltzrl.errors import CheckpointError
from waltzrl.gateway.opening import open_gateway
from waltzrl.gateway.settings import load_gateway
from waltzrl.policies.gguf import find_gguf
from waltzrl.policies.weights import base_digest, load_causal_lm, load_config

IDS = torch.tensor([[7, 8, 9, 10, 11]])
TITLE = "Tiny, Q4_1, dequantised"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Train two adapters on a GGUF file for two steps, and export them."""
    folder = tmp_path_factory.mktemp("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALTZRL_CACHE", str(folder / "cache"))
        file, recipe = folder / "Tiny.Q4_1.gguf", save_recipe(folder)
        base = save_gguf(file)
        settings = ("--set", f"models.base={file}", "--set", "models.layout=adapters")
        steps = ("--set", "stages.feedback.steps=0", "--set", "stages.joint.steps=2")
        paths = ("--out", folder / "run", "--export", folder / "agents")
        assert run("train", recipe, *settings, *steps, *paths) == 0
        yield SimpleNamespace(
            folder=folder, file=file, base=base, recipe=recipe, agents=folder / "agents"
        )


@pytest.mark.promise(
    "Training",
    "A GGUF file, alone or in a package that is not imported, is dequantised once, by one "
    "process, into the model and tokenizer that it holds, and named by its quantisation in plan, "
    "export, evaluation and gateway",
)
def test_its_plan_and_its_export_name_it(pair, capsys):
    settings = ("--set", f"models.base={pair.file}", "--set", "models.layout=adapters")
    assert run("train", pair.recipe, *settings, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["base"] == f"{pair.file}: {TITLE}"
    assert json.loads((pair.agents / "manifest.json").read_text())["base"] == TITLE
    merged = json.loads((pair.agents / "waltzrl_feedback_stage2" / "config.json").read_text())
    assert merged["waltzrl_base"] == TITLE


@pytest.mark.promise(
    "Training",
    "Adapters on it name it and its hash, PEFT loads them, and they are refused on another",
)
def test_its_adapters_name_it_by_place_and_hash_and_peft_loads_them(pair):
    folder = pair.agents / "adapters" / "feedback"
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(pair.file)
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as weights:
        assert weights.metadata()["base_sha256"] == base_digest(pair.base.model)
    base = AutoModelForCausalLM.from_pretrained(find_gguf(str(pair.file)).cached)
    with warnings.catch_warnings():  # PEFT uses a deprecated name of transformers
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        adapted = PeftModel.from_pretrained(base, folder)
    merged = AutoModelForCausalLM.from_pretrained(pair.agents / "waltzrl_feedback_stage2")
    with torch.no_grad():
        assert torch.allclose(adapted(IDS).logits, merged(IDS).logits, atol=1e-4)


def test_an_adapter_alone_is_the_model_that_its_export_merged(pair):
    adapter = pair.agents / "adapters" / "feedback"
    loaded, merged = (
        load_causal_lm(str(folder), "cpu")
        for folder in (adapter, pair.agents / "waltzrl_feedback_stage2")
    )
    assert not isinstance(loaded.model, PeftModel)
    assert loaded.source == str(adapter)
    assert load_config(str(adapter)).to_dict() == load_config(str(pair.file)).to_dict()
    with torch.no_grad():
        assert torch.allclose(loaded.model(IDS).logits, merged.model(IDS).logits, atol=1e-5)
        assert not torch.allclose(loaded.model(IDS).logits, pair.base.model(IDS).logits, atol=1e-5)


def test_an_adapter_alone_of_another_base_or_of_none_is_refused(pair, tmp_path):
    other = tmp_path / "Other.Q4_1.gguf"
    save_gguf(other, seed=1)
    adapter = tmp_path / "adapter"
    copytree(pair.agents / "adapters" / "feedback", adapter)
    file = adapter / "adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"base_model_name_or_path": str(other)}))
    with pytest.raises(CheckpointError, match=f"was trained on another base than {other} "):
        load_causal_lm(str(adapter), "cpu")
    file.write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(CheckpointError, match="names no base_model_name_or_path; give the merged"):
        load_causal_lm(str(adapter), "cpu")
    file.write_text("[")
    with pytest.raises(CheckpointError, match="names no base_model_name_or_path"):
        load_config(str(adapter))


@pytest.mark.promise(
    "Training",
    "Adapters on it name it and its hash, PEFT loads them, and they are refused on another",
)
@pytest.mark.promise("Bad input", "Adapters of another base: the adapter, and both hashes")
def test_its_pair_goes_on_and_on_another_base_it_is_refused(pair, tmp_path, capsys):
    steps = ("--set", "stages.feedback.steps=0", "--set", "stages.joint.steps=1")
    models = f'models={{pair="{pair.agents}",layout="adapters"}}'
    first = ("--out", tmp_path / "first", "--set", models)
    assert run("train", pair.recipe, *first, *steps) == 0
    other = tmp_path / "Other.Q4_1.gguf"
    save_gguf(other, seed=1)
    second = ("--out", tmp_path / "second", "--set", models, "--set", f"models.base={other}")
    assert run("train", pair.recipe, *second, *steps) == 2
    error = capsys.readouterr().err
    assert f"was trained on another base than {other} (SHA-256 " in error
    assert error.count("error: ") == 1


@pytest.mark.promise(
    "Training",
    "A GGUF file, alone or in a package that is not imported, is dequantised once, by one "
    "process, into the model and tokenizer that it holds, and named by its quantisation in plan, "
    "export, evaluation and gateway",
)
def test_an_evaluation_names_it_with_its_hash(pair, tmp_path):
    prompts, out = save_prompts(tmp_path / "test.jsonl"), tmp_path / "out"
    settings = ("--set", "wording=tiny", "--set", "max_new_tokens=4")
    name = ("--conversation", pair.file, "--pattern", "base")
    assert run("evaluate", prompts, "--out", out, *settings, *name) == 0
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    digest = find_gguf(str(pair.file)).digest[:12]
    assert {row["agents"].partition(", wording")[0] for row in rows} == {
        f"conversation {TITLE}@{digest}"
    }


@pytest.mark.promise(
    "Training",
    "A GGUF file, alone or in a package that is not imported, is dequantised once, by one "
    "process, into the model and tokenizer that it holds, and named by its quantisation in plan, "
    "export, evaluation and gateway",
)
def test_a_gateway_serves_it(pair):
    async def ask():
        upstream = {"folder": str(pair.file), "max_new_tokens": 4}
        async with open_gateway(load_gateway(None, {"upstream": upstream}, (), {})) as app:
            return await chat(app, model="Tiny.Q4_1", max_tokens=4)

    answer = asyncio.run(ask())
    assert answer.status == 200
    assert answer.json["usage"]["completion_tokens"] == 4
