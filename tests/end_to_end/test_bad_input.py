"""Whatever a person gets wrong is told in one line, with an exit code that scripts can see."""

import json
import resource

import pytest
import torch

from support.forked import Forked, waltzrl_on_a_full_disk
from support.small_runs import run, save_model, save_prompts, save_recipe
from support.tiny_gguf import save_gguf
from support.tiny_models import tiny_tokenizer
from waltzrl.errors import explain


@pytest.fixture
def recipe(tmp_path):
    return save_recipe(tmp_path)


def complaint(capsys, *arguments):
    """Run a command that must fail, and return its only line on stderr."""
    assert run(*arguments) == 2
    return only_line(capsys.readouterr().err)


def only_line(text):
    said = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(said) == 1, text
    assert "Traceback" not in text
    return said[0]


def evaluation(tmp_path, *more, prompts=None):
    prompts = prompts or save_prompts(tmp_path / "test.jsonl")
    settings = ("--set", "wording=tiny", "--set", "max_new_tokens=6")
    return ("evaluate", prompts, "--out", tmp_path / "out", *settings, *more)


@pytest.mark.promise("Bad input", "A missing file: its path, and why it cannot be read")
def test_a_missing_file(tmp_path, recipe, capsys):
    arguments = ("train", recipe, "--out", tmp_path / "run")
    line = complaint(capsys, *arguments, "--set", 'data.prompts=["nowhere.jsonl"]')
    assert line == "error: cannot read nowhere.jsonl: No such file or directory"
    assert run(*arguments, "--set", "stages.joint.steps=1") == 0  # mended, it runs


@pytest.mark.promise("Bad input", "A broken line of JSON Lines: file, line, column")
def test_a_broken_line_of_json(tmp_path, capsys):
    prompts = save_prompts(tmp_path / "test.jsonl")
    prompts.write_text(prompts.read_text() + '{"prompt": "a" "label"}\n')
    line = complaint(capsys, *evaluation(tmp_path, "--model", "m", prompts=prompts))
    assert line == f"error: {prompts}:5:16: not JSON: Expecting ',' delimiter"


@pytest.mark.promise("Bad input", "An unknown key in a recipe: the key, and the nearest known one")
def test_an_unknown_key_in_a_recipe(recipe, capsys):
    recipe.write_text(recipe.read_text().replace("kl_limit", "kl_limitt"))
    line = complaint(capsys, "train", recipe)
    assert line == (
        f"error: {recipe}: unknown key 'checkpointing.kl_limitt'; did you mean "
        "'checkpointing.kl_limit'?"
    )


@pytest.mark.promise("Bad input", "A value of the wrong type: the key, what came, what is needed")
def test_a_value_of_the_wrong_type(recipe, capsys):
    line = complaint(capsys, "train", recipe, "--set", "stages.joint.steps=soon")
    assert "stages.steps: got 'soon', need a valid integer" in line


@pytest.mark.promise("Bad input", "A run directory that cannot be written: its path, and why")
def test_a_run_directory_that_cannot_be_written(tmp_path, recipe, capsys):
    (tmp_path / "file").write_text("in the way")
    line = complaint(capsys, "train", recipe, "--out", tmp_path / "file" / "run")
    assert f"cannot write {tmp_path / 'file' / 'run'}: Not a directory" in line


@pytest.mark.promise("Bad input", "A full disk: the checkpoint; the one before it stays")
@pytest.mark.xdist_group("forked")
def test_a_disk_without_room_for_a_checkpoint(tmp_path, recipe):
    out = tmp_path / "run"
    with Forked(waltzrl_on_a_full_disk, "train", recipe, "--out", out) as process:
        said = process.stderr.read().decode()
        assert process.wait(60) == 2, said
    line = only_line(said)
    assert f"cannot write {out / 'checkpoints' / 'step-000002'}" in line
    assert "free space there or choose another folder" in line
    assert list((out / "checkpoints").iterdir()) == []


@pytest.mark.promise("Bad input", "Truncated weights: the file")
def test_weights_that_were_cut_short(tmp_path, recipe, capsys):
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    line = complaint(capsys, "train", recipe, "--out", tmp_path / "run")
    assert str(weights) in line


@pytest.mark.promise(
    "Bad input",
    "A GGUF file that is cut short, or of an architecture that cannot be dequantised: the file, "
    "and both lengths or the architecture",
)
@pytest.mark.parametrize("kept", [3, 30, 20_000])
def test_a_gguf_file_that_was_cut_short(tmp_path, recipe, capsys, kept):
    file = tmp_path / "model.gguf"
    save_gguf(file)
    file.write_bytes(file.read_bytes()[:kept])
    line = complaint(capsys, "train", recipe, "--set", f"models.base={file}")
    assert line.startswith(f"error: {file}")
    line = complaint(capsys, *evaluation(tmp_path, "--conversation", file))
    assert line.startswith(f"error: {file}")


