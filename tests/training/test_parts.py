"""Files of which every rank writes its part; those of several ranks are in `test_ranks.py`."""

import torch
from safetensors.torch import load_file, save_file

from waltzrl.training.parts import copy_own_rows, save_parts

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b.transposed": torch.arange(12.0).reshape(3, 4).t(),
    "c": torch.tensor(7.0),
    "d.empty": torch.zeros(0, 4),
}


def test_one_process_writes_the_file_that_safetensors_writes(tmp_path):
    save_parts(tmp_path / "ours", TENSORS)
    whole = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    save_file(whole, tmp_path / "theirs", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_an_optimiser_without_a_step_has_a_file_without_tensors(tmp_path):
    save_parts(tmp_path / "none", {})
    assert load_file(tmp_path / "none") == {}


def test_a_copy_keeps_its_layout_in_memory():
    transposed = torch.empty(3, 4).t()
    copy_own_rows(transposed, TENSORS["b.transposed"].contiguous())
    assert torch.equal(transposed, TENSORS["b.transposed"])
    assert transposed.stride() == (1, 4)
