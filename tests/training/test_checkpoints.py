import resource
from contextlib import contextmanager

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.tiny_roles import adapters, full_models, learn
from waltzrl.errors import CheckpointError, InputError
from waltzrl.policies.weights import store_transposed
from waltzrl.training.checkpoints import (
    latest_good,
    load_checkpoint,
    prune_checkpoints,
    read_state,
    save_checkpoint,
    weights_digest,
)


@pytest.fixture(autouse=True)
def one_thread():
    """Bit-identical results are promised for a fixed number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def digests(roles):
    return {name: weights_digest(role.model) for name, role in roles.items()}


def saved(folder, step=1):
    return save_checkpoint(folder, step, full_models(seed=step), {})


@contextmanager
def full_disk(largest_file_bytes):
    """Let no file grow beyond this size, as a disk without space would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_keeps_the_numbers_that_later_steps_need(tmp_path):
    path = save_checkpoint(tmp_path, 1, {}, {"unsafe": 0.1 + 0.2})
    assert read_state(path) == {"unsafe": 0.1 + 0.2}


@pytest.mark.parametrize("layout", [full_models, adapters])
def test_a_resumed_run_is_bit_identical_to_an_uninterrupted_one(tmp_path, layout):
    roles = layout(seed=0)
    learn(roles, range(2))
    path = save_checkpoint(tmp_path, 2, roles, {})
    learn(roles, range(2, 5))

    # the same base, as after a restart, but other weights and optimisers
    again = layout(seed=0)
    learn(again, range(99, 100))
    load_checkpoint(path, again)
    learn(again, range(2, 5))
    assert digests(again) == digests(roles)


@pytest.mark.promise(
    "Training",
    "Weights in this process are stored transposed on a CPU, saved as they were, and continue "
    "from a checkpoint with another layout",
)
def test_a_checkpoint_of_weights_in_another_memory_layout_continues_alike(tmp_path):
    roles, again = full_models(seed=0), full_models(seed=0)
    for role in again.values():
        store_transposed(role.model)
    learn(roles, range(2))
    load_checkpoint(save_checkpoint(tmp_path, 2, roles, {}), again)
    learn(roles, range(2, 5))
    learn(again, range(2, 5))
    for name, role in roles.items():
        torch.testing.assert_close(again[name].model.state_dict(), role.model.state_dict())


def test_the_digest_sees_one_changed_bit():
    model = full_models(seed=0)["conversation"].model
    before = weights_digest(model)
    assert before == weights_digest(full_models(seed=0)["conversation"].model)
    weight = model.model.layers[1].mlp.up_proj.weight
    weight.data.view(torch.int32)[0, 0] ^= 1
    assert weights_digest(model) != before


def test_a_saved_role_is_a_hugging_face_folder(tmp_path):
    roles = full_models(seed=3)
    path = save_checkpoint(tmp_path, 120, roles, {})
    assert path.name == "step-000120"
    model = AutoModelForCausalLM.from_pretrained(path / "feedback")
    assert weights_digest(model) == weights_digest(roles["feedback"].model)
    text = AutoTokenizer.from_pretrained(path / "feedback").apply_chat_template(
        [{"role": "user", "content": "how"}], tokenize=False
    )
    assert text == "user: how<end>"


def test_a_saved_adapter_is_a_peft_folder(tmp_path):
    path = save_checkpoint(tmp_path, 1, adapters(seed=3), {})
    inside = {entry.name for entry in (path / "feedback").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= inside
    assert "model.safetensors" not in inside


def test_a_frozen_role_has_no_optimizer_and_cannot_learn_on(tmp_path):
    roles = full_models(seed=0)
    frozen = {
        name: type(role)(model=role.model, tokenizer=role.tokenizer) for name, role in roles.items()
    }
    path = save_checkpoint(tmp_path, 1, frozen, {})
    assert not (path / "conversation" / "optimizer.safetensors").exists()
    load_checkpoint(path, frozen)
    with pytest.raises(CheckpointError, match="conversation was frozen"):
        load_checkpoint(path, roles)


def test_a_checkpoint_of_other_roles_is_refused(tmp_path):
    path = saved(tmp_path)
    roles = full_models(seed=0)
    del roles["feedback"]
    with pytest.raises(CheckpointError, match=r"roles \['conversation', 'feedback'\], need"):
        load_checkpoint(path, roles)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-2])


def alter(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def remove(path):
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "file", "complaint"),
    [
        (cut_short, "conversation/model.safetensors", "bytes, need"),
        (alter, "feedback/model.safetensors", "was altered"),
        (alter, "feedback/optimizer.safetensors", "was altered"),
        (cut_short, "MANIFEST.json", "is damaged"),
        (remove, "conversation/optimizer.safetensors", "is missing"),
        (remove, "MANIFEST.json", "never finished"),
    ],
)
def test_damage_is_named_and_the_checkpoint_before_is_used(tmp_path, damage, file, complaint):
    before, newest = saved(tmp_path, step=90), saved(tmp_path, step=100)
    damage(newest / file)
    found = latest_good(tmp_path)
    assert found.path == before
    (refusal,) = found.refused
    assert refusal.startswith(f"step-000100 is refused: {newest / file} ")
    assert complaint in refusal


def test_without_a_checkpoint_nothing_is_found_and_nothing_refused(tmp_path):
    assert latest_good(tmp_path / "nowhere") == latest_good(tmp_path) == (None, ())


def test_steps_are_ordered_as_numbers(tmp_path):
    saved(tmp_path, step=999_999)
    newest = saved(tmp_path, step=1_000_000)
    assert latest_good(tmp_path).path == newest


def test_a_refused_checkpoint_can_be_made_again(tmp_path):
    cut_short(saved(tmp_path, step=5) / "feedback" / "tokenizer.json")
    assert latest_good(tmp_path).path is None
    path = saved(tmp_path, step=5)
    assert latest_good(tmp_path) == (path, ())


def test_the_last_ones_and_the_milestones_are_kept(tmp_path):
    for step in (10, 20, 30, 40):
        (tmp_path / f"step-{step:06d}").mkdir()
    (tmp_path / ".step-000050.part").mkdir()
    (tmp_path / "other").mkdir()
    prune_checkpoints(tmp_path, 40, keep_last=1, milestones=range(0, 100, 20))
    left = sorted(entry.name for entry in tmp_path.iterdir())
    assert left == ["other", "step-000020", "step-000040"]


def test_a_later_checkpoint_that_was_refused_does_not_crowd_out_the_new_ones(tmp_path):
    for step in (10, 20, 50):
        (tmp_path / f"step-{step:06d}").mkdir()
    prune_checkpoints(tmp_path, 20, keep_last=1)
    left = sorted(entry.name for entry in tmp_path.iterdir())
    assert left == ["step-000020", "step-000050"]


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path):
    before = saved(tmp_path, step=1)
    weights = (before / "conversation" / "model.safetensors").stat().st_size
    optimizer = (before / "conversation" / "optimizer.safetensors").stat().st_size
    roles = full_models(seed=1)
    # A tokenizer that is larger than its weights, so that it alone does not fit.
    roles["conversation"].tokenizer.add_tokens([f"word-{number}" for number in range(1000)])
    for limit in (weights - 1, weights + 1, optimizer - 1):
        with full_disk(limit), pytest.raises(InputError, match="cannot write") as caught:
            save_checkpoint(tmp_path, 2, roles, {})
        assert "\n" not in str(caught.value)
        assert [entry.name for entry in tmp_path.iterdir()] == ["step-000001"]