@pytest.mark.promise(
    "Training",
    "What is no whole GGUF file, cannot be dequantised, is not installed or exceeds the memory is "
    "one line",
)
@pytest.mark.promise(
    "Bad input",
    "A GGUF file that is cut short, or of an architecture that cannot be dequantised: the file, "
    "and both lengths or the architecture",
)
def test_a_gguf_file_that_cannot_be_dequantised(tmp_path, recipe, capsys, monkeypatch):
    monkeypatch.setenv("WALTZRL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    save_gguf(file, architecture="rwkv7")
    line = complaint(
        capsys, "train", recipe, "--set", f"models.base={file}", "--out", tmp_path / "run"
    )
    assert line.startswith(f"error: {file}: a GGUF file of the architecture 'rwkv7' that cannot be")
    assert not list((tmp_path / "cache").glob("gguf/*/"))


@pytest.mark.promise(
    "Training",
    "What is no whole GGUF file, cannot be dequantised, is not installed or exceeds the memory is "
    "one line",
)
@pytest.mark.promise(
    "Bad input",
    "A package that is not installed, or does not hold one GGUF file: the package, and what to "
    "install or what it holds",
)
def test_a_package_that_is_not_installed(recipe, tmp_path, capsys):
    line = complaint(
        capsys, "train", recipe, "--set", "models.base=package:nowhere", "--out", tmp_path / "run"
    )
    assert line == ("error: package:nowhere: there is no such package here: pip install nowhere")


@pytest.mark.promise(
    "Training",
    "What is no whole GGUF file, cannot be dequantised, is not installed or exceeds the memory is "
    "one line",
)
@pytest.mark.promise(
    "Bad input",
    "A model larger than the memory; memory that runs out: needed and free; what was saved is kept",
)
def test_a_model_larger_than_the_memory(tmp_path, recipe, capsys):
    with (tmp_path / "model" / "model.safetensors").open("r+b") as file:
        file.truncate(2**40)  # a sparse file of 1 TB
    line = complaint(capsys, "train", recipe, "--out", tmp_path / "run")
    assert f"{tmp_path / 'model'} needs 1,099.5 GB of memory or more, " in line


@pytest.mark.promise(
    "Training",
    "What is no whole GGUF file, cannot be dequantised, is not installed or exceeds the memory is "
    "one line",
)
@pytest.mark.promise(
    "Bad input",
    "A model larger than the memory; memory that runs out: needed and free; what was saved is kept",
)
def test_memory_that_is_refused_while_a_command_runs(tmp_path, recipe, capsys):
    size = "models.base={hidden=400000,layers=1,heads=2,context=64}"  # 640 GB a matrix
    line = complaint(capsys, "train", recipe, "--set", size, "--out", tmp_path / "run")
    assert line.startswith("error: out of memory; what was saved is kept. End other programs, or")


def test_weights_that_memory_has_no_room_to_map(tmp_path):
    file = tmp_path / "weights"
    with file.open("wb") as sparse:
        sparse.truncate(2**40)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**39, before[1]))  # this process is smaller
    try:
        with pytest.raises(RuntimeError, match="unable to mmap") as refused:
            torch.UntypedStorage.from_file(str(file), shared=False, nbytes=2**40)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert str(explain(refused.value)).startswith("out of memory; what was saved is kept.")


@pytest.mark.promise(
    "Bad input", "A tokenizer without a chat template: the model, and how to add one"
)
def test_a_tokenizer_without_chat_template(tmp_path, recipe, capsys):
    tokenizer = tiny_tokenizer(chat_template=None)
    (tmp_path / "model" / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(tmp_path / "model")
    line = complaint(capsys, "train", recipe, "--out", tmp_path / "run")
    assert "has no chat template" in line
    line = complaint(capsys, *evaluation(tmp_path, "--conversation", tmp_path / "model"))
    assert "has no chat template" in line


@pytest.mark.promise("Bad input", "A prompt longer than the context: the prompt, and both lengths")
def test_a_prompt_longer_than_the_context(tmp_path, capsys):
    model, prompts = save_model(tmp_path / "model"), save_prompts(tmp_path / "test.jsonl")
    prompts.write_text(prompts.read_text() + json.dumps({"prompt": "bread " * 200}) + "\n")
    line = complaint(
        capsys,
        *evaluation(tmp_path, "--conversation", model, "--pattern", "base", prompts=prompts),
    )
    assert line.startswith("error: 1 of 5 collaborations failed; first: test/5: ")
    assert "the model's context has 128" in line


@pytest.mark.promise(
    "Bad input", "A port that refuses connections: host and port; the other rows are kept"
)
def test_a_port_that_refuses(tmp_path, capsys):
    line = complaint(
        capsys,
        *evaluation(tmp_path, "--server", "http://127.0.0.1:1/v1", "--model", "m"),
        *("--pattern", "base"),
    )
    assert line.startswith("error: 4 of 4 collaborations failed; first: test/1: 127.0.0.1:1: ")


@pytest.mark.promise("Bad input", "An empty benchmark: the file, and what it should hold")
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_benchmark(tmp_path, capsys, content):
    prompts = tmp_path / "empty.jsonl"
    prompts.write_text(content)
    line = complaint(capsys, *evaluation(tmp_path, "--model", "m", prompts=prompts))
    assert line == f"error: {prompts} holds no prompts; give a file with one JSON object per line"
