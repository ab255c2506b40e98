import logging
import math
import shutil
import struct
import sys
import threading

import pytest
import torch

from support.tiny_gguf import save_gguf
from support.tiny_models import END_ID, tiny_tokenizer
from waltzrl.errors import CheckpointError, InputError
from waltzrl.foundation.files import hold_lock
from waltzrl.policies.gguf import find_gguf, short_name
from waltzrl.policies.weights import base_digest, load_causal_lm, load_config

IDS = torch.arange(6, 30)[None]
TURNS = [{"role": "user", "content": "How do I bake <|end|> bread?"}]


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A GGUF file, and a cache that is empty."""
    monkeypatch.setenv("WALTZRL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "Tiny-Instruct.Q4_1.gguf"
    save_gguf(path)
    return path


@pytest.fixture
def package(file, monkeypatch):
    """An installed package that holds the file, and whose own dependencies are missing."""
    folder = file.parent / "site" / "tiny_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import a_package_that_is_not_here\n")
    file.rename(folder / file.name)
    monkeypatch.syspath_prepend(folder.parent)
    return folder


@pytest.mark.promise(
    "Training",
    "A GGUF file, alone or in a package that is not imported, is dequantised once, by one "
    "process, into the model and tokenizer that it holds, and named by its quantisation in plan, "
    "export, evaluation and gateway",
)
def test_a_gguf_file_is_dequantised_into_the_model_and_the_tokenizer_that_it_holds(file):
    expected = save_gguf(file)
    loaded = load_causal_lm(str(file), "cpu")
    exact = dict(expected.model.named_parameters())
    assert all(torch.equal(own, exact.pop(name)) for name, own in loaded.model.named_parameters())
    assert not exact
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(IDS).logits, expected.model(IDS).logits)
    rendered, same = (
        tokenizer.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)
        for tokenizer in (loaded.tokenizer, tiny_tokenizer())
    )
    assert rendered == same
    assert loaded.tokenizer.decode(rendered) == tiny_tokenizer().decode(rendered)
    assert loaded.end_ids == {END_ID}
    assert not loaded.model.training


@pytest.mark.promise(
    "Training",
    "A GGUF file, alone or in a package that is not imported, is dequantised once, by one "
    "process, into the model and tokenizer that it holds, and named by its quantisation in plan, "
    "export, evaluation and gateway",
)
def test_it_is_dequantised_once_and_named_by_its_quantisation(file, caplog):
    with caplog.at_level(logging.INFO):
        first, second = (load_causal_lm(str(file), "cpu") for _ in range(2))
    messages = [record.message for record in caplog.records]
    assert [message.partition(" ")[0] for message in messages].count("dequantising") == 1
    assert messages.count(f"{file} is Tiny-Instruct, Q4_1, dequantised") == 2
    assert base_digest(first.model) == base_digest(second.model)
    title = "Tiny-Instruct, Q4_1, dequantised"
    assert second.model.config.name_or_path == title == find_gguf(str(file)).title
    assert second.source == str(file)


def test_another_file_of_the_same_name_is_not_taken_for_it(file):
    first = base_digest(load_causal_lm(str(file), "cpu").model)
    save_gguf(file, seed=1)
    assert base_digest(load_causal_lm(str(file), "cpu").model) != first


@pytest.mark.promise(
    "Training",
    "A GGUF file, alone or in a package that is not imported, is dequantised once, by one "
    "process, into the model and tokenizer that it holds, and named by its quantisation in plan, "
    "export, evaluation and gateway",
)
def test_whoever_needs_it_meanwhile_waits_for_the_one_who_dequantises(file, tmp_path, monkeypatch):
    load_causal_lm(str(file), "cpu")
    folder = find_gguf(str(file)).cached
    made = tmp_path / "made"
    shutil.move(folder, made)
    inode, second = (made / "model.safetensors").stat().st_ino, []
    waiting = threading.Thread(target=lambda: second.append(load_causal_lm(str(file), "cpu")))
    with hold_lock(folder.with_name(f"{folder.name}.lock")):
        waiting.start()
        shutil.move(made, folder)
    waiting.join()
    assert second[0].source == str(file)
    assert (folder / "model.safetensors").stat().st_ino == inode
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


@pytest.mark.promise(
    "Training",
    "A GGUF file, alone or in a package that is not imported, is dequantised once, by one "
    "process, into the model and tokenizer that it holds, and named by its quantisation in plan, "
    "export, evaluation and gateway",
)
def test_a_package_is_searched_without_being_imported(package):
    loaded = load_causal_lm("package:tiny-package", "cpu")
    assert loaded.source == "package:tiny-package"
    assert short_name("package:tiny_package") == "Tiny-Instruct.Q4_1"
    assert "tiny_package" not in sys.modules


def test_its_config_is_read_without_dequantising_it(file):
    config = load_config(str(file))
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == ("llama", 32, 2)
    assert not find_gguf(str(file)).cached.exists()


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B-Instruct", "models/gguf", "agents.d"])
def test_other_names_mean_no_gguf_file(name):
    assert find_gguf(name) is None


@pytest.mark.promise(
    "Training",
    "What is no whole GGUF file, cannot be dequantised, is not installed or exceeds the memory is "
    "one line",
)
@pytest.mark.parametrize("kept", [0, 3, 4, 20, 500, 20_000, -1])
def test_a_file_that_was_cut_short_is_named(file, kept):
    whole = file.read_bytes()
    file.write_bytes(whole[:kept])
    with pytest.raises(CheckpointError, match=rf"{file.name}.*(cut short|is no GGUF)"):
        find_gguf(str(file))


@pytest.mark.parametrize(
    ("key", "kind", "number"),
    [
        ("general.alignment", 4, struct.pack("<I", 0)),
        ("general.alignment", 6, struct.pack("<f", math.inf)),
        ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 4, 2**64 - 1)),
    ],
    ids=["no alignment", "infinite alignment", "endless list"],
)
def test_numbers_that_no_file_has_are_damage(tmp_path, key, kind, number):
    entry = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + number
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry * 2)
    with pytest.raises(CheckpointError, match=r"damaged\.gguf: .* damaged \(.*; install or"):
        find_gguf(str(path))


@pytest.mark.promise(
    "Training",
    "What is no whole GGUF file, cannot be dequantised, is not installed or exceeds the memory is "
    "one line",
)
def test_a_tensor_of_an_unknown_type_is_named(file):
    kind = (3).to_bytes(4, "little")
    whole = file.read_bytes()
    at = whole.index(kind, whole.index(b"token_embd.weight"))
    file.write_bytes(whole[:at] + (77).to_bytes(4, "little") + whole[at + 4 :])
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is of type 77, which cannot be"):
        find_gguf(str(file))


@pytest.mark.promise(
    "Bad input",
    "A package that is not installed, or does not hold one GGUF file: the package, and what to "
    "install or what it holds",
)
def test_a_package_without_a_gguf_file_or_with_two_is_named(package):
    shutil.copy(package / "Tiny-Instruct.Q4_1.gguf", package / "other.gguf")
    with pytest.raises(InputError, match=r"holds Tiny-Instruct\.Q4_1\.gguf, other\.gguf; name a"):
        find_gguf("package:tiny_package")
    for file in package.glob("*.gguf"):
        file.unlink()
    with pytest.raises(InputError, match="package:tiny_package: need a package with one GGUF file"):
        find_gguf("package:tiny_package")
